"""Plans a batch query on stores: which way to read, which ranges, and how many of them a task takes.

    log     byte ranges of the log, without those that a time or a physical offset excludes
    queue   ranges of queues, narrowed by offsets and times
    index   the records of some keys

`readBy=auto` takes the index if keys are asked for, else the way that reads less. Tasks are planned by bytes: a task
has a fixed cost, so small segments and short ranges of queues share one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.offsets import Bounds, Offsets, Queue, Range, checked_ranges, cut
from aerobee_pipeline.options import SourceOptions
from aerobee_pipeline.reading.key_index import KeyPlaces, find_keys
from aerobee_pipeline.reading.queue_access import QueueAccess, named_topics_exist, offsets_at, open_access
from aerobee_pipeline.reading.selection import Condition, queue_is_selected, selected_part
from aerobee_pipeline.reading.splits import LogSplit, LogWindow, load_deleted_topics, log_size, plan_log, store_files
from aerobee_pipeline.reading.store_queues import Records, StoreQueues
from aerobee_store.errors import StoreError

_log = logging.getLogger(__name__)

# Longer ranges are split; this many records are worth the fixed cost of a task.
RANGE_ROWS_MAX: Final = 250_000
# Shorter ranges share a task, whose fixed cost is then a quarter of what its records cost.
_TASK_ROWS_MIN: Final = 50_000
# A log that has fewer bytes than the cores read together is cut for all of them, but not into smaller ranges.
_SHARED_BYTES_MIN: Final = 32 << 20
# The share of the messages in the ranges of the log from which it is read; below it, the queues.
_LOG_WEIGHT_MIN: Final = 0.5

Way = Literal["log", "queue", "index"]
ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Task:
    """What one task reads: ranges of queues, or ranges and records of logs.

    `deleted`: for each broker, the selected topics that were deleted: their records before this physical offset do not
    count.
    """

    ranges: tuple[Range, ...] = ()
    splits: tuple[LogSplit, ...] = ()
    records: tuple[Records, ...] = ()
    deleted: Mapping[str, Mapping[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The tasks of a query. `bytes_planned` are about what they read, `log_bytes` what the logs have.

    A broker does not say how large its messages are: both are None for it.
    """

    way: Way
    tasks: tuple[Task, ...]
    bytes_planned: int | None
    log_bytes: int | None

    def __str__(self) -> str:
        size = "" if self.bytes_planned is None else f", {self.bytes_planned} of {self.log_bytes} bytes"
        return f"by {self.way}, {len(self.tasks)} tasks{size}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What filters ask for, beside the options. `keys`: None for messages with any."""

    conditions: tuple[Condition, ...] = ()
    keys: frozenset[str] | None = None

    def window(self, options: SourceOptions) -> LogWindow:
        """The store times and physical offsets that the options and conditions leave."""
        window = LogWindow(
            since_ms=options.starting.timestamp or 0,
            until_ms=options.ending.timestamp if options.ending.timestamp is not None else LogWindow().until_ms,
        )
        for condition in self.conditions:
            values = condition.value if condition.operator == "in" else (condition.value,)
            low = min(values) if condition.operator in ("=", "in", ">", ">=") else None
            high = max(values) if condition.operator in ("=", "in", "<", "<=") else None
            if condition.column == "storeTimestamp":
                window = window.within_times(
                    None if low is None else low // 1000, None if high is None else high // 1000 + 1
                )
            elif condition.column == "physicalOffset":
                window = window.within_offsets(low, None if high is None else high + 1)
        return window


def plan(options: SourceOptions, wanted: Wanted) -> ReadPlan:
    """The tasks of a batch query."""
    if options.mode == "grpc":
        return _queue_plan(options, wanted, None, None)
    if wanted.keys is not None and options.read_by == "auto" and (found := _index_plan(options, wanted)) is not None:
        return found
    window = wanted.window(options)
    logs = _Logs(options, window) if options.read_by != "queue" else None
    if options.read_by == "log":
        assert logs is not None
        return _log_plan(options, logs)
    if options.read_by == "auto":
        assert logs is not None
        if _lack_messages(options, wanted):
            return _log_plan(options, logs)
        queues = _queue_plan(options, wanted, window, logs)
        assert queues.bytes_planned is not None
        by_log = queues.bytes_planned >= logs.bytes_planned * _LOG_WEIGHT_MIN and options.partition_rows_max is None
        return _log_plan(options, logs) if by_log else queues
    return _queue_plan(options, wanted, window, None)


# --- by log -----------------------------------------------------------------------------------------------------------


