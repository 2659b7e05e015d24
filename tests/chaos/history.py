"""What producers and consumers saw of a broker, and what it must never do.

A history is a list of events in the order in which one event loop saw them: an event that stands before another one
happened before it, whatever the clocks say. `check` is a pure function of it. It knows nothing of how the history came
into being, so it is tested with histories that are made by hand (test_history.py).

`at_ms` is always the time of the clock of those who watch, which never jumps, in Unix milliseconds. The clock of the
broker may: it is that one plus the offset of the latest `ClockSet`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

_CLOCK_MS: Final = 50  # what two looks at one clock may differ by; a jump of the broker's takes effect about so fast

Place = tuple[int, int]
"""Queue id and queue offset."""


class Kind(StrEnum):
    """What was sent, and so what it has to go through before anybody may see it."""

    NORMAL = "normal"
    FIFO = "fifo"
    DELAYED = "delayed"
    TRANSACTIONAL = "transactional"
    PRIORITY = "priority"
    LITE = "lite"


class Outcome(StrEnum):
    """What becomes of a transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"


# --- Events -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A consumer group gets all that is sent to a topic from now on. `ordered`: one after the other."""

    topic: str
    group: str
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Attempted:
    """A send began. Several of one id: the producer tried again, which is allowed to store it several times."""

    at_ms: int
    message_id: str
    topic: str
    kind: Kind = Kind.NORMAL
    message_group: str = ""
    deliver_at_ms: int = 0  # a delayed message's
    outcome: Outcome = Outcome.COMMIT  # what its producer has decided of a transactional message, told or not


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A send was answered with OK. Without it a message may have been stored, or not."""

    at_ms: int
    message_id: str


@dataclass(frozen=True, slots=True)
class DecisionAttempted:
    """A producer began to tell the outcome of a transaction."""

    at_ms: int
    message_id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RecallAttempted:
    """A producer began to take a delayed message back."""

    at_ms: int
    message_id: str


@dataclass(frozen=True, slots=True)
class RecallAcknowledged:
    """And that was answered with OK."""

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
    call: int  # the number of the receive, which brought others, too
    called_ms: int = 0  # when that began
    hidden_ms: int | None = 0  # from then on at least; None: as long as the client lives
    client: str = ""


@dataclass(frozen=True, slots=True)
class ConsumeAttempted:
    """A group began to acknowledge that it has consumed a message."""

    at_ms: int
    group: str
    message_id: str
    place: Place


@dataclass(frozen=True, slots=True)
class Consumed:
    """And that was answered with OK; `attempt` is that of the delivery which was acknowledged."""

    at_ms: int
    group: str
    message_id: str
    place: Place
    attempt: int


@dataclass(frozen=True, slots=True)
class GivenBack:
    """A group began to give a message back before its time."""

    at_ms: int
    group: str
    message_id: str
    place: Place


@dataclass(frozen=True, slots=True)
class AskedAgain:
    """A client asks once more for the answer of a receive that it did not get whole."""

    at_ms: int
    client: str


@dataclass(frozen=True, slots=True)
class ClientGone:
    """A client says goodbye."""

    at_ms: int
    client: str


@dataclass(frozen=True, slots=True)
class Read:
    """Somebody who leaves no trace found a message in its place, by pulling."""

    at_ms: int
    topic: str
    message_id: str
    place: Place


@dataclass(frozen=True, slots=True)
class ClockSet:
    """The broker's clock is about to be so many milliseconds ahead of the true one, from now on."""

    at_ms: int
    offset_ms: int


@dataclass(frozen=True, slots=True)
class Disturbed:
    """Something was done to the broker: `what` is killed, paused, cut or so."""

    at_ms: int
    what: str


@dataclass(frozen=True, slots=True)
class Wrong:
    """What a worker saw by itself: a body that is not what was sent, an answer that is no answer."""

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
    """What must never happen."""

    LOST = "lost"  # acknowledged, and a group never got it, or nobody finds it in its queue
    EARLY = "early"  # before its delivery time, or while it was still hidden
    HALF_VISIBLE = "half visible"  # a transaction that was rolled back, or that nobody had committed
    ORDER = "order broken"
    DUPLICATE = "unexplained duplicate"
    STORED_AGAIN = "stored again"  # more often than it was sent
    RECALLED = "recalled, delivered"
    UNKNOWN = "never sent"
    WRONG = "wrong answer"


