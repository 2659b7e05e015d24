"""What producers and consumers observed of a broker, and a checker for violations.

A history is a list of events in the order in which one event loop saw them: an earlier event happened before a later
one, whatever the clocks show. `check` is a pure function of a history. It does not depend on how the history was
recorded, so it is tested with handwritten histories (test_history.py).

`at_ms` is always the time of the observers' clock, which never jumps, in Unix milliseconds. The broker's clock may
jump: it is the observers' clock plus the offset of the latest `ClockSet`. Invisible times are measured by the broker's
steady clock, which starts with the process and does not follow a jump of more than a second.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

_FOLLOWED_MS: Final = 1000  # the largest jump that the broker's steady clock follows
_CLOCK_MS: Final = 50  # tolerance between two readings of one clock; a jump of the broker's clock takes about as long

Place = tuple[int, int]
"""Queue id and queue offset."""


class Kind(StrEnum):
    """The kind of a message, which decides the steps before it becomes visible."""

    NORMAL = "normal"
    FIFO = "fifo"
    DELAYED = "delayed"
    TRANSACTIONAL = "transactional"
    PRIORITY = "priority"
    LITE = "lite"


class Outcome(StrEnum):
    """The final state of a transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"


# --- Events -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscribed:
    """From now on a consumer group gets all messages of a topic. `ordered`: one at a time."""

    topic: str
    group: str
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Attempted:
    """A send began. Several with one id are retries, each of which may store the message."""

    at_ms: int
    message_id: str
    topic: str
    kind: Kind = Kind.NORMAL
    message_group: str = ""
    deliver_at_ms: int = 0  # of a delayed message
    outcome: Outcome = Outcome.COMMIT  # the producer's decision about a transactional message, whether sent or not


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A send was answered with OK. Without this event a message may or may not be stored."""

    at_ms: int
    message_id: str


@dataclass(frozen=True, slots=True)
class DecisionAttempted:
    """A producer began to send the outcome of a transaction."""

    at_ms: int
    message_id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RecallAttempted:
    """A producer began to recall a delayed message."""

    at_ms: int
    message_id: str


@dataclass(frozen=True, slots=True)
class RecallAcknowledged:
    """A recall was answered with OK."""

    at_ms: int
    message_id: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """A group got a message."""

    at_ms: int
    group: str
    message_id: str
    topic: str
    place: Place
    attempt: int  # delivery attempt
    call: int  # the number of the receive, which may have returned other messages, too
    called_ms: int = 0  # when the receive began
    hidden_ms: int | None = 0  # invisible at least until then; None: as long as the client lives
    client: str = ""


@dataclass(frozen=True, slots=True)
class ConsumeAttempted:
    """A group began to acknowledge a message."""

    at_ms: int
    group: str
    message_id: str
    place: Place


@dataclass(frozen=True, slots=True)
class Consumed:
    """An acknowledgement was answered with OK; `attempt` is that of the acknowledged delivery."""

    at_ms: int
    group: str
    message_id: str
    place: Place
    attempt: int


@dataclass(frozen=True, slots=True)
class GivenBack:
    """A group began to return a message before its invisible time ended."""

    at_ms: int
    group: str
    message_id: str
    place: Place


@dataclass(frozen=True, slots=True)
class AskedAgain:
    """A client retries a receive whose answer it did not get completely."""

    at_ms: int
    client: str


@dataclass(frozen=True, slots=True)
class ClientGone:
    """A client announces its termination."""

    at_ms: int
    client: str


@dataclass(frozen=True, slots=True)
class Read:
    """A message was found at its position by pulling, which changes no state."""

    at_ms: int
    topic: str
    message_id: str
    place: Place


@dataclass(frozen=True, slots=True)
class ClockSet:
    """From now on, the broker's clock is about to be this many milliseconds ahead of the true time."""

    at_ms: int
    offset_ms: int


@dataclass(frozen=True, slots=True)
class Disturbed:
    """The broker was disturbed: `what` was killed, paused, cut off or similar."""

    at_ms: int
    what: str
    is_restart: bool = False  # its process ends, and another starts