class _Logs:
    """The ranges of the logs of all stores."""

    def __init__(self, options: SourceOptions, window: LogWindow) -> None:
        parts_min = options.partitions_min and -(-options.partitions_min // len(options.stores))
        self.splits: list[LogSplit] = []
        self.log_bytes = _log_bytes(options)
        # The cores of the driver's machine: more are not known here, and larger logs have more splits anyway.
        share = max(self.log_bytes // (os.cpu_count() or 1), _SHARED_BYTES_MIN)
        self.split_bytes = min(options.split_bytes, share)
        for broker, directory in options.stores.items():
            with closing(store_files(directory)) as files:
                self.splits += plan_log(
                    broker,
                    files,
                    self.split_bytes,
                    fail_on_data_loss=options.fail_on_data_loss,
                    window=window,
                    parts_min=parts_min,
                )
        self.bytes_planned = sum(split.size for split in self.splits)


def _log_plan(options: SourceOptions, logs: _Logs) -> ReadPlan:
    _check_offsets(options)
    packs = _packed(logs.splits, lambda split: split.size, logs.split_bytes if options.partitions_min is None else 1)
    deleted = _deleted(options)
    tasks = tuple(Task(splits=tuple(pack), deleted=deleted) for pack in packs)
    return ReadPlan("log", tasks, logs.bytes_planned, logs.log_bytes)


def _packed(
    items: Iterable[ItemT], size: Callable[[ItemT], int], enough: int, most: int | None = None
) -> list[list[ItemT]]:
    """The items in order, in packs of about `enough` each that are about equal, so that tasks end at the same time.

    `most`: what several items in one pack never exceed.
    """
    chosen = [(item, size(item)) for item in items]
    total = sum(its for _, its in chosen)
    count = max(1, round(total / enough))
    packs: list[list[ItemT]] = []
    passed = filled = 0
    last = -1
    for item, its in chosen:
        # By the middle of the item, as if the packs were stretches of one line.
        number = (2 * passed + its) * count // (2 * total) if total else 0
        if number != last or (most is not None and filled + its > most):
            packs.append([])
            filled = 0
        packs[-1].append(item)
        filled += its
        passed += its
        last = number
    return packs


def _check_offsets(options: SourceOptions) -> None:
    """Offsets that a queue does not have are data loss here, too, as far as the store has queues."""
    given = [
        limit.place if isinstance(limit.place, dict) and not limit.has_time else {}
        for limit in (options.starting, options.ending)
    ]
    if not any(given):
        return
    access = open_access(options)
    try:
        bounds = access.bounds(options.subscription)
        if not bounds:
            return  # the log is read because the queues are missing
        starts, ends = (
            offsets_at(access, limit, bounds, is_start=is_start, strategy=options.by_timestamp_strategy)
            for limit, is_start in ((options.starting, True), (options.ending, False))
        )
    finally:
        access.close()
    asked = [Range(queue, starts[queue], ends[queue]) for queue in sorted({*given[0], *given[1]})]
    _, losses = checked_ranges(asked, bounds, fail_on_data_loss=options.fail_on_data_loss)
    warn(losses)


def _deleted(options: SourceOptions) -> dict[str, dict[str, int]]:
    """The selected topics of each store that were deleted, with the place of the deletion in the log."""
    found: dict[str, dict[str, int]] = {}
    for broker, directory in options.stores.items():
        try:
            deleted = load_deleted_topics(directory)
        except StoreError as error:
            if options.fail_on_data_loss:
                raise OptionError(f"{error}. With failOnDataLoss=false, deleted messages are read again") from None
            warn([str(error)])
            continue
        found[broker] = {
            topic: entry.physical_offset
            for topic, entry in deleted.content().items()
            if options.subscription.has_topic(topic)
        }
    return found


# --- by queue ---------------------------------------------------------------------------------------------------------


def _queue_plan(options: SourceOptions, wanted: Wanted, window: LogWindow | None, logs: _Logs | None) -> ReadPlan:
    access = open_access(options)
    try:
        bounds = access.bounds(options.subscription)
        named_topics_exist(options.subscription, bounds, where(options))
        strategy = options.by_timestamp_strategy
        starts = offsets_at(access, options.starting, bounds, is_start=True, strategy=strategy)
        ends = offsets_at(access, options.ending, bounds, is_start=False, strategy=strategy)
        if window is None:
            window = wanted.window(options)
        _narrow(access, bounds, wanted, window, starts, ends)
        ranges = [Range(queue, starts[queue], ends[queue]) for queue in sorted(bounds)]
        kept, losses = checked_ranges(ranges, bounds, fail_on_data_loss=options.fail_on_data_loss)
        warn(losses)
        parts = [part for item in kept if (part := selected_part(item, wanted.conditions)) is not None]
        sizes = [access.size_of(part) for part in parts]
    finally:
        access.close()
    tasks = tuple(Task(ranges=tuple(pack)) for pack in packed_ranges(parts, options))
    size = log_bytes = None
    if options.mode == "store":
        size = sum(each or 0 for each in sizes)
        log_bytes = logs.log_bytes if logs is not None else _log_bytes(options)
    return ReadPlan("queue", tasks, size, log_bytes)


def _narrow(
    access: QueueAccess,
    bounds: Mapping[Queue, Bounds],
    wanted: Wanted,
    window: LogWindow,
    starts: Offsets,
    ends: Offsets,
) -> None:
    """Move starts and ends to the store times that conditions ask for."""
    if not any(condition.column == "storeTimestamp" for condition in wanted.conditions):
        return
    selected = {
        queue: its for queue, its in bounds.items() if queue_is_selected(wanted.conditions, queue.topic, queue.queue_id)
    }
    for queue in access.rising(selected):
        its = bounds[queue]
        for offsets, time, side in ((starts, window.since_ms, max), (ends, window.until_ms, min)):
            if LogWindow.is_bounded(time):
                at = access.offset_at(queue, its, time)
                offsets[queue] = side(offsets[queue], its.end if at is None else at)
        ends[queue] = max(starts[queue], ends[queue])


def packed_ranges(ranges: Sequence[Range], options: SourceOptions) -> list[list[Range]]:
    """The ranges of each task: long ones are cut, short ones share a task unless more tasks are asked for."""
    rows_max = min(options.partition_rows_max or RANGE_ROWS_MAX, RANGE_ROWS_MAX)
    pieces = cut(ranges, parts_min=options.partitions_min, rows_max=rows_max)
    enough = min(_TASK_ROWS_MIN, rows_max) if options.partitions_min is None else 1
    return _packed(pieces, lambda item: item.end - item.start, enough, options.partition_rows_max)


def _lack_messages(options: SourceOptions, wanted: Wanted) -> bool:
    """Whether a log has selected messages that no queue has, or there is no queue at all."""

    def is_selected(topic: str, queue_id: int) -> bool:
        chosen = options.subscription
        return (
            chosen.has_topic(topic)
            and chosen.has_queue(topic, queue_id)
            and queue_is_selected(wanted.conditions, topic, queue_id)
        )

    for broker, directory in options.stores.items():
        queues = StoreQueues(broker, directory)
        try:
            if queues.lack_messages(is_selected):
                return True
        finally:
            queues.close()
    return False


# --- by index ---------------------------------------------------------------------------------------------------------


def _index_plan(options: SourceOptions, wanted: Wanted) -> ReadPlan | None:
    """None if an index cannot be used, as after a crash."""
    assert wanted.keys is not None
    found: dict[str, KeyPlaces] = {}
    log_bytes = 0
    for broker, directory in options.stores.items():
        with closing(store_files(directory)) as files:
            topics = {topic for topic, _ in (*files.queues, *files.batch_queues)} | options.subscription.named
            chosen = [topic for topic in topics if options.subscription.has_topic(topic)]
            places = None if files.state == "crashed" else find_keys(files, chosen, wanted.keys)
            log_bytes += log_size(files)
        if places is None:
            return None
        found[broker] = places
    if isinstance(options.starting.place, dict) or isinstance(options.ending.place, dict):
        _check_offsets(options)
    deleted = _deleted(options)
    tasks: list[Task] = []
    size = 0
    for broker, places in found.items():
        directory = options.stores[broker]
        size += places.bytes_read
        splits: list[LogSplit] = []
        for begin, end in places.stretches:
            with closing(store_files(directory)) as files:
                splits += plan_log(
                    broker,
                    files,
                    options.split_bytes,
                    fail_on_data_loss=options.fail_on_data_loss,
                    window=wanted.window(options).within_offsets(begin, end),
                )
        covered = {offset for offset in places.records if any(one.begin <= offset < one.end for one in splits)}
        single = tuple(offset for offset in places.records if offset not in covered)
        size += sum(split.size for split in splits)
        packs = _packed(splits, lambda split: split.size, options.split_bytes) or [[]]
        for number, pack in enumerate(packs):
            records = (Records(broker, str(directory), single),) if number == 0 else ()
            tasks.append(Task(splits=tuple(pack), records=records, deleted=deleted))
    return ReadPlan("index", tuple(tasks), size, log_bytes)


# --- common -----------------------------------------------------------------------------------------------------------


def _log_bytes(options: SourceOptions) -> int:
    total = 0
    for directory in options.stores.values():
        with closing(store_files(directory)) as files:
            total += log_size(files)
    return total


def warn(losses: Iterable[str]) -> None:
    """Log what a query goes on without."""
    for loss in losses:
        _log.warning("%s", loss)


def where(options: SourceOptions) -> str:
    """The place that a query reads, for errors."""
    places = ", ".join(map(str, (options.stores or options.endpoints).values()))
    return f"the store at {places}" if options.stores else places
