"""What clients and operators do to the broker that serves them, as rules for a state machine with a model."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import ClassVar, Final

import hypothesis
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from aerobee_client import blocking
from aerobee_client.admin import Admin
from aerobee_client.errors import ClientError
from aerobee_client.testing import BrokerProcess
from aerobee_proto import v2
from aerobee_store.tools.backup import backup
from tests.model.calls import Calls
from tests.model.promises import Delivery, Kind, Promise, Promises, Sent

TOPICS: Final = {
    Kind.NORMAL: ("normal", v2.MessageType.NORMAL),
    Kind.FIFO: ("fifo", v2.MessageType.FIFO),
    Kind.DELAY: ("delay", v2.MessageType.DELAY),
    Kind.TRANSACTION: ("transaction", v2.MessageType.TRANSACTION),
    Kind.PRIORITY: ("priority", v2.MessageType.PRIORITY),
    Kind.LITE: ("lite", v2.MessageType.LITE),
}
GROUPS: Final = {
    "readers": "normal",
    "auditors": "normal",
    "careless": "normal",  # gives up after two attempts
    "ordered": "fifo",
    "hasty": "fifo",  # gives up after two attempts, too
    "patient": "delay",
    "settled": "transaction",
    "urgent": "priority",
    "lite-readers": "lite",
}
_IN_ORDER: Final = ("ordered", "hasty")
_ATTEMPTS: Final = {"careless": 2, "hasty": 2}
_POPPING: Final = ("readers", "careless", "patient", "settled", "urgent")
_BURYING: Final = ("readers", "careless", "careless", *_IN_ORDER)
_CHANGED: Final = "changed"  # a topic whose number of queues changes
_PULLERS: Final = "pullers"  # a group that only pulls, and commits offsets of the queues of _PULLED
_PULLED: Final = "priority"
_DAY: Final = 86_400
_LEVEL_SECONDS: Final = {0: 0, 1: 1, 5: 60, 18: 7200}
_DRAIN_SECONDS: Final = 60.0  # of real time


SEEDS: Final = st.integers(0, 1 << 64)


class ClientRules(RuleBasedStateMachine):
    """Calls to `broker`, which always serves between two rules. A subclass starts it, and says what happens to it.

    Rules have no preconditions: how far processes have come differs from run to run, and the choice of rules must not.
    """

    broker: BrokerProcess
    calls: Calls
    calls_between: ClassVar[int] = 5
    """How many calls clients make between two rules."""

    def prepare(self, seed: int) -> Path:
        """Begin without a broker; returns a directory for stores. `seed`: of the calls after each rule."""
        self._seed = seed
        self.directory = TemporaryDirectory(prefix="aerobee-model-", dir="/dev/shm")
        self.promises = Promises()
        self.history: list[str] = []
        self.numbers = itertools.count(1)
        self.held: dict[str, list[Delivery]] = {group: [] for group in GROUPS}
        self.popped: dict[str, list[Delivery]] = {group: [] for group in _POPPING}
        self.promises.setting.answered(10_000)
        self.promises.queue_count.answered(2)
        return Path(self.directory.name)

    def make_tables(self) -> None:
        """Make topics and groups, and give each group its position."""
        with blocking.connect(self.broker.endpoint) as client:
            for name, kind in TOPICS.values():
                self.make_topic(client, name, kind)
            for group, topic in GROUPS.items():
                fifo = group in _IN_ORDER
                attempts = _ATTEMPTS.get(group, 10_000)
                client.run(client.asynchronous.admin.create_group(group, fifo=fifo, max_attempts=attempts))
                self.promises.subscribe(group, topic, ordered=fifo, max_attempts=attempts)
            client.run(client.asynchronous.admin.create_group(_PULLERS))
            self.make_topic(client, _CHANGED, v2.MessageType.NORMAL)
        self.begin_positions()
        self.random = Random(self._seed)

    # --- Sends

    @rule(
        kind=st.sampled_from(list(Kind)),
        count=st.sampled_from([1, 1, 1, 3, 9]),
        delay=st.sampled_from([2, 60, 3 * _DAY]),
        choice=st.integers(0, 1),
    )
    def send(self, kind: Kind, count: int, delay: int, choice: int) -> None:
        self.note(f"send({kind.value!r}, {count!r}, {delay!r}, {choice!r})")
        if kind in (Kind.DELAY, Kind.TRANSACTION):
            count = 1
        self.calls.send(self.messages(kind, count, delay, choice), **_properties(kind, choice))

    @rule(
        kinds=st.lists(st.sampled_from(list(Kind)), min_size=2, max_size=8),
        wait=st.floats(0, 0.02),
        delay=st.sampled_from([2, 60]),
        orderly=st.booleans(),
    )
    def send_and_end(self, kinds: list[Kind], wait: float, delay: int, orderly: bool) -> None:
        """Several sends and receives are in flight when the process dies, or is told to stop."""
        self.note(f"send_and_end({[kind.value for kind in kinds]!r}, {wait!r}, {orderly!r})")
        waiting = [
            (self.calls.begin_receive(group, GROUPS[group], count=4, hidden_seconds=30, wait_ms=20_000), group)
            for group in ("auditors", "urgent")
        ]
        batches = [(kind, self.messages(kind, 1, delay, number % 2)) for number, kind in enumerate(kinds)]
        for _, batch in batches:
            batch[0].number = batches[0][1][0].number  # nobody promises an order of sends that are in flight together
        calls = [(self.calls.begin_send(batch, **_properties(kind, 0)), batch) for kind, batch in batches]
        time.sleep(wait)
        self._end(orderly=orderly)
        for call, batch in calls:
            self.calls.end_send(call, batch)
        for receive, group in waiting:
            self.held[group] += self.calls.end_receive(receive, group)
        self.revive()

    @rule(count=st.integers(8, 30))
    def send_in_bulk(self, count: int) -> None:
        self.note(f"send_in_bulk({count!r})")
        self.calls.send_in_bulk(self.messages(Kind.NORMAL, count, 0, 0))

    @rule(level=st.sampled_from([0, 1, 5, 18]))
    def send_over_remoting(self, level: int) -> None:
        """`level` is a delay level; 0: none."""
        self.note(f"send_over_remoting({level!r})")
        kind = Kind.DELAY if level else Kind.NORMAL
        for sent in self.messages(kind, 1, _LEVEL_SECONDS[level], 0):
            sent.level_ms = _LEVEL_SECONDS[level] * 1000
            self.calls.send_over_remoting(sent, level=level)

    @rule(commit=st.booleans(), which=st.integers(0, 100))
    def decide(self, commit: bool, which: int) -> None:
        self.note(f"decide({commit!r})")
        open_ones = [
            sent
            for sent in self.promises.sent.values()
            if sent.kind is Kind.TRANSACTION
            and Promise.NO is sent.committed is sent.rolled_back
            and sent.stored is Promise.YES
        ]
        if open_ones:
            self.calls.decide(open_ones[which % len(open_ones)], commit=commit)

    @rule(which=st.integers(0, 100))
    def recall(self, which: int) -> None:
        self.note("recall")
        waiting = [
            sent
            for sent in self.promises.sent.values()
            if sent.recall_handle and sent.recalled is Promise.NO and sent.due_ms > self.broker.now_ms() + 5000
        ]
        if waiting:
            self.calls.recall(waiting[which % len(waiting)])

    # --- Consumers

    @rule(
        group=st.sampled_from(list(GROUPS)), count=st.sampled_from([1, 4, 32]), hidden=st.sampled_from([10, 60, 3600])
    )
    def receive(self, group: str, count: int, hidden: int) -> None:
        self.note(f"receive({group!r}, {count!r}, {hidden!r})")
        self.held[group] += self.receive_now(group, count, hidden)

    @rule(group=st.sampled_from(list(GROUPS)), part=st.sampled_from([1, 3, 100]))
    def acknowledge(self, group: str, part: int) -> None:
        self.note(f"acknowledge({group!r}, {part!r})")
        done, self.held[group] = self.held[group][:part], self.held[group][part:]
        self.calls.acknowledge(group, GROUPS[group], done)

    @rule(group=st.sampled_from(list(GROUPS)), orderly=st.booleans())
    def acknowledge_and_end(self, group: str, orderly: bool) -> None:
        self.note(f"acknowledge_and_end({group!r}, {orderly!r})")
        done, self.held[group] = self.held[group], []
        self.calls.acknowledge(group, GROUPS[group], done)
        self._end(orderly=orderly)
        self.revive()

    @rule(group=st.sampled_from(_POPPING), count=st.sampled_from([1, 4, 32]), hidden=st.sampled_from([10, 60, 3600]))
    def pop(self, group: str, count: int, hidden: int) -> None:
        """Receive by POP of RocketMQ's older protocol what others receive by gRPC."""
        self.note(f"pop({group!r}, {count!r}, {hidden!r})")
        self.look_at_clock()
        until_ms = self.broker.now_ms() + hidden * 1000
        found = self.calls.pop(group, GROUPS[group], count=count, hidden_seconds=hidden)
        self.look_at_clock()
        self._hide(group, found, until_ms)
        self.popped[group] += found

    @rule(group=st.sampled_from(_POPPING), part=st.sampled_from([1, 3, 100]))
    def acknowledge_popped(self, group: str, part: int) -> None:
        self.note(f"acknowledge_popped({group!r}, {part!r})")
        done, self.popped[group] = self.popped[group][:part], self.popped[group][part:]
        self.calls.acknowledge_popped(group, GROUPS[group], done)

    @rule(group=st.sampled_from(_POPPING), seconds=st.sampled_from([0, 30]))
    def hide_popped(self, group: str, seconds: int) -> None:
        self.note(f"hide_popped({group!r}, {seconds!r})")
        if self.popped[group]:
            delivery = self.popped[group].pop(0)
            self.promises.hidden(group, delivery.message_id, 0)
            self.calls.hide_popped(group, GROUPS[group], delivery, seconds)

    @rule(group=st.sampled_from(_BURYING))
    def bury(self, group: str) -> None:
        """Move a message to the dead letters."""
        self.note(f"bury({group!r})")
        if self.held[group]:
            self.calls.bury(group, GROUPS[group], self.held[group].pop(0))

    @rule(which=st.integers(0, 100))
    def delete_letter(self, which: int) -> None:
        self.note(f"delete_letter({which!r})")
        letters = self._letters("careless")
        if not letters:
            return
        message_id, offset = letters[which % len(letters)]
        if ("careless", message_id) in self.promises.letters:
            self.promises.letters["careless", message_id].attempted(0)
        done = self.calls.administer(lambda admin: admin.delete_dead_letters("careless", [offset]))
        if done is not None and ("careless", message_id) in self.promises.letters:
            self.promises.letters["careless", message_id].answered(0)

    @rule(which=st.integers(0, 100))
    def resend_letter(self, which: int) -> None:
        self.note(f"resend_letter({which!r})")
        letters = [each for each in self._letters("careless") if self.promises.may_be_resent(each[0])]
        if not letters:
            return
        message_id, offset = letters[which % len(letters)]
        self.promises.resent("careless", message_id, Promise.PERHAPS)
        for held in (self.held, self.popped):  # a handle of the first message does not finish the second one
            held["careless"] = [each for each in held["careless"] if each.message_id != message_id]
        results = self.calls.administer(lambda admin: admin.resend_dead_letters("careless", [offset]))
        if results is not None and results[0].status.code == v2.Code.OK:
            self.promises.resent("careless", message_id, Promise.YES)

    @rule(kind=st.sampled_from([Kind.NORMAL, Kind.FIFO, Kind.PRIORITY, Kind.DELAY, Kind.TRANSACTION]))
    def read(self, kind: Kind) -> None:
        """Read a topic by offset: by pull, and in bulk."""
        self.note(f"read({kind.value!r})")
        topic, _ = TOPICS[kind]
        self.look_at_clock()
        self.promises.read(topic, set().union(*(self.calls.pull("auditors", topic, queue_id) for queue_id in range(2))))
        if (found := self.calls.read_records(topic)) is not None:
            self.promises.read(topic, found)

    @rule(group=st.sampled_from(list(GROUPS)), seconds=st.sampled_from([0, 30]))
    def renew_or_give_back(self, group: str, seconds: int) -> None:
        self.note(f"renew_or_give_back({group!r}, {seconds!r})")
        if self.held[group]:
            delivery = self.held[group].pop(0)
            self.promises.hidden(group, delivery.message_id, 0)
            until_ms = self.broker.now_ms() + seconds * 1000
            handle = self.calls.renew(group, GROUPS[group], delivery, seconds)
            if handle and seconds:
                self._hide(group, [delivery], until_ms)
                self.held[group].append(replace(delivery, handle=handle))

    @rule(group=st.sampled_from(["readers", "ordered"]))
    def reset(self, group: str) -> None:
        self.note(f"reset({group!r})")
        self.promises.reset(group, Promise.PERHAPS)
        try:
            with blocking.connect(self.broker.endpoint, retry_seconds=0) as client:
                client.run(client.asynchronous.admin.reset_offsets(group, GROUPS[group], earliest=True))
        except ClientError:
            return
        self.promises.reset(group, Promise.YES)
        self._forget_held_of(group)

    @rule(queue_id=st.integers(0, 1), part=st.sampled_from([0.0, 0.3, 1.0]), is_killed=st.booleans())
    def commit_offset(self, queue_id: int, part: float, is_killed: bool) -> None:
        """Forwards or back. `is_killed`: right after the answer."""
        self.note(f"commit_offset({queue_id!r}, {part!r}, {is_killed!r})")
        self.calls.look_at_offset(_PULLERS, _PULLED, queue_id)
        end = self.calls.queue_end(_PULLED, queue_id)
        if end is not None:
            self.calls.commit(_PULLERS, _PULLED, queue_id, round(end * part))
        if is_killed:
            self.broker.kill()
            self.revive()
            self.calls.look_at_offset(_PULLERS, _PULLED, queue_id)

    @rule(attempts=st.integers(2, 16))
    def change_group(self, attempts: int) -> None:
        """An administrator's change that is answered holds after any restart."""
        self.note(f"change_group({attempts!r})")
        with blocking.connect(self.broker.endpoint) as client:
            client.run(client.asynchronous.admin.update_group("auditors", max_attempts=9_000 + attempts))
        self.promises.setting.answered(9_000 + attempts)

    @rule(count=st.integers(2, 16))
    def change_topic(self, count: int) -> None:
        """So does a change of a topic."""
        self.note(f"change_topic({count!r})")
        self.promises.queue_count.attempted(count)
        done = self.calls.administer(lambda admin: admin.update_topic(_CHANGED, queue_count=count))
        if done is not None:
            self.promises.queue_count.answered(count)

    @rule(attempts=st.integers(2, 16), queue_id=st.integers(0, 1))
    def no_table_is_saved(self, attempts: int, queue_id: int) -> None:
        """The tables cannot be saved for a while, at which the broker may end; then it is killed."""
        self.note(f"no_table_is_saved({attempts!r}, {queue_id!r})")
        tables = self.broker.store / "config"
        tables.rename(tables.with_name("away"))
        tables.touch()
        self.promises.setting.attempted(9_000 + attempts)
        if self.calls.administer(lambda admin: admin.update_group("auditors", max_attempts=9_000 + attempts)):
            self.promises.setting.answered(9_000 + attempts)
        self.calls.commit(_PULLERS, _PULLED, queue_id, 0)
        for kind in (Kind.NORMAL, Kind.DELAY, Kind.TRANSACTION):
            self.calls.send(self.messages(kind, 1, 2, 0))
        self.broker.kill()
        tables.unlink()
        tables.with_name("away").rename(tables)
        self.revive()

    @rule(kind=st.sampled_from(list(Kind)))
    def delete_topic_and_make_it_again(self, kind: Kind) -> None:
        if not self.takes_changes:
            return
        self.note(f"delete_topic_and_make_it_again({kind.value!r})")
        name, message_type = TOPICS[kind]
        with blocking.connect(self.broker.endpoint) as client:
            client.run(client.asynchronous.admin.delete_topic(name))
            self.promises.topic_deleted(name)
            self.make_topic(client, name, message_type)
        self._forget_held(name)
        self.begin_positions()

    @rule(kind=st.sampled_from([Kind.NORMAL, Kind.FIFO, Kind.DELAY, Kind.TRANSACTION]))
    def purge_topic(self, kind: Kind) -> None:
        self.note(f"purge_topic({kind.value!r})")
        name, _ = TOPICS[kind]
        done = self.calls.administer(lambda admin: admin.purge_topic(name))
        self.promises.purged(name, Promise.PERHAPS if done is None else Promise.YES)
        self._forget_held(name)

    @invariant()
    def nothing_contradicts(self) -> None:
        if hasattr(self, "promises"):
            assert not self.promises.violations, "\n".join([*self.promises.violations, *self.history])

    @invariant()
    def clients_work(self) -> None:
        """Some calls after each rule, so that there is something to lose when something happens to the broker."""
        if not hasattr(self, "random"):
            return
        random = self.random
        for _ in range(self.calls_between):
            kind, group = random.choice(list(Kind)), random.choice(list(GROUPS))
            popping, which = random.choice(_POPPING), random.randrange(100)
            match random.randrange(20):
                case 0 | 1 | 2 | 3:
                    self.send(kind, random.choice([1, 1, 3, 9]), random.choice([2, 60, 3 * _DAY]), random.randrange(2))
                case 4:
                    self.send_over_remoting(random.choice(list(_LEVEL_SECONDS)))
                case 5:
                    self.send_in_bulk(8 + which % 8)
                case 6 | 7 | 8:
                    self.receive(group, random.choice([1, 4, 32]), random.choice([10, 60, 3600]))
                case 9 | 10:
                    self.acknowledge(group, random.choice([1, 3, 100]))
                case 11:
                    self.renew_or_give_back(group, random.choice([0, 30]))
                case 12:
                    self.pop(popping, random.choice([1, 4, 32]), random.choice([10, 60, 3600]))
                case 13:
                    self.acknowledge_popped(popping, random.choice([1, 3, 100]))
                case 14:
                    self.hide_popped(popping, random.choice([0, 30]))
                case 15 | 16:
                    self.decide(random.choice([True, True, False]), which)
                case 17:
                    self.recall(which)
                case 18:
                    self.bury(random.choice(_BURYING))
                case _:
                    random.choice((self.delete_letter, self.resend_letter))(which)
            self.nothing_contradicts()

    # --- What they share

    @property
    def takes_changes(self) -> bool:
        """Whether an operator's change of topics is answered."""
        raise NotImplementedError

    def _forget_held(self, topic: str) -> None:
        for group in GROUPS:
            if GROUPS[group] == topic:
                self._forget_held_of(group)

    def _forget_held_of(self, group: str) -> None:
        self.held[group] = []
        if group in self.popped:
            self.popped[group] = []

    def _hide(self, group: str, deliveries: Sequence[Delivery], until_ms: float) -> None:
        for delivery in deliveries:
            self.promises.hidden(group, delivery.message_id, round(until_ms))

    def _end(self, *, orderly: bool) -> None:
        if orderly:
            assert self.broker.stop() == 0, self.broker.log_text()[-3000:]
        else:
            self.broker.kill()

    def _restore_backup(self, *, is_running: bool) -> None:
        """Make a backup, lose the store, and serve the backup."""
        target = Path(self.directory.name) / "backup"
        if not is_running:
            self._end(orderly=True)
        backup(self.broker.store, target)
        self.broker.kill()
        shutil.rmtree(self.broker.store)
        target.rename(self.broker.store)
        self.revive()

    def note(self, step: str) -> None:
        sent = next(reversed(self.promises.sent), "nothing")
        self.history.append(f"  {self.broker.now_ms()} after {sent}: {step}")

    def revive(self) -> None:
        """Let a broker serve again after the death of `broker`."""
        raise NotImplementedError

    def heal(self) -> None:
        """Let a broker serve that takes messages."""
        raise NotImplementedError

    def advance(self, seconds: float) -> None:
        """Move the time of all brokers."""
        self.broker.advance(seconds)
        self.look_at_clock()

    def connect(self) -> None:
        """Call `broker` from now on."""
        self.calls.close()
        self.calls = Calls(self.broker.endpoint, self.promises)
        self.look_at_clock()

    def look_at_clock(self) -> None:
        self.promises.clock(self.broker.now_ms())

    def make_topic(self, client: blocking.BlockingClient, name: str, kind: v2.MessageType.ValueType) -> None:
        client.run(client.asynchronous.admin.create_topic(name, queue_count=2, message_types=(kind,)))

    def begin_positions(self) -> None:
        """A first receive gives each group its position: at the first message."""
        for group in GROUPS:
            self.receive_now(group, 1, 10)

    def messages(self, kind: Kind, count: int, delay: int, choice: int) -> list[Sent]:
        topic, _ = TOPICS[kind]
        now = self.broker.now_ms()
        return [
            self.promises.attempt(
                f"m{next(self.numbers):06}",
                kind,
                topic,
                message_group=f"g{choice}" if kind is Kind.FIFO else "",
                due_ms=now + delay * 1000 if kind is Kind.DELAY else 0,
            )
            for _ in range(count)
        ]

    def receive_now(self, group: str, count: int, hidden: int) -> list[Delivery]:
        topic = GROUPS[group]
        if topic == "lite":
            self.calls.subscribe_lite(topic, group)
        self.look_at_clock()
        until_ms = self.broker.now_ms() + hidden * 1000
        received = self.calls.receive(group, topic, count=count, hidden_seconds=hidden)
        self.look_at_clock()
        self._hide(group, received, until_ms)
        return received

    def everything_arrives(self) -> None:
        """What was promised arrives when the disk has space, everything is due, and consumers finish what they get."""
        self.heal()
        latest = max((sent.due_ms for sent in self.promises.sent.values()), default=0)
        self.advance(max((latest - self.broker.now_ms()) / 1000, 0) + 4 * 3600)
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            moved = False
            for group, topic in GROUPS.items():
                while received := self.receive_now(group, 32, 600):
                    self.calls.acknowledge(group, topic, received)
                    moved = True
                    self.nothing_contradicts()
            if not any(self.promises.missing(group) for group in GROUPS):
                break
            if not moved:
                time.sleep(0.1)
                self.advance(900)
        for queue_id in range(2):
            self.calls.look_at_offset(_PULLERS, _PULLED, queue_id)
        self.nothing_contradicts()
        for group in GROUPS:
            self._letters(group)
        for kind in (Kind.NORMAL, Kind.FIFO, Kind.PRIORITY):
            self.read(kind)
        self.nothing_contradicts()
        with blocking.connect(self.broker.endpoint) as client:
            self._queries_find(client)
            described = client.run(client.asynchronous.admin.describe_group("auditors"))
            assert described.group.max_attempts in self.promises.setting.possible, described
            changed = client.run(client.asynchronous.admin.describe_topic(_CHANGED)).topic.read_queue_count
            assert changed in self.promises.queue_count.possible, (changed, *self.history)
        for group in GROUPS:
            missing = self.promises.missing(group)
            what = f"{group} never got {len(missing)} messages: {missing[:3]}"
            assert not missing, "\n".join([what, *self.history, self.broker.log_text()[-2000:]])

    def _letters(self, group: str) -> list[tuple[str, int]]:
        """The dead letters of a group, with their offsets; judges them."""

        async def letters(admin: Admin) -> list[tuple[str, int]]:
            return [(letter.origin_message_id, letter.offset) async for letter in admin.dead_letters(group)]

        found = self.calls.administer(letters)
        if found is None:
            return []
        self.promises.listed(group, {message_id for message_id, _ in found})
        return found

    def _queries_find(self, client: blocking.BlockingClient) -> None:
        """The last answered messages are found by their id."""

        async def count(sent: Sent) -> int:
            found = client.asynchronous.admin.query(sent.topic, message_id=sent.message_id)
            return len([message async for message in found])

        resent = self.promises.groups["careless"].resent
        for sent in [sent for sent in self.promises.stored() if sent.kind is Kind.NORMAL][-5:]:
            found = client.run(count(sent))
            assert found == 1 or (found and sent.message_id in resent), "\n".join(
                [f"a query does not find {sent}", *self.history]
            )


def _properties(kind: Kind, choice: int) -> dict[str, int]:
    match kind:
        case Kind.PRIORITY:
            return {"priority": choice * 7}
        case Kind.LITE:
            return {"lite_topic": choice}
        case _:
            return {}


def explore(machine: type[ClientRules], *, examples: int, steps: int) -> None:
    """Let the machine run; `make test-random` sets how many examples."""
    run_state_machine_as_test(
        machine,
        # A killed process does not repeat itself to the millisecond: a failure prints its history, and is not shrunk.
        settings=hypothesis.settings(
            max_examples=int(os.environ.get("AEROBEE_MODEL_EXAMPLES", examples)),
            stateful_step_count=int(os.environ.get("AEROBEE_MODEL_STEPS", steps)),
            phases=(Phase.explicit, Phase.generate),
        ),
    )