@dataclass(slots=True)
class Findings:
    """What a history has in it, and what is wrong with that."""

    counts: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)  # by explanation
    disturbances: Counter[str] = field(default_factory=Counter)
    faults: Counter[Fault] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)  # what exactly; not more than anybody would read

    def found(self, fault: Fault, text: str) -> None:
        self.faults[fault] += 1
        if len(self.lines) < 60:
            self.lines.append(f"{fault}: {text}")

    def table(self) -> str:
        """All of it, for people."""
        rows: list[tuple[str, int]] = [*self.counts.items()]
        rows += [(f"duplicate: {why}", count) for why, count in sorted(self.duplicates.items())]
        rows += [(what, count) for what, count in sorted(self.disturbances.items())]
        rows += [(str(fault), self.faults[fault]) for fault in Fault]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {count:>9,}" for name, count in rows)


def check(history: Sequence[Event]) -> Findings:
    """What a whole run says of the broker: after it, all that was left was consumed, and every queue was read."""
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
    """What one group has seen of one message in one place."""

    last: Delivered
    consuming: bool = False  # an acknowledgement was sent since it came last
    ever_consuming: bool = False
    consumed_attempt: int | None = None
    given_back: bool = False
    gone: str = ""  # why the message is not its client's any more


@dataclass(slots=True)
class _Line:
    """The messages of one message group that one consumer group has got, in the order of their offsets."""

    offsets: list[int] = field(default_factory=list)
    by_offset: dict[int, tuple[str, set[int]]] = field(default_factory=dict)  # message id, calls that brought it
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
        self._held: dict[str, set[tuple[str, str, Place]]] = {}  # by client: what it has for as long as it lives
        self._clocks: list[tuple[int, int]] = [(0, 0)]  # since when, offset
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
        """Whether a message may be in its queue now, for anybody."""
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
        """The message, unless nobody sent it there. Counts its places."""
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
        """Every delivery after the first needs a reason, and the first one that holds is it."""
        last = taken.last
        if taken.consumed_attempt is not None and event.attempt > taken.consumed_attempt:
            self.findings.found(Fault.DUPLICATE, f"{what}: attempt {taken.consumed_attempt} was acknowledged with OK")
        elif event.attempt < last.attempt:
            self.findings.duplicates["an older delivery came late"] += 1
            return  # what is known of the newer one stays
        elif taken.consuming:
            # The broker may have it, or not: the answer never came, or said that it was too late.
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
            low, high = self._offsets(last.called_ms, event.at_ms)
            if event.at_ms + high + _CLOCK_MS >= last.called_ms + low + last.hidden_ms:
                self.findings.duplicates["the broker's clock jumped ahead"] += 1
            else:
                left = last.called_ms + last.hidden_ms - event.at_ms
                self.findings.found(Fault.EARLY, f"{what}: hidden for {left} ms more (since attempt {last.attempt})")
        taken.last, taken.consuming, taken.given_back, taken.gone = event, False, False, ""

    def _in_line(self, message: _Message, event: Delivered, what: str) -> None:
        """Nothing of a message group is delivered while something before it is not acknowledged."""
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
                break  # and so were those before it, or it has been told
        calls.add(event.call)

    def _offsets(self, from_ms: int, to_ms: int) -> tuple[int, int]:
        """The least and the greatest offset of the broker's clock in a time."""
        offsets = []
        for index, (since_ms, offset) in enumerate(self._clocks):
            until_ms = self._clocks[index + 1][0] if index + 1 < len(self._clocks) else to_ms
            if since_ms - _CLOCK_MS <= to_ms and until_ms + _CLOCK_MS >= from_ms:
                offsets.append(offset)
        return min(offsets), max(offsets)

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
        """Of a message group, what was answered before something was sent lies before it."""
        lines: dict[tuple[str, str], list[_Message]] = {}
        for message in self._messages.values():
            if message.first.message_group and len(message.places) == 1:
                lines.setdefault((message.first.topic, message.first.message_group), []).append(message)
        for (topic, name), messages in lines.items():
            behind: _Message | None = None  # the one that was answered first, of all behind
            for message in sorted(messages, key=lambda each: next(iter(each.places)), reverse=True):
                if behind is not None and behind.acknowledged is not None and behind.acknowledged < message.order:
                    ids = f"{message.first.message_id} lies before {behind.first.message_id}"
                    self.findings.found(Fault.ORDER, f"message group {name} of {topic}: {ids}, and was sent after it")
                earliest = behind.acknowledged if behind is not None else None
                if message.acknowledged is not None and (earliest is None or message.acknowledged < earliest):
                    behind = message
