"""Refuses rows that the broker would refuse, before anything of them is sent.

The rules are those of `message_rules`. Columns prove at once that most rows need no rule: bodies by their sizes, texts
that are printable ASCII, short and without forbidden characters. Only the other rows are asked one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from aerobee_pipeline.errors import RowError
from aerobee_store.records import message_rules as rules
from aerobee_store.records import properties
from aerobee_store.records.message_fields import RESERVED_NAMES

# Reserved names: columns, the broker's properties, and the encoding of a record.
RESERVED: Final = RESERVED_NAMES | frozenset(
    value for name, value in vars(properties).items() if name.isupper() and isinstance(value, str) and len(value) > 1
)
"""Properties of these names are left out of a message."""
_QUEUE_ID_MAX: Final = (1 << 31) - 1
_LIMITS: Final = rules.ServerLimits()
_TEXTS: Final[Mapping[str, rules.TextRule]] = {
    "keys": rules.KEY,
    "tags": rules.TAG,
    "messageGroup": rules.MESSAGE_GROUP,
}

Mask = npt.NDArray[np.bool_]


def check_rows(rows: pa.RecordBatch, body_size_max: int, first_row: int, *, has_topic: bool = True) -> None:
    """RowError for the first row of a batch that no broker would store, with its number, its column and the limit.

    `body_size_max`: the broker's, in bytes. `first_row`: the number of the batch's first row in its task. `has_topic`:
    the rows need none of their own.
    """
    names = rows.schema.names
    if not has_topic:
        _refuse(~_is_given(rows.column("topic")), "topic", first_row, _no_topic)
    if "queueId" in names:
        _check_queue_ids(_queue_ids(rows), first_row)
    if "messageGroup" in names:
        _refuse(is_delayed(rows) & _is_given(rows.column("messageGroup")), "deliverTimestamp", first_row, _two_kinds)
    _check_bodies(rows.column("body"), body_size_max, first_row)
    sizes = np.zeros(rows.num_rows, np.int64)
    for name, rule in _TEXTS.items():
        if name in names:
            column = rows.column(name)
            _check_texts(column, name, rule, first_row)
            if name != "messageGroup":
                sizes += _lengths(column)
    if "properties" in names:
        _check_properties(rows.column("properties"), sizes, first_row)
    _refuse(sizes > _LIMITS.properties_size_max, "keys, tags", first_row, lambda row: _check_size(int(sizes[row])))


def is_delayed(rows: pa.RecordBatch) -> Mask:
    """Selects the delayed messages, which go to the broker's timer."""
    if "deliverTimestamp" not in rows.schema.names:
        return np.zeros(rows.num_rows, np.bool_)
    return _is_given(rows.column("deliverTimestamp"))


def queue_ids(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The queue of each row, from its column `queueId`; -1: any."""
    return np.maximum(_queue_ids(rows), -1)


def _queue_ids(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    ids: npt.NDArray[np.int64] = pc.fill_null(rows.column("queueId"), -1).to_numpy(zero_copy_only=False)
    return ids.astype(np.int64)


def _check_queue_ids(ids: npt.NDArray[np.int64], first_row: int) -> None:
    def refuse(row: int) -> None:
        raise rules.BrokenRuleError("BAD_REQUEST", f"{ids[row]} is no queue's number")

    _refuse(ids > _QUEUE_ID_MAX, "queueId", first_row, refuse)


def _no_topic(_: int) -> None:
    raise rules.BrokenRuleError("BAD_REQUEST", "it is null, and the option topic is not given")


def _two_kinds(_: int) -> None:
    raise rules.BrokenRuleError("BAD_REQUEST", "a delayed message is in no group; leave this or messageGroup null")


def _check_bodies(bodies: pa.Array, size_max: int, first_row: int) -> None:
    missing = ~_is_given(bodies)
    if missing.any():
        raise RowError(f"row {first_row + int(missing.argmax())} of the task, column 'body': it is null")
    sizes = _lengths(bodies)
    bad = (sizes < 1) | (sizes > size_max)
    _refuse(bad, "body", first_row, lambda row: rules.check_body(int(sizes[row]), size_max))


def _check_texts(column: pa.Array, name: str, rule: rules.TextRule, first_row: int) -> None:
    odd = _odd(column) | (_lengths(column) > rule.size_max)
    for character in rule.forbidden:
        odd |= _true(pc.match_substring(column, character))
    odd |= _true(pc.equal(pc.ascii_trim_whitespace(column), "")) & (_lengths(column) > 0)  # an empty text is none
    _refuse(odd, name, first_row, lambda row: rule.check(column[row].as_py()))


def _check_properties(maps: pa.Array, sizes: npt.NDArray[np.int64], first_row: int) -> None:
    """Add the sizes of the properties to `sizes`."""
    offsets = maps.offsets.to_numpy()
    counts = np.where(maps.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets), 0)
    base = int(offsets[0])
    keys, items = (part.slice(base, int(offsets[-1]) - base) for part in (maps.keys, maps.items))
    kept = ~_true(pc.is_in(keys, pa.array(sorted(RESERVED)))) & items.is_valid().to_numpy(zero_copy_only=False)
    odd = (_odd(keys) | _odd(items) | (_lengths(keys) == 0)) & kept
    lengths = np.concatenate(([0], np.cumsum(np.where(kept, _lengths(keys) + _lengths(items), 0))))
    odd_before = np.concatenate(([0], np.cumsum(odd)))
    begins, ends = offsets[:-1] - base, offsets[1:] - base
    sizes += np.where(counts > 0, lengths[ends] - lengths[begins], 0)
    many = counts > _LIMITS.user_property_count_max

    def check(row: int) -> None:
        pairs = {key: value for key, value in maps[row].as_py() or () if value is not None and key not in RESERVED}
        rules.check_user_properties(pairs, _LIMITS)
        _check_size(int(sizes[row]))

    large = sizes > _LIMITS.properties_size_max
    _refuse((odd_before[ends] > odd_before[begins]) | many | large, "properties", first_row, check)


def _check_size(size: int) -> None:
    rules.check_properties_size(size, _LIMITS)


def _refuse(suspects: Mask, column: str, first_row: int, check: Callable[[int], None]) -> None:
    for row in np.flatnonzero(suspects).tolist():
        try:
            check(row)
        except rules.BrokenRuleError as broken:
            raise RowError(f"row {first_row + row} of the task, column {column!r}: {broken.reason}") from None


def _is_given(column: pa.Array) -> Mask:
    found: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _odd(texts: pa.Array) -> Mask:
    """Texts that are not printable ASCII."""
    return ~_true(pc.ascii_is_printable(texts)) & (_lengths(texts) > 0)


def _true(flags: Any) -> Mask:
    found: Mask = pc.fill_null(flags, False).to_numpy(zero_copy_only=False)
    return found


def _lengths(values: pa.Array) -> npt.NDArray[np.int64]:
    lengths: npt.NDArray[np.int64] = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)
