"""What clients were promised, as one small model in memory, and what contradicts it.

    sent      An answered send is delivered to each group at least once, one that was refused never.
    finished  A message whose acknowledgement was answered with OK is never delivered to that group again, unless the
              group is reset.
    early     No delayed message comes before its time, no half message before its commit, and none that was recalled
              or rolled back.
    order     A message of a message group comes only when all earlier ones of it are finished, or before it in the
              same answer.
    doubled   A message is stored once.
    attempts  Each delivery of a message to a group has a higher attempt than the one before.
    hidden    A message is not delivered again before its invisible time is over.
    dead      A message that a group did not finish in all its attempts is one of its dead letters. One that a consumer
              has moved there, with an answer, is not delivered to the group again, and is seen until an operator
              deletes it. One that is sent again comes again, to this group alone.
    read      Readers by offset find all messages of a topic, and none that was refused, deleted, recalled or early.
    kept      A setting, or the offset that a group has committed, is the last one that was answered. A replica that
              takes over may have an earlier one, back to the last copy of the tables.
    deleted   A message of a deleted topic is not delivered from a topic of the same name that was made afterwards, and
              a purged message is not delivered at all. One that waits in a system topic, delayed or as a half message,
              may arrive there, as in RocketMQ.

`Promise.PERHAPS` is what a call may have done whose answer did not come.

Two brokers: `copied` says that the replica has everything, `taken_over` that it serves now. What was answered only
after a replica had it holds as before. What the replica may lack is in doubt, and comes back to what it was, or does
not. Attempts count on from those that the replica has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from typing import Final


class Promise(Enum):
    """What the answer to a call has promised about its effect."""

    YES = "yes"
    PERHAPS = "perhaps"
    NO = "no"


class Kind(Enum):
    """How a message is sent, and so what applies to it."""

    NORMAL = "normal"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTION = "transaction"
    PRIORITY = "priority"
    LITE = "lite"


_WAITS_ELSEWHERE = frozenset((Kind.DELAY, Kind.TRANSACTION))


@dataclass(slots=True)
class Sent:
    """One message that somebody tried to send."""

    message_id: str
    kind: Kind
    topic: str
    incarnation: int  # of the topic
    number: int  # the order of sends
    message_group: str = ""
    due_ms: int = 0
    level_ms: int = 0  # its delay counts again when the clock goes back
    stored: Promise = Promise.PERHAPS
    committed: Promise = Promise.NO  # of a transaction
    rolled_back: Promise = Promise.NO
    recalled: Promise = Promise.NO
    transaction_id: str = ""
    recall_handle: str = ""

    def doubt(self, copied: Sent | None) -> None:
        """A broker serves that may know of this message only what is `copied`."""
        if self.stored is Promise.YES and (copied is None or copied.stored is not Promise.YES):
            self.stored = Promise.PERHAPS
        for name in ("committed", "rolled_back", "recalled"):
            if getattr(self, name) is Promise.YES and (copied is None or getattr(copied, name) is not Promise.YES):
                setattr(self, name, Promise.PERHAPS)

    @property
    def must_arrive(self) -> bool:
        """Whether each group of its topic must get it."""
        if self.stored is not Promise.YES or self.recalled is not Promise.NO:
            return False
        return self.kind is not Kind.TRANSACTION or self.committed is Promise.YES


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message in the answer to a receive."""

    message_id: str
    queue_id: int
    queue_offset: int
    handle: str
    body: bytes
    attempt: int


@dataclass(slots=True)
class GroupState:
    """What one group has of its topic."""

    name: str
    topic: str
    ordered: bool = False
    max_attempts: int = 10_000
    delivered: set[str] = field(default_factory=set)
    finished: dict[str, Promise] = field(default_factory=dict)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    spent: set[str] = field(default_factory=set)  # messages that were delivered for the last time
    resent: set[str] = field(default_factory=set)  # dead letters that an operator has sent again
    hidden_until_ms: dict[str, int] = field(default_factory=dict)


class Kept:
    """A value that calls set: those that it may have, and those that a replica may have."""

    def __init__(self, value: int) -> None:
        self.possible = {value}
        self._copied = {value}

    def attempted(self, value: int) -> None:
        """A call that sets it begins."""
        self.possible.add(value)
        self._copied.add(value)

    def answered(self, value: int) -> None:
        """The call was answered with OK."""
        self.attempted(value)
        self.possible = {value}

    def copied(self) -> None:
        """The replica has what this broker has."""
        self._copied = set(self.possible)

    def taken_over(self) -> None:
        """The replica serves now."""
        self.possible |= self._copied