@dataclass(frozen=True, slots=True)
class Wrong:
    """An error that a worker saw itself: a body that differs from the one sent, or an invalid answer."""

    at_ms: int
    text: str


Event = (
    Subscribed
    | Attempted
    | Acknowledged
    | DecisionAttempted
    | RecallAttempted
    | RecallAcknowledged
    | Delivered
    | ConsumeAttempted
    | Consumed
    | GivenBack
    | AskedAgain
    | ClientGone
    | Read
    | ClockSet
    | Disturbed
    | Wrong
)


# --- Findings -----------------------------------------------------------------------------------------------


class Fault(StrEnum):
    """Violations of the broker's guarantees."""

    LOST = "lost"  # acknowledged, but a group never got it, or it is not in its queue
    EARLY = "early"  # before its delivery time, or while still invisible
    HALF_VISIBLE = "half visible"  # a transaction that was rolled back or never committed
    ORDER = "order broken"
    DUPLICATE = "unexplained duplicate"
    STORED_AGAIN = "stored again"  # more copies than sends
    RECALLED = "recalled, delivered"
    UNKNOWN = "never sent"
    WRONG = "wrong answer"


@dataclass(slots=True)
class Findings:
    """Counts of a history's events, and the violations found."""

    counts: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)  # by explanation
    disturbances: Counter[str] = field(default_factory=Counter)
    faults: Counter[Fault] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)  # details, limited to a readable number

    def found(self, fault: Fault, text: str) -> None:
        self.faults[fault] += 1
        if len(self.lines) < 60:
            self.lines.append(f"{fault}: {text}")

    def table(self) -> str:
        """All findings, as a table."""
        rows: list[tuple[str, int]] = [*self.counts.items()]
        rows += [(f"duplicate: {why}", count) for why, count in sorted(self.duplicates.items())]
        rows += [(what, count) for what, count in sorted(self.disturbances.items())]
        rows += [(str(fault), self.faults[fault]) for fault in Fault]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {count:>9,}" for name, count in rows)


def check(history: Sequence[Event]) -> Findings:
    """The findings for a whole run, at whose end all remaining messages were consumed and every queue was read."""
    checker = _Checker()
    for event in history:
        checker.take(event)
    checker.end()
    return checker.findings


# --- The checker --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Message:
    first: Attempted
    order: int  # of the event
    attempts: int = 1
    acknowledged: int | None = None  # the number of that event
    committing: bool = False
    recalling: bool = False
    recalled: bool = False
    read: bool = False
    places: set[Place] = field(default_factory=set)


@dataclass(slots=True)
class _Taken:
    """The history of one message at one position, as one group saw it."""

    last: Delivered
    consuming: bool = False  # an acknowledgement was sent since its last delivery
    ever_consuming: bool = False
    consumed_attempt: int | None = None
    given_back: bool = False
    gone: str = ""  # why the client does not hold the message any more


@dataclass(slots=True)
class _Line:
    """The messages of one message group that one consumer group received, ordered by offset."""

    offsets: list[int] = field(default_factory=list)
    by_offset: dict[int, tuple[str, set[int]]] = field(default_factory=dict)  # message id, calls that returned it
    queue_id: int = -1


