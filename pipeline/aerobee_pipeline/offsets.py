"""Offsets of many queues: the JSON of options and checkpoints, and the computations between two triggers.

Offsets in options, in two depths; -2 is the earliest, -1 the latest:

    {"orders": {"0": 23, "1": -2}}                          one broker
    {"orders": {"broker-a": {"0": 23, "1": -1}}}            several

Offsets in a checkpoint, with sorted keys, because Spark compares offsets as text:

    {"q": {topic: {broker: {queue: next}}}, "v": 1}
    "from"     in the same shape: the start of queues that the previous offset did not have, or that end before it
    "initial"  true in the offset that a query begins with, which Spark does not store
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

from aerobee_pipeline.errors import DataLossError, OptionError

EARLIEST: Final = -2
LATEST: Final = -1
VERSION: Final = 1


class Queue(NamedTuple):
    """A queue of a broker."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        broker = f" of broker {self.broker!r}" if self.broker else ""
        return f"topic {self.topic!r}, queue {self.queue_id}{broker}"


Offsets = dict[Queue, int]


class Range(NamedTuple):
    """Messages [start, end) of a queue."""

    queue: Queue
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first and the next queue offset of a queue."""

    start: int
    end: int

    def sample(self, count: int) -> list[int]:
        """At most so many of its offsets, evenly distributed, with the first and the last; at least two if there are
        two."""
        last = self.end - 1
        if last < self.start:
            return []
        steps = max(min(count - 1, last - self.start), 1)
        return sorted({self.start + (last - self.start) * number // steps for number in range(steps + 1)})


def nested(offsets: Mapping[Queue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """Topic -> broker -> queue -> offset, with sorted keys."""
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        tree.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = offsets[queue]
    return tree


def flat(tree: Any) -> Offsets:
    """The reverse of `nested`. OptionError for another shape."""
    found: Offsets = {}
    try:
        for topic, brokers in tree.items():
            for broker, queues in brokers.items():
                for queue_id, offset in queues.items():
                    found[Queue(topic, broker, int(queue_id))] = int(offset)
    except (AttributeError, TypeError, ValueError):
        raise OptionError(f"offsets {json.dumps(tree)[:200]}: expected topic, broker, queue id and a number") from None
    return found


def parse_user_offsets(option: str, text: str, brokers: Iterable[str]) -> Offsets:
    """The offsets in an option's JSON. Raises OptionError if it is invalid, or lacks the names of several brokers."""
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{option}: {text[:200]!r} is neither earliest, latest nor JSON ({error})") from None
    names = list(brokers)
    if not isinstance(tree, dict):
        raise OptionError(f'{option}: expected an object such as {{"orders": {{"0": 23, "1": -2}}}}')
    full: dict[str, Any] = {}
    for topic, value in tree.items():
        if not isinstance(value, dict):
            raise OptionError(f"{option}: topic {topic!r} needs an object of queue ids and offsets")
        if all(isinstance(inner, dict) for inner in value.values()):
            full[topic] = value
        elif len(names) == 1:
            full[topic] = {names[0]: value}
        else:
            raise OptionError(f"{option}: there are {len(names)} brokers; name the broker for topic {topic!r}")
    offsets = flat(full)
    for queue, offset in offsets.items():
        if offset < EARLIEST:
            raise OptionError(
                f"{option}: {queue}: {offset} is not an offset; use 0 or more, -2 (earliest) or -1 (latest)"
            )
        if queue.broker not in names:
            raise OptionError(f"{option}: unknown broker {queue.broker!r}; the brokers are {', '.join(names)}")
    return offsets


@dataclass(frozen=True, slots=True)
class Position:
    """An offset of a streaming query: the next message of each queue. `start`: see the module's text."""

    next: Mapping[Queue, int]
    start: Mapping[Queue, int] = field(default_factory=dict)
    initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """The form in the checkpoint."""
        content: dict[str, Any] = {}
        if self.start:
            content["from"] = nested(self.start)
        if self.initial:
            content["initial"] = True
        content["q"] = nested(self.next)
        content["v"] = VERSION
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Position:
        """OptionError for a version that this release does not know."""
        version = content.get("v")
        if version != VERSION:
            raise OptionError(
                f"the checkpoint's offset has version {version!r}, but this release reads version {VERSION}; resume "
                f"the query with the release that wrote it, or begin with a new checkpoint directory"
            )
        return cls(flat(content.get("q", {})), flat(content.get("from", {})), bool(content.get("initial")))


