"""A producer on two brokers with a lease in etcd, which are killed, paused, slowed, and cut off.

Every confirmed message is read at the end, once, at the offset in its answer; no epoch has two masters.
AEROBEE_CHAOS_SECONDS is the duration of the disturbances: an hour in `make test-chaos`. Without it the test is
skipped, and tests/integration/test_fail_over.py is its short form. AEROBEE_CHAOS_SEED repeats a run's choices, though
not its timing. The run prints how long no message was confirmed.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from aerobee_broker.remoting_wire.codes import Answer
from tests.chaos.history import Acknowledged, Attempted, Disturbed, Event, Read, check
from tests.chaos.nemesis import BrokerClock
from tests.support import seeds
from tests.support.busy_disk import keep_disk_busy
from tests.support.etcd import running_etcd
from tests.support.lease_group import Member, running
from tests.support.port_forwarder import PortForwarder, forwarded_port

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(0),  # the duration is configurable; every wait has its own timeout
    pytest.mark.skipif(
        "AEROBEE_CHAOS_SECONDS" not in os.environ,
        reason="run by `make test-chaos`; test_fail_over.py is its short form",
    ),
]

SECONDS = float(os.environ.get("AEROBEE_CHAOS_SECONDS", "0"))
SEED = seeds.seed("AEROBEE_CHAOS_SEED")
_ANSWER_SECONDS = 120.0
_LEASE_SECONDS = 3
_IN_SYNC_SECONDS = 1.5
_TOPIC = "T"
_KINDS = ("kill", "pause", "etcd", "replicas", "slow", "disk", "clock")


class _Group:
    """The brokers, their disturbances, and the history."""

    def __init__(self, directory: Path, etcd: str, stack: ExitStack) -> None:
        self.history: list[Event] = []
        self.places: dict[str, int] = {}  # by confirmed message
        self.gaps: list[float] = []
        self._began = time.monotonic()
        self._number = 0
        self._choices = random.Random(SEED)
        self._clocks: list[BrokerClock] = []
        self._to_etcd: list[PortForwarder] = []
        self._to_replicas: list[PortForwarder] = []
        self.members: list[Member] = []
        for broker_id in (1, 2):
            to_etcd = stack.enter_context(forwarded_port(etcd.removeprefix("http://")))
            member = Member(
                directory,
                broker_id,
                f"http://{to_etcd.endpoint}",
                lease_seconds=_LEASE_SECONDS,
                in_sync_seconds=_IN_SYNC_SECONDS,
            )
            to_replicas = stack.enter_context(forwarded_port(str(member.listen_replicas)))
            member.advertise = to_replicas.endpoint
            try:
                (directory / f"{broker_id}").mkdir()
                self._clocks.append(BrokerClock(directory / f"{broker_id}"))
                member.environment = os.environ | self._clocks[-1].environment
            except RuntimeError as error:
                print(f"clock of broker {broker_id}: {error}")
            self._to_etcd.append(to_etcd)
            self._to_replicas.append(to_replicas)
            self.members.append(member)

    def _now_ms(self) -> int:
        return int((time.monotonic() - self._began) * 1000)

    async def produce(self, stop: asyncio.Event) -> None:
        """Send messages one by one to any broker that accepts them."""
        target = 0
        while not stop.is_set():
            self._number += 1
            name = f"{self._number:08d}"
            self.history.append(Attempted(self._now_ms(), name, _TOPIC))
            code, offset = await self.members[target].send_at(name.encode(), 1.0)
            if code == Answer.SUCCESS:
                self.history.append(Acknowledged(self._now_ms(), name))
                self.places[name] = offset
            else:
                target = 1 - target
                await asyncio.sleep(0.02)

    async def answers(self) -> None:
        """Return once a message sent from now on is answered."""
        before = len(self.places)
        async with asyncio.timeout(_ANSWER_SECONDS):
            while len(self.places) < before + 2:  # noqa: ASYNC110 - the producer goes on by itself
                await asyncio.sleep(0.01)

    async def disturb(self, kind: str) -> None:
        """Disturb the master in one way, wait until messages are answered again, and undo it."""
        number = await self._master()
        number = self._choices.randrange(2) if number is None else number
        member = self.members[number]
        acts: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": lambda: self._kill(member),
            "pause": lambda: self._pause(member),
            "etcd": lambda: self._cut(self._to_etcd[number]),
            "replicas": lambda: self._cut(self._to_replicas[number]),
            "slow": lambda: self._slow(member),
            "disk": lambda: self._slow_disk(member),
            "clock": lambda: self._jump(number),
        }
        self.history.append(Disturbed(self._now_ms(), f"{kind} of broker {number + 1}"))
        began = time.monotonic()
        print(f"{self._now_ms()} {kind} of broker {number + 1}", flush=True)
        await acts[kind]()
        if kind in ("kill", "pause"):
            self.gaps.append(self._answered_at - began)
        await self._both_in_sync()

    async def _master(self) -> int | None:
        for number, member in enumerate(self.members):
            if (await member.status()).get("leaseSecondsLeft"):
                return number
        return None

    async def _kill(self, member: Member) -> None:
        member.kill()
        await self._until_answered()
        member.start()

    async def _pause(self, member: Member) -> None:
        member.send_signal(signal.SIGSTOP)
        await self._until_answered()
        member.send_signal(signal.SIGCONT)

    async def _cut(self, forwarder: PortForwarder) -> None:
        forwarder.lose_answers()
        await asyncio.sleep(self._choices.uniform(0, 2 * _LEASE_SECONDS))
        forwarder.reset()
        await self._until_answered()

    async def _slow_disk(self, member: Member) -> None:
        """Another writer syncs the same disk without a pause, which delays the syncs of both brokers."""
        seconds = self._choices.uniform(1, 2 * _LEASE_SECONDS)
        await asyncio.to_thread(keep_disk_busy, member.directory, seconds)
        await self._until_answered()

    async def _slow(self, member: Member) -> None:
        """Pause the process repeatedly."""
        for _ in range(20):
            member.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.15)
            member.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.05)
        await self._until_answered()

    async def _jump(self, number: int) -> None:
        if self._clocks:
            self._clocks[number].set(self._choices.choice((-3600.0, 3600.0)))
        await self._until_answered()

    async def _until_answered(self) -> None:
        await self.answers()
        self._answered_at = time.monotonic()

    async def _both_in_sync(self) -> None:
        async with asyncio.timeout(_ANSWER_SECONDS):
            while not await self._are_both_in_sync():  # noqa: ASYNC110 - the brokers do it
                await asyncio.sleep(0.05)

    async def _are_both_in_sync(self) -> bool:
        number = await self._master()
        return number is not None and len((await self.members[number].status()).get("leaseInSync", ())) == 2

    async def read(self) -> None:
        """Read all messages of the master."""
        async with asyncio.timeout(_ANSWER_SECONDS):
            while True:
                if (number := await self._master()) is not None:
                    break
                await asyncio.sleep(0.05)
        for place, body in enumerate(await self.members[number].bodies()):
            self.history.append(Read(self._now_ms(), _TOPIC, body.decode(), (0, place)))

    def check(self) -> None:
        """Check that nothing is lost or at another message's position, and that each epoch has one master."""
        findings = check(self.history)
        assert not findings.faults, findings.table()
        found = {event.message_id: event.place[1] for event in self.history if isinstance(event, Read)}
        assert {name: found.get(name) for name in self.places} == self.places
        epochs = [re.findall(r"lease taken epoch=(\d+)", member.log) for member in self.members]
        assert len(set(epochs[0] + epochs[1])) == len(epochs[0]) + len(epochs[1])


async def test_group_chaos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The master is disturbed in different ways, again and again."""
    with ExitStack() as stack, capsys.disabled():
        group = _Group(tmp_path, stack.enter_context(running_etcd(tmp_path)), stack)
        async with running(*group.members):
            await group.members[0].becomes_master(in_sync=2)
            stop = asyncio.Event()
            producing = asyncio.create_task(group.produce(stop))
            choices, began = random.Random(SEED), time.monotonic()
            for kind in ("kill", "pause"):
                await group.disturb(kind)
            while time.monotonic() - began < SECONDS:
                await group.disturb(choices.choice(_KINDS))
            stop.set()
            await producing
            await group.read()
        group.check()
        gaps = sorted(group.gaps)
        kinds = Counter(event.what.split()[0] for event in group.history if isinstance(event, Disturbed))
        print(", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
        print(
            f"answered {len(group.places)}, lost 0, two masters 0; without service after {len(gaps)} fail-overs: "
            f"p50 {gaps[len(gaps) // 2]:.2f} s, p99 {gaps[min(len(gaps) * 99 // 100, len(gaps) - 1)]:.2f} s, "
            f"lease {_LEASE_SECONDS} s"
        )