NO_OFFSET: Final = -1
"""The offset of a group that has committed none."""


@dataclass(frozen=True, slots=True)
class _Copied:
    """What a replica is known to have."""

    sent: dict[str, Sent] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=dict)
    incarnations: dict[str, int] = field(default_factory=dict)


class Promises:
    """The model. Its methods record calls and their answers; `violations` collects what contradicts a promise."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.groups: dict[str, GroupState] = {}
        self.violations: list[str] = []
        self.latest_ms = 0  # the latest time that the broker's clock has shown
        self.now_ms = 0  # what it showed last
        self._incarnations: dict[str, int] = {}
        self._returned: dict[str, int] = {}  # the oldest incarnation of a topic that a promotion may have brought back
        self._copied = _Copied()
        self.setting = Kept(0)
        """A setting of a group that an operator changes."""
        self.queue_count = Kept(0)
        """A setting of a topic that an operator changes."""
        self.letters: dict[tuple[str, str], Kept] = {}
        """Group and message -> whether it is one of the dead letters: 1 or 0."""
        self.offsets: dict[tuple[str, int], Kept] = {}
        """Topic and queue -> what a group that only pulls has committed there."""

    def offset_of(self, topic: str, queue_id: int) -> Kept:
        """What the pulling group has committed."""
        return self.offsets.setdefault((topic, queue_id), Kept(NO_OFFSET))

    def committed(self, topic: str, queue_id: int, offset: int) -> None:
        """The pulling group was told that it has committed this offset."""
        possible = self.offset_of(topic, queue_id).possible
        if offset not in possible:
            self.violations.append(f"{topic}/{queue_id}: offset {offset} is committed, not {sorted(possible)}")

    def subscribe(self, group: str, topic: str, *, ordered: bool = False, max_attempts: int = 10_000) -> None:
        """`group` consumes `topic` from its first message on."""
        self.groups[group] = GroupState(group, topic, ordered, max_attempts)

    def clock(self, now_ms: int) -> None:
        """The broker's clock shows this. A clock that went back ends what is known of invisible times."""
        if now_ms < self.now_ms:
            for state in self.groups.values():
                state.hidden_until_ms.clear()
            for sent in self.sent.values():
                if sent.level_ms:
                    sent.due_ms = min(sent.due_ms, now_ms + sent.level_ms)
        self.now_ms = now_ms
        self.latest_ms = max(self.latest_ms, now_ms)

    def hidden(self, group: str, message_id: str, until_ms: int) -> None:
        """The group has this message, or asked for more time, until then; 0: it gave the message back."""
        self.groups[group].hidden_until_ms[message_id] = until_ms

    def attempt(self, message_id: str, kind: Kind, topic: str, *, message_group: str = "", due_ms: int = 0) -> Sent:
        """A send begins."""
        sent = Sent(
            message_id,
            kind,
            topic,
            self._incarnations.get(topic, 0),
            len(self.sent),
            message_group=message_group,
            due_ms=due_ms,
        )
        self.sent[message_id] = sent
        return sent

    def topic_deleted(self, topic: str) -> None:
        """The deletion of a topic was answered; the topic may be made again."""
        self._incarnations[topic] = self._incarnations.get(topic, 0) + 1
        self._returned.pop(topic, None)
        for (name, _), kept in self.offsets.items():
            if name == topic:
                kept.answered(NO_OFFSET)

    def purged(self, topic: str, promise: Promise) -> None:
        """A purge of a topic was answered with OK, or without an answer: its messages are gone, or some are."""
        if promise is Promise.YES:
            self.topic_deleted(topic)
        for sent in self.sent.values():
            if sent.topic == topic and sent.stored is Promise.YES:
                sent.stored = Promise.PERHAPS

    def delivered(self, group: str, deliveries: Sequence[Delivery]) -> None:
        """A receive of `group` was answered with these messages, in this order."""
        state = self.groups[group]
        here: set[str] = set()
        for delivery in deliveries:
            self._judge(state, delivery, here)
            here.add(delivery.message_id)
            state.delivered.add(delivery.message_id)

    def finished(self, group: str, message_ids: Iterable[str], promise: Promise) -> None:
        """An acknowledgement was answered with OK, or without an answer."""
        state = self.groups[group]
        for message_id in message_ids:
            if promise is Promise.YES or state.finished.get(message_id) is not Promise.YES:
                state.finished[message_id] = promise

    def reset(self, group: str, promise: Promise) -> None:
        """The group was sent back to the first message: all come again."""
        state = self.groups[group]
        if promise is Promise.YES:
            for known in (state.finished, state.delivered, state.attempts, state.hidden_until_ms):
                known.clear()
        else:
            state.finished = dict.fromkeys(state.finished, Promise.PERHAPS)
            state.attempts.clear()
            state.hidden_until_ms.clear()

    # --- A replica

    def copied(self) -> None:
        """The replica has all that was answered, and the tables."""
        self._copied = _Copied(deepcopy(self.sent), deepcopy(self.groups), dict(self._incarnations))
        for kept in self._kept():
            kept.copied()

    def replica_is_new(self) -> None:
        """The replica has begun with another store, of which nothing is known."""
        self._copied = _Copied()

    def taken_over(self, *, has_answered: bool) -> None:
        """The replica serves as the master; `has_answered`: with everything that was answered."""
        copied = self._copied
        for kept in self._kept():
            kept.taken_over()
        for topic, incarnation in self._incarnations.items():
            if (oldest := copied.incarnations.get(topic, 0)) < incarnation:
                self._returned[topic] = min(oldest, self._returned.get(topic, oldest))
        if not has_answered:
            for name, sent in self.sent.items():
                sent.doubt(copied.sent.get(name))
        for name, state in self.groups.items():
            before = copied.groups.get(name, GroupState(name, state.topic))
            state.hidden_until_ms.clear()
            state.attempts = dict(before.attempts)
            # A message that falls due, or is committed, is stored again by a broker that lacks this.
            moved = [each for each in state.places if self.sent[each].kind in _WAITS_ELSEWHERE]
            state.places = {each: place for each, place in state.places.items() if each not in moved} | {
                each: before.places[each] for each in moved if each in before.places
            }
            if not has_answered:
                state.finished = {
                    each: Promise.YES
                    if state.finished.get(each) is before.finished.get(each) is Promise.YES
                    else Promise.PERHAPS
                    for each in state.finished | before.finished
                }

    def _kept(self) -> Iterator[Kept]:
        yield from (self.setting, self.queue_count)
        yield from self.offsets.values()
        yield from self.letters.values()

    # --- Dead letters

    def buried(self, group: str, message_id: str, promise: Promise) -> None:
        """A consumer moves a message to the dead letters; NO: nothing has happened."""
        if promise is Promise.NO:
            return
        self.finished(group, [message_id], promise)
        if message_id in self.groups[group].resent:
            return
        letter = self.letters.setdefault((group, message_id), Kept(0))
        letter.attempted(1)
        if promise is Promise.YES:
            letter.answered(1)

    def listed(self, group: str, message_ids: set[str]) -> None:
        """These are the dead letters of the group."""
        for (owner, message_id), letter in self.letters.items():
            if owner == group and int(message_id in message_ids) not in letter.possible:
                what = "is seen again" if message_id in message_ids else "is gone"
                self.violations.append(f"the dead letter {message_id} of {group} {what}")
        self.finished(group, message_ids, Promise.PERHAPS)

    def may_be_resent(self, message_id: str) -> bool:
        """Whether its topic is the one that it was sent to."""
        sent = self.sent[message_id]
        return sent.incarnation == self._incarnations.get(sent.topic, 0) and sent.topic not in self._returned

    def resent(self, group: str, message_id: str, promise: Promise) -> None:
        """An operator sends a dead letter again; it may become one again, and is not judged as one any more."""
        state = self.groups[group]
        state.resent.add(message_id)
        self.letters.pop((group, message_id), None)
        if promise is Promise.YES:
            state.finished.pop(message_id, None)
        else:
            state.finished[message_id] = Promise.PERHAPS
        state.hidden_until_ms.pop(message_id, None)

    # --- Readers

    def read(self, topic: str, message_ids: set[str]) -> None:
        """A reader by offset has found these in all queues of a topic."""
        wanted = {
            sent.message_id for sent in self.stored() if sent.topic == topic and sent.kind not in _WAITS_ELSEWHERE
        }
        self.violations += [f"a reader of {topic} misses {name}" for name in sorted(wanted - message_ids)]
        for name in sorted(message_ids):
            sent = self.sent.get(name)
            if sent is None:
                self.violations.append(f"a reader of {topic} finds {name}, which nobody sent")
                continue
            self.violations += [
                f"a reader of {topic} finds {name}, {reason}: {sent}"
                for reason, is_true in self._never(sent).items()
                if is_true
            ]

    def stored(self) -> list[Sent]:
        """The messages that are in a topic which exists."""
        return [
            sent
            for sent in self.sent.values()
            if sent.must_arrive and sent.incarnation == self._incarnations.get(sent.topic, 0)
        ]

    def missing(self, group: str) -> list[Sent]:
        """The messages that the group must still get, or get again until it finishes them."""
        state = self.groups[group]
        return [sent for sent in self.stored() if sent.topic == state.topic and sent.message_id not in state.finished]

    def _judge(self, state: GroupState, delivery: Delivery, here: set[str]) -> None:
        sent = self.sent.get(delivery.message_id)
        name = f"{state.name} got {delivery.message_id} ({delivery.queue_id}, {delivery.queue_offset})"
        if sent is None:
            self.violations.append(f"{name}, which nobody sent")
            return
        if delivery.body != body_of(delivery.message_id):
            self.violations.append(f"{name} with another body: {delivery.body[:40]!r}")
        place = (delivery.queue_id, delivery.queue_offset)
        reasons = self._never(sent) | {
            "of another topic": sent.topic != state.topic,
            "which it had finished": state.finished.get(sent.message_id) is Promise.YES,
            f"as attempt {delivery.attempt} of {state.max_attempts}": delivery.attempt > state.max_attempts,
        }
        if is_one := sent.message_id not in state.resent:
            reasons |= {
                "twice in one answer": sent.message_id in here,
                f"as attempt {delivery.attempt} again": delivery.attempt <= state.attempts.get(sent.message_id, 0),
                "while it was invisible": self.now_ms < state.hidden_until_ms.get(sent.message_id, 0),
            }
        self.violations += [f"{name}, {reason}: {sent}" for reason, is_true in reasons.items() if is_true]
        state.attempts[sent.message_id] = delivery.attempt
        if delivery.attempt >= state.max_attempts:
            state.spent.add(sent.message_id)
        if is_one and state.places.setdefault(sent.message_id, place) != place:
            self.violations.append(f"{name}, stored twice: also at {state.places[sent.message_id]}")
        if state.ordered and sent.message_group:
            self._judge_order(state, sent, here, name)

    def _never(self, sent: Sent) -> dict[str, bool]:
        """The reasons for which no group and no reader may get a message."""
        return {
            "which was refused": sent.stored is Promise.NO,
            "of a deleted topic": sent.kind not in _WAITS_ELSEWHERE and sent.incarnation < self._oldest(sent.topic),
            "before its time": sent.due_ms > self.latest_ms,
            "which was recalled": sent.recalled is Promise.YES,
            "which was rolled back": sent.rolled_back is Promise.YES,
            "before its commit": sent.kind is Kind.TRANSACTION and sent.committed is Promise.NO,
        }

    def _oldest(self, topic: str) -> int:
        """The oldest incarnation of a topic whose messages may be delivered."""
        return self._returned.get(topic, self._incarnations.get(topic, 0))

    def _judge_order(self, state: GroupState, sent: Sent, here: set[str], name: str) -> None:
        for other in self.sent.values():
            if (
                other.number < sent.number
                and (other.topic, other.message_group) == (sent.topic, sent.message_group)
                and other.incarnation == sent.incarnation
                and other.stored is Promise.YES
                and other.message_id not in state.finished
                and other.message_id not in here
                and not self._may_be_dead(state, other)
            ):
                self.violations.append(f"{name} before {other.message_id} of the same message group")
                return

    def _may_be_dead(self, state: GroupState, sent: Sent) -> bool:
        """Whether its last attempt is over."""
        return sent.message_id in state.spent and self.now_ms >= state.hidden_until_ms.get(sent.message_id, 0)


def body_of(message_id: str) -> bytes:
    """The body of a message: one that no other message has."""
    return f"body of {message_id} ".encode() * (1 + sum(message_id.encode()) % 40)