def next_position(
    start: Position, bounds: Mapping[Queue, Bounds], *, rows_max: int | None = None, fail_on_data_loss: bool
) -> tuple[Position, list[str]]:
    """The end of a trigger that begins at `start`, and the losses between the two.

    A queue that `start` does not have is new and begins at its earliest message. `rows_max` is distributed by backlog;
    each queue with a backlog gets at least one message.

    A loss is a queue that is gone, or one that ends before the offset that was reached: a restored backup, a promoted
    replica. It is found here because the end of a trigger must never hide it. The first one raises DataLossError;
    otherwise the query continues at the new end of the queue, or without it.
    """
    begins = dict(start.next) if start.initial else {}
    losses: list[str] = []
    kept: Offsets = {}
    for queue, offset in start.next.items():
        loss = None
        if (found := bounds.get(queue)) is None:
            begins.pop(queue, None)
            loss = f"{queue}: the queue is gone; its messages from {offset} on are lost"
        elif found.end < offset:
            kept[queue] = begins[queue] = found.end
            loss = (
                f"{queue}: it ends at {found.end}, before offset {offset}, which was reached: {offset - found.end} "
                f"offsets were lost and are used again, as after a restored backup or a deleted topic"
            )
        else:
            kept[queue] = offset
        if loss is not None:
            losses.append(_lost(loss, fail_on_data_loss))
    for queue, found in bounds.items():
        if queue not in start.next:
            kept[queue] = begins[queue] = found.start
    ends = {queue: bounds[queue].end for queue in kept}
    if rows_max is not None:
        shares = share_out({queue: ends[queue] - kept[queue] for queue in kept}, rows_max)
        ends = {queue: kept[queue] + shares[queue] for queue in kept}
    return Position(ends, begins), losses


def _lost(loss: str, fail_on_data_loss: bool) -> str:
    """The loss. Raises DataLossError if the query may not continue."""
    if fail_on_data_loss:
        raise DataLossError(f"{loss}. Set the option failOnDataLoss=false to continue with the remaining messages")
    return loss


def share_out(backlogs: Mapping[Queue, int], rows_max: int) -> dict[Queue, int]:
    """The number of messages of each queue in a trigger of `rows_max`."""
    total = sum(backlogs.values())
    if total <= rows_max:
        return dict(backlogs)
    shares = {queue: min(count, max(1, rows_max * count // total)) if count else 0 for queue, count in backlogs.items()}
    spare = rows_max - sum(shares.values())
    for queue in sorted(backlogs):  # the remainder after rounding down
        if spare <= 0:
            break
        more = min(spare, backlogs[queue] - shares[queue])
        shares[queue] += more
        spare -= more
    return shares


def ranges_between(start: Position, end: Position) -> list[Range]:
    """The ranges of a micro-batch. A start in `end.start` takes precedence over `start`: see the module's docstring."""
    ranges = []
    for queue in sorted(end.next):
        first = end.start.get(queue, start.next.get(queue))
        if first is None:
            raise DataLossError(f"{queue}: the checkpoint has no begin offset; use a new checkpoint directory")
        if end.next[queue] != first:
            ranges.append(Range(queue, first, end.next[queue]))
    return ranges


def checked_ranges(
    ranges: Iterable[Range], bounds: Mapping[Queue, Bounds], *, fail_on_data_loss: bool
) -> tuple[list[Range], list[str]]:
    """The readable ranges; losses are logged, or the first one raises DataLossError.

    A start before the earliest message, a range that goes backwards and a queue that is gone are losses.
    """
    kept: list[Range] = []
    losses: list[str] = []
    for item in ranges:
        found = bounds.get(item.queue)
        start = item.start
        loss = None
        if found is None:
            loss = f"{item.queue}: the queue is gone; messages {item.start} to {item.end} are lost"
        elif item.end < item.start:
            loss = f"{item.queue}: it ends at {item.end}, before offset {item.start}: the topic was deleted or reset"
        elif item.start < found.start:
            start = min(found.start, item.end)
            loss = f"{item.queue}: messages {item.start} to {start} are gone; the earliest is {found.start}"
        elif item.end > found.end:
            loss = f"{item.queue}: message {item.end - 1} is asked for, but it ends at {found.end}: it was reset"
        if loss is None:
            kept.append(item)
            continue
        losses.append(_lost(loss, fail_on_data_loss))
        if found is not None and start < (end := min(item.end, found.end)):
            kept.append(Range(item.queue, start, end))
    return kept, losses


def cut(ranges: Iterable[Range], *, parts_min: int | None, rows_max: int) -> list[Range]:
    """Cut long ranges evenly: no part is longer than `rows_max`, and there are about `parts_min` parts or more."""
    whole = [item for item in ranges if item.end > item.start]
    total = sum(item.end - item.start for item in whole)
    cuts: list[Range] = []
    for item in whole:
        length = item.end - item.start
        parts = -(-length // rows_max)
        if parts_min:
            parts = max(parts, round(length / total * parts_min))
        parts = max(1, min(parts, length))
        edges = [item.start + length * number // parts for number in range(parts + 1)]
        cuts += [Range(item.queue, first, last) for first, last in pairwise(edges)]
    return cuts