class _Checker:
    def __init__(self) -> None:
        self.findings = Findings()
        self._messages: dict[str, _Message] = {}
        self._groups: dict[str, dict[str, bool]] = {}  # by topic: group, whether ordered
        self._taken: dict[tuple[str, str, Place], _Taken] = {}
        self._lines: dict[tuple[str, str, str], _Line] = {}
        self._seen: dict[tuple[str, str], set[str]] = {}  # message ids that a (topic, group) got
        self._places: dict[tuple[str, Place], str] = {}
        self._held: dict[str, set[tuple[str, str, Place]]] = {}  # by client: messages it holds as long as it lives
        self._clocks: list[tuple[int, int]] = [(0, 0)]  # start, offset
        self._starts: list[int] = [0]  # when the broker was stopped or killed, to start again
        self._number = 0
        self._read_topics: set[str] = set()

    def take(self, event: Event) -> None:
        self._number += 1
        match event:
            case Delivered():
                self._delivered(event)
            case Attempted():
                self._attempted(event)
            case Acknowledged():
                self.findings.counts["acknowledged"] += 1
                message = self._messages[event.message_id]
                if message.acknowledged is None:
                    message.acknowledged = self._number
            case ConsumeAttempted():
                taken = self._taken_by(event)
                taken.consuming = taken.ever_consuming = True
            case Consumed():
                self.findings.counts["consumed"] += 1
                taken = self._taken_by(event)
                taken.consumed_attempt = max(taken.consumed_attempt or 0, event.attempt)
            case GivenBack():
                self.findings.counts["given back"] += 1
                self._taken_by(event).given_back = True
            case DecisionAttempted():
                self.findings.counts["decisions"] += 1
                self._messages[event.message_id].committing |= event.outcome is Outcome.COMMIT
            case RecallAttempted():
                self._messages[event.message_id].recalling = True
            case RecallAcknowledged():
                self.findings.counts["recalled"] += 1
                self._messages[event.message_id].recalled = True
            case AskedAgain(client=client) | ClientGone(client=client):
                why = "its client had gone" if isinstance(event, ClientGone) else "the client asked again"
                for key in self._held.pop(client, ()):
                    self._taken[key].gone = why
            case ClockSet():
                self._clocks.append((event.at_ms, event.offset_ms))
            case Disturbed():
                self.findings.disturbances[event.what] += 1
                if event.is_restart:
                    self._starts.append(event.at_ms)
            case Read():
                self._read(event)
            case Subscribed():
                self._groups.setdefault(event.topic, {})[event.group] = event.ordered
            case Wrong():
                self.findings.found(Fault.WRONG, event.text)

    # --- Sending --------------------------------------------------------------------------------------------

    def _attempted(self, event: Attempted) -> None:
        self.findings.counts["attempted"] += 1
        known = self._messages.get(event.message_id)
        if known is None:
            self._messages[event.message_id] = _Message(event, self._number)
        else:
            known.attempts += 1

    def _may_be_seen(self, message: _Message, at_ms: int, what: str) -> None:
        """Check that a message may be in its queue at this time, for any reader."""
        first = message.first
        if first.kind is Kind.TRANSACTIONAL and not message.committing:
            self.findings.found(Fault.HALF_VISIBLE, f"{what}: nobody has committed it ({first.outcome})")
        if message.recalled:
            self.findings.found(Fault.RECALLED, f"{what}: its recall was answered with OK")
        if first.kind is Kind.DELAYED:
            ahead = self._offsets(first.at_ms, at_ms)[1]
            if (too_early := first.deliver_at_ms - at_ms - ahead - _CLOCK_MS) > 0:
                self.findings.found(Fault.EARLY, f"{what}: {too_early} ms before its time in the broker's clock")

    def _known(self, message_id: str, topic: str, place: Place, what: str) -> _Message | None:
        """The message, or None if nobody sent it to this topic. Counts its positions."""
        message = self._messages.get(message_id)
        if message is None or message.first.topic != topic:
            self.findings.found(Fault.UNKNOWN, f"{what}: nobody sent it to {topic}")
            return None
        if self._places.setdefault((topic, place), message_id) != message_id:
            self.findings.found(Fault.LOST, f"{what}: there was {self._places[topic, place]} before")
        if place not in message.places:
            message.places.add(place)
            if len(message.places) > 1:
                if len(message.places) <= message.attempts:
                    self.findings.counts["stored again by its producer"] += 1
                else:
                    self.findings.found(Fault.STORED_AGAIN, f"{what}: sent {message.attempts} times, {message.places}")
        return message

    def _read(self, event: Read) -> None:
        self.findings.counts["read by pulling"] += 1
        self._read_topics.add(event.topic)
        what = f"message {event.message_id} at {event.place} of {event.topic}, pulled"
        message = self._known(event.message_id, event.topic, event.place, what)
        if message is not None:
            if not message.read:
                self._may_be_seen(message, event.at_ms, what)
            message.read = True

    # --- Delivery -------------------------------------------------------------------------------------------

    def _taken_by(self, event: ConsumeAttempted | Consumed | GivenBack) -> _Taken:
        topic = self._messages[event.message_id].first.topic
        return self._taken[event.group, topic, event.place]

    def _delivered(self, event: Delivered) -> None:
        self.findings.counts["delivered"] += 1
        what = f"message {event.message_id} at {event.place} of {event.topic} to {event.group}, attempt {event.attempt}"
        message = self._known(event.message_id, event.topic, event.place, what)
        if message is None:
            return
        self._seen.setdefault((event.topic, event.group), set()).add(event.message_id)
        key = (event.group, event.topic, event.place)
        taken = self._taken.get(key)
        if taken is None:
            self._may_be_seen(message, event.at_ms, what)
            self._taken[key] = _Taken(event)
        else:
            self._delivered_again(taken, event, what)
        if event.hidden_ms is None:
            self._held.setdefault(event.client, set()).add(key)
        if message.first.message_group and self._groups.get(event.topic, {}).get(event.group):
            self._in_line(message, event, what)

    def _delivered_again(self, taken: _Taken, event: Delivered, what: str) -> None:
        """Every redelivery needs a reason; the first one that applies explains it."""
        last = taken.last
        if taken.consumed_attempt is not None and event.attempt > taken.consumed_attempt:
            self.findings.found(Fault.DUPLICATE, f"{what}: attempt {taken.consumed_attempt} was acknowledged with OK")
        elif event.attempt < last.attempt:
            self.findings.duplicates["an older delivery came late"] += 1
            return  # keep the state of the newer delivery
        elif taken.consuming:
            # The broker may have it or not: the answer was lost, or said that it came too late.
            self.findings.duplicates["its acknowledgement was not answered with OK"] += 1
        elif taken.given_back:
            self.findings.duplicates["given back"] += 1
        elif taken.gone:
            self.findings.duplicates[taken.gone] += 1
        elif last.hidden_ms is None:
            self.findings.found(Fault.EARLY, f"{what}: its client has it, and lives")
        elif event.at_ms + _CLOCK_MS >= last.called_ms + last.hidden_ms:
            self.findings.duplicates["not acknowledged in time"] += 1
        else:
            low, high = self._steady_offsets(last.called_ms, event.at_ms)
            if event.at_ms + high + _CLOCK_MS >= last.called_ms + low + last.hidden_ms:
                self.findings.duplicates["the broker's clock jumped ahead"] += 1
            else:
                left = last.called_ms + last.hidden_ms - event.at_ms
                self.findings.found(Fault.EARLY, f"{what}: hidden for {left} ms more (since attempt {last.attempt})")
        taken.last, taken.consuming, taken.given_back, taken.gone = event, False, False, ""

    def _in_line(self, message: _Message, event: Delivered, what: str) -> None:
        """A message of a message group is only delivered after all earlier ones are acknowledged."""
        key = (event.topic, event.group, message.first.message_group)
        line = self._lines.setdefault(key, _Line(queue_id=event.place[0]))
        if line.queue_id != event.place[0]:
            self.findings.found(Fault.ORDER, f"{what}: its message group was in queue {line.queue_id}")
            return
        offset = event.place[1]
        index = bisect_left(line.offsets, offset)
        if offset not in line.by_offset:
            line.offsets.insert(index, offset)
            line.by_offset[offset] = (event.message_id, set())
        calls = line.by_offset[offset][1]
        for later in line.offsets[index + 1 :]:
            message_id, others = line.by_offset[later]
            if not (others & calls or event.call in others):
                self.findings.found(Fault.ORDER, f"{what}: {message_id}, which is behind it, was delivered before")
                break
        for earlier in reversed(line.offsets[:index]):
            message_id, others = line.by_offset[earlier]
            before = self._taken[event.group, event.topic, (event.place[0], earlier)]
            if not before.ever_consuming and event.call not in others:
                self.findings.found(Fault.ORDER, f"{what}: {message_id}, which is before it, is not acknowledged")
                break
            if event.attempt == 1 and before.last.attempt > 1 and before.last.call == event.call:
                self.findings.found(Fault.ORDER, f"{what}: new, beside {message_id}, which is redelivered before it")
                break
            if before.consumed_attempt is not None:
                break  # and so were earlier ones, or the fault is already reported
        calls.add(event.call)

    def _offsets(self, from_ms: int, to_ms: int) -> tuple[int, int]:
        """The smallest and the largest offset of the broker's clock in an interval."""
        offsets = []
        for index, (since_ms, offset) in enumerate(self._clocks):
            until_ms = self._clocks[index + 1][0] if index + 1 < len(self._clocks) else to_ms
            if since_ms - _CLOCK_MS <= to_ms and until_ms + _CLOCK_MS >= from_ms:
                offsets.append(offset)
        return min(offsets), max(offsets)

    def _steady_offsets(self, delivered_ms: int, again_ms: int) -> tuple[int, int]:
        """The smallest offset of the steady clock of the process that delivered a message, and the largest one until
        the message was delivered again, perhaps by a later process."""
        first = bisect_right(self._starts, delivered_ms) - 1
        low, high = self._steady_offsets_of(first, again_ms)
        for process in range(first + 1, len(self._starts)):
            high = max(high, self._steady_offsets_of(process, again_ms)[1])
        return low, high

    def _steady_offsets_of(self, process: int, until_ms: int) -> tuple[int, int]:
        """The range of one process's steady clock: from the clock at its start, through the jumps that it follows."""
        start_ms = self._starts[process]
        end_ms = self._starts[process + 1] if process + 1 < len(self._starts) else until_ms
        low, high = self._offsets(start_ms, start_ms)
        for at_ms, offset in self._clocks:
            reach = _FOLLOWED_MS + _CLOCK_MS
            if start_ms < at_ms <= end_ms and low - reach <= offset <= high + reach:
                low, high = min(low, offset), max(high, offset)
        return low, high

    # --- The end --------------------------------------------------------------------------------------------

    def end(self) -> None:
        for message_id, message in self._messages.items():
            self._must_be_there(message_id, message)
        for (group, topic, place), taken in self._taken.items():
            if not taken.ever_consuming:
                text = f"message {taken.last.message_id} at {place} of {topic}: {group} got it and never again"
                self.findings.found(Fault.LOST, text)
        self._in_queues()
        self.findings.counts["messages delivered"] = sum(len(ids) for ids in self._seen.values())

    def _must_be_there(self, message_id: str, message: _Message) -> None:
        first = message.first
        if message.acknowledged is None or message.recalling:
            return
        if first.kind is Kind.TRANSACTIONAL and first.outcome is Outcome.ROLLBACK:
            return
        for group in self._groups.get(first.topic, ()):
            if message_id not in self._seen.get((first.topic, group), ()):
                self.findings.found(Fault.LOST, f"message {message_id} of {first.topic}: {group} never got it")
        if first.topic in self._read_topics and not message.read:
            self.findings.found(Fault.LOST, f"message {message_id} of {first.topic}: it is in no queue")

    def _in_queues(self) -> None:
        """Within a message group, a message answered before another was sent has the smaller offset."""
        lines: dict[tuple[str, str], list[_Message]] = {}
        for message in self._messages.values():
            if message.first.message_group and len(message.places) == 1:
                lines.setdefault((message.first.topic, message.first.message_group), []).append(message)
        for (topic, name), messages in lines.items():
            behind: _Message | None = None  # of all later offsets, the message answered first
            for message in sorted(messages, key=lambda each: next(iter(each.places)), reverse=True):
                if behind is not None and behind.acknowledged is not None and behind.acknowledged < message.order:
                    ids = f"{message.first.message_id} lies before {behind.first.message_id}"
                    self.findings.found(Fault.ORDER, f"message group {name} of {topic}: {ids}, and was sent after it")
                earliest = behind.acknowledged if behind is not None else None
                if message.acknowledged is not None and (earliest is None or message.acknowledged < earliest):
                    behind = message
