"""Features in every state that a broker can be in, against a small model of what clients were promised.

A real broker with movable time is killed, stopped, started with its clock elsewhere, with a full disk, and while calls
are in flight; topics are deleted and made again. At the end all that was promised must arrive. `make test-random`
explores with fresh seeds; AEROBEE_MODEL_EXAMPLES and AEROBEE_MODEL_STEPS set how far.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Final

import hypothesis
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aerobee_client import blocking
from aerobee_client.errors import ClientError
from aerobee_client.testing import BrokerProcess
from aerobee_proto import v2
from tests.model.calls import SETTINGS, Calls
from tests.model.promises import Delivery, Kind, Promise, Promises, Sent

EXAMPLES: Final = int(os.environ.get("AEROBEE_MODEL_EXAMPLES", "8"))
STEPS: Final = int(os.environ.get("AEROBEE_MODEL_STEPS", "40"))

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
    "patient": "delay",
    "settled": "transaction",
    "urgent": "priority",
    "lite-readers": "lite",
}
_DAY: Final = 86_400
_LEVEL_SECONDS: Final = {0: 0, 1: 1, 5: 60, 18: 7200}
_DRAIN_SECONDS: Final = 60.0  # of real time


class Crossings(RuleBasedStateMachine):
    """One broker and the model."""

    flush: ClassVar[str] = "sync"

    @initialize()
    def begin(self) -> None:
        self.directory = TemporaryDirectory(prefix="aerobee-model-", dir="/dev/shm")
        path = Path(self.directory.name)
        arguments = ("--dev", "--flush", self.flush)
        self.broker = BrokerProcess(path / "store", path / "log", arguments, settings=SETTINGS, moving_time=True)
        self.promises = Promises()
        self.history: list[str] = []
        self.numbers = itertools.count(1)
        self.held: dict[str, list[Delivery]] = {group: [] for group in GROUPS}
        self.is_full = False
        self.attempts_of_auditors = 10_000
        self.broker.start()
        self.calls = Calls(self.broker.endpoint, self.promises)
        with blocking.connect(self.broker.endpoint) as client:
            for name, kind in TOPICS.values():
                self._make_topic(client, name, kind)
            for group, topic in GROUPS.items():
                fifo = group == "ordered"
                attempts = 2 if group == "careless" else 10_000
                client.run(client.asynchronous.admin.create_group(group, fifo=fifo, max_attempts=attempts))
                self.promises.subscribe(group, topic, ordered=fifo, max_attempts=attempts)
        self._begin_positions()

    def teardown(self) -> None:
        if not hasattr(self, "calls"):
            return
        try:
            self._everything_arrives()
            assert self.broker.stop() == 0, self.broker.log_text()[-3000:]
        finally:
            self.calls.close()
            self.broker.kill()
            self.broker.close()
            self.directory.cleanup()

    # --- Sends

    @rule(
        kind=st.sampled_from(list(Kind)),
        count=st.sampled_from([1, 1, 1, 3, 9]),
        delay=st.sampled_from([2, 60, 3 * _DAY]),
        choice=st.integers(0, 1),
    )
    def send(self, kind: Kind, count: int, delay: int, choice: int) -> None:
        self._note(f"send({kind.value!r}, {count!r}, {delay!r}, {choice!r})")
        if kind in (Kind.DELAY, Kind.TRANSACTION):
            count = 1
        self.calls.send(self._messages(kind, count, delay, choice), **_properties(kind, choice))

    @rule(
        kinds=st.lists(st.sampled_from(list(Kind)), min_size=2, max_size=8),
        wait=st.floats(0, 0.02),
        delay=st.sampled_from([2, 60]),
    )
    def send_and_kill(self, kinds: list[Kind], wait: float, delay: int) -> None:
        """Several sends are in flight when the process dies."""
        self._note(f"send_and_kill({[kind.value for kind in kinds]!r}, {wait!r})")
        batches = [(kind, self._messages(kind, 1, delay, number % 2)) for number, kind in enumerate(kinds)]
        for _, batch in batches:
            batch[0].number = batches[0][1][0].number  # nobody promises an order of sends that are in flight together
        calls = [(self.calls.begin_send(batch, **_properties(kind, 0)), batch) for kind, batch in batches]
        time.sleep(wait)
        self.broker.kill()
        for call, batch in calls:
            self.calls.end_send(call, batch)
        self._start(0)

    @rule(count=st.integers(8, 30))
    def send_in_bulk(self, count: int) -> None:
        self._note(f"send_in_bulk({count!r})")
        self.calls.send_in_bulk(self._messages(Kind.NORMAL, count, 0, 0))

    @rule(level=st.sampled_from([0, 1, 5, 18]))
    def send_over_remoting(self, level: int) -> None:
        """`level` is a delay level; 0: none."""
        self._note(f"send_over_remoting({level!r})")
        kind = Kind.DELAY if level else Kind.NORMAL
        for sent in self._messages(kind, 1, _LEVEL_SECONDS[level], 0):
            sent.level_ms = _LEVEL_SECONDS[level] * 1000
            self.calls.send_over_remoting(sent, level=level)

    @rule(commit=st.booleans(), which=st.integers(0, 100))
    def decide(self, commit: bool, which: int) -> None:
        self._note(f"decide({commit!r})")
        open_ones = [
            sent
            for sent in self.promises.sent.values()
            if sent.transaction_id and Promise.NO is sent.committed is sent.rolled_back and self._is_current(sent)
        ]
        if open_ones:
            self.calls.decide(open_ones[which % len(open_ones)], commit=commit)

    @rule(which=st.integers(0, 100))
    def recall(self, which: int) -> None:
        self._note("recall")
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
        self._note(f"receive({group!r}, {count!r}, {hidden!r})")
        self.held[group] += self._receive(group, count, hidden)

    @rule(group=st.sampled_from(list(GROUPS)), part=st.sampled_from([1, 3, 100]))
    def acknowledge(self, group: str, part: int) -> None:
        self._note(f"acknowledge({group!r}, {part!r})")
        done, self.held[group] = self.held[group][:part], self.held[group][part:]
        self.calls.acknowledge(group, GROUPS[group], done)

    @rule(group=st.sampled_from(list(GROUPS)))
    def acknowledge_and_kill(self, group: str) -> None:
        self._note(f"acknowledge_and_kill({group!r})")
        done, self.held[group] = self.held[group], []
        self.calls.acknowledge(group, GROUPS[group], done)
        self.broker.kill()
        self._start(0)

    @rule(group=st.sampled_from(list(GROUPS)), seconds=st.sampled_from([0, 30]))
    def renew_or_give_back(self, group: str, seconds: int) -> None:
        self._note(f"renew_or_give_back({group!r}, {seconds!r})")
        if self.held[group]:
            delivery = self.held[group].pop(0)
            handle = self.calls.renew(group, GROUPS[group], delivery, seconds)
            if handle and seconds:
                self.held[group].append(
                    Delivery(
                        delivery.message_id,
                        delivery.queue_id,
                        delivery.queue_offset,
                        handle,
                        delivery.body,
                        delivery.attempt,
                    )
                )

    @rule(group=st.sampled_from(["readers", "ordered"]))
    def reset(self, group: str) -> None:
        self._note(f"reset({group!r})")
        self.promises.reset(group, Promise.PERHAPS)
        try:
            with blocking.connect(self.broker.endpoint, retry_seconds=0) as client:
                client.run(client.asynchronous.admin.reset_offsets(group, GROUPS[group], earliest=True))
        except ClientError:
            return
        self.promises.reset(group, Promise.YES)
        self.held[group] = []

    @rule(attempts=st.integers(2, 16))
    def change_group(self, attempts: int) -> None:
        """An administrator's change that is answered holds after any restart."""
        self._note(f"change_group({attempts!r})")
        with blocking.connect(self.broker.endpoint) as client:
            client.run(client.asynchronous.admin.update_group("auditors", max_attempts=9_000 + attempts))
        self.attempts_of_auditors = 9_000 + attempts

    # --- States

    @rule(seconds=st.sampled_from([1, 15, 90, 7200, 2 * _DAY]))
    def time_passes(self, seconds: int) -> None:
        self._note(f"time_passes({seconds!r})")
        self.broker.advance(seconds)
        self._look_at_clock()

    @rule(seconds=st.sampled_from([0, 0, 0, 120, 400 * _DAY, -3600, -30 * _DAY]), orderly=st.booleans())
    def restart(self, seconds: int, orderly: bool) -> None:
        """A restart with the clock elsewhere."""
        self._note(f"restart({seconds!r}, {orderly!r})")
        if orderly:
            assert self.broker.stop() == 0, self.broker.log_text()[-3000:]
        else:
            self.broker.kill()
        self._start(seconds)

    @rule(is_full=st.booleans(), orderly=st.booleans())
    def disk_fills(self, is_full: bool, orderly: bool) -> None:
        """A restart on a full disk, or on one with space again."""
        self._note(f"disk_fills({is_full!r}, {orderly!r})")
        if orderly:
            self.broker.stop()
        else:
            self.broker.kill()
        self.is_full = is_full
        self._start(0, {"store.disk_full_ratio": 1e-9 if is_full else 1.0})

    @precondition(lambda self: not self.is_full)
    @rule(kind=st.sampled_from([Kind.NORMAL, Kind.FIFO, Kind.DELAY]))
    def delete_topic_and_make_it_again(self, kind: Kind) -> None:
        self._note(f"delete_topic_and_make_it_again({kind.value!r})")
        name, message_type = TOPICS[kind]
        with blocking.connect(self.broker.endpoint) as client:
            client.run(client.asynchronous.admin.delete_topic(name))
            self.promises.topic_deleted(name)
            self._make_topic(client, name, message_type)
        for group, topic in GROUPS.items():
            if topic == name:
                self.held[group] = []
        self._begin_positions()

    @invariant()
    def nothing_contradicts(self) -> None:
        if hasattr(self, "promises"):
            assert not self.promises.violations, "\n".join([*self.promises.violations, *self.history])

    # --- What they share

    def _note(self, step: str) -> None:
        sent = next(reversed(self.promises.sent), "nothing")
        self.history.append(f"  {self.broker.now_ms()} after {sent}: {step}")

    def _start(self, seconds: float, settings: dict[str, object] | None = None) -> None:
        self.calls.close()
        self.broker.start(clock_moved_seconds=seconds, settings=settings or {})
        self.calls = Calls(self.broker.endpoint, self.promises)
        self._look_at_clock()

    def _look_at_clock(self) -> None:
        self.promises.clock(self.broker.now_ms())

    def _is_current(self, sent: Sent) -> bool:
        return sent.stored is Promise.YES

    def _make_topic(self, client: blocking.BlockingClient, name: str, kind: v2.MessageType.ValueType) -> None:
        client.run(client.asynchronous.admin.create_topic(name, queue_count=2, message_types=(kind,)))

    def _begin_positions(self) -> None:
        """A first receive gives each group its position: at the first message."""
        for group in GROUPS:
            self._receive(group, 1, 10)

    def _messages(self, kind: Kind, count: int, delay: int, choice: int) -> list[Sent]:
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

    def _receive(self, group: str, count: int, hidden: int) -> list[Delivery]:
        topic = GROUPS[group]
        if topic == "lite":
            self.calls.subscribe_lite(topic, group)
        self._look_at_clock()
        received = self.calls.receive(group, topic, count=count, hidden_seconds=hidden)
        self._look_at_clock()
        return received

    def _everything_arrives(self) -> None:
        """What was promised arrives when the disk has space, everything is due, and consumers finish what they get."""
        if self.is_full or not self.broker.running:
            self.broker.kill()
            self._start(0, {"store.disk_full_ratio": 1.0})
        latest = max((sent.due_ms for sent in self.promises.sent.values()), default=0)
        self.broker.advance(max((latest - self.broker.now_ms()) / 1000, 0) + 4 * 3600)
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            moved = False
            for group, topic in GROUPS.items():
                while received := self._receive(group, 32, 600):
                    self.calls.acknowledge(group, topic, received)
                    moved = True
                    self.nothing_contradicts()
            if not any(self.promises.missing(group) for group in GROUPS):
                break
            if not moved:
                time.sleep(0.1)
                self.broker.advance(900)
        self.nothing_contradicts()
        with blocking.connect(self.broker.endpoint) as client:
            self._dead_letters_are_there(client)
            self._queries_find(client)
            described = client.run(client.asynchronous.admin.describe_group("auditors"))
            assert described.group.max_attempts == self.attempts_of_auditors, described
        for group in GROUPS:
            missing = self.promises.missing(group)
            what = f"{group} never got {len(missing)} messages: {missing[:3]}"
            assert not missing, "\n".join([what, *self.history, self.broker.log_text()[-2000:]])

    def _dead_letters_are_there(self, client: blocking.BlockingClient) -> None:
        async def ids() -> set[str]:
            return {letter.origin_message_id async for letter in client.asynchronous.admin.dead_letters("careless")}

        self.promises.finished("careless", client.run(ids()), Promise.PERHAPS)

    def _queries_find(self, client: blocking.BlockingClient) -> None:
        """The last answered messages are found by their id."""

        async def count(sent: Sent) -> int:
            found = client.asynchronous.admin.query(sent.topic, message_id=sent.message_id)
            return len([message async for message in found])

        for sent in [sent for sent in self.promises.stored() if sent.kind is Kind.NORMAL][-5:]:
            assert client.run(count(sent)) == 1, "\n".join([f"a query does not find {sent}", *self.history])


def _properties(kind: Kind, choice: int) -> dict[str, int]:
    match kind:
        case Kind.PRIORITY:
            return {"priority": choice * 7}
        case Kind.LITE:
            return {"lite_topic": choice}
        case _:
            return {}


def test_promises_hold_in_every_state() -> None:
    """No message is lost, stuck, doubled, early, out of order or returned after it was finished."""
    run_state_machine_as_test(
        Crossings,
        # A killed process does not repeat itself to the millisecond: a failure prints its history, and is not shrunk.
        settings=hypothesis.settings(
            max_examples=EXAMPLES, stateful_step_count=STEPS, phases=(Phase.explicit, Phase.generate)
        ),
    )
