"""Our master, our replica and a replica of RocketMQ, which are killed, paused, slowed and cut off.

A send is answered with success when both replicas have the message (`acks = 2`, `rocketmq_acks`). Whenever the master
is killed, every such message is in both replicas' logs. At the end it is in the master's queue, once and in order, and
both replicas have the master's log byte for byte.
AEROBEE_CHAOS_SECONDS is the duration of the disturbances; without it each of them comes once. AEROBEE_CHAOS_SEED
repeats a run's choices, though not its timing.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Answer
from tests.chaos.history import Acknowledged, Attempted, Disturbed, Event, Read, check
from tests.cluster.conftest import MARKS
from tests.cluster.java_program import Release, java_server, prepare_servers
from tests.cluster.test_java_replication import BROKER, CONFIG, java_settings, log_of, until
from tests.cluster.test_java_servers import free_port
from tests.support import seeds
from tests.support.busy_disk import keep_disk_busy
from tests.support.name_server import our_name_server
from tests.support.port_forwarder import PortForwarder, forwarded_port
from tests.support.remoting_client import RemotingClient, bodies_of, send

pytestmark = [
    *(mark for mark in MARKS if mark.name != "timeout"),
    pytest.mark.timeout(0),  # the duration is configurable; every wait has its own timeout
]

_SECONDS: Final = float(os.environ.get("AEROBEE_CHAOS_SECONDS", "0"))
_SEED: Final = seeds.seed("AEROBEE_CHAOS_SEED")
_KINDS: Final = (
    *("kill master", "kill replica", "kill Java", "pause master", "pause replica", "pause Java"),
    *("cut", "reset links", "slow disk", "kill all"),
)
_ANSWER_SECONDS: Final = 300.0
_TOPIC: Final = "Copied"
_BODY: Final = re.compile(rb"(?<![0-9])[0-9]{8}(?![0-9])")


class _Ours:
    """One of our brokers, at the same addresses whenever it is started."""

    def __init__(self, directory: Path, name: str, settings: str, *arguments: str) -> None:
        self.store = directory / name
        self._log = directory / f"{name}.log"
        config = directory / f"{name}.toml"
        config.write_text(f"{CONFIG}[replication]\n{settings}")
        free = ("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--config", str(config))
        serve = (sys.executable, "-m", "aerobee_broker", "serve", "--dev", "--store", str(self.store))
        self._command = [*serve, *free, *arguments]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class _Java:
    """The replica of RocketMQ."""

    def __init__(self, servers: Release, directory: Path, namesrv: str, port: int) -> None:
        self.store = directory / "java"
        self._servers, self._directory = servers, directory
        self._settings = java_settings(self.store, namesrv, port, 2)
        self._running = ExitStack()
        self._starts = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._starts += 1
        home = self._directory / f"home-{self._starts}"
        self.process = self._running.enter_context(java_server(self._servers, home, BROKER, self._settings))

    def kill(self) -> None:
        self._running.close()


class _Group:
    """The three brokers, the link from the replicas to the master, and the history."""

    def __init__(self, servers: Release, directory: Path, namesrv: str, stack: ExitStack) -> None:
        port, java_port = free_port(), free_port() + 100
        self._directory = directory
        self._address = Address("127.0.0.1", port)
        self._link: PortForwarder = stack.enter_context(forwarded_port(f"127.0.0.1:{port + 1}"))
        routes = ("--namesrv", namesrv)
        self._master = _Ours(
            directory,
            "master",
            f'rocketmq_acks = true\nadvertise = "{self._link.endpoint}"\n',
            *("--role", "master", "--acks", "2", "--listen-remoting", str(self._address)),
            *("--listen-replicas", f"127.0.0.1:{port + 1}", *routes),
        )
        self._replica = _Ours(
            directory,
            "replica",
            "broker_id = 1\n",
            *("--role", "replica", "--listen-replicas", "127.0.0.1:0"),
            *("--listen-remoting", f"127.0.0.1:{port + 10}", *routes),
        )
        self._java = _Java(servers, directory, namesrv, java_port)
        self._began = time.monotonic()
        self._choices = random.Random(_SEED)
        self.history: list[Event] = []
        self.answered: list[str] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        brokers = (self._master, self._replica, self._java)
        try:
            for broker in brokers:
                broker.start()
            yield
        finally:
            for broker in brokers:
                broker.kill()

    def _now_ms(self) -> int:
        return int((time.monotonic() - self._began) * 1000)

    async def produce(self) -> None:
        """Send messages one by one, until cancelled."""
        client: RemotingClient | None = None
        try:
            for number in itertools.count(1):
                name = f"{number:08d}"
                self.history.append(Attempted(self._now_ms(), name, _TOPIC))
                try:
                    async with asyncio.timeout(10):
                        client = client or await RemotingClient.connect(self._address)
                        answer = await send(client, _TOPIC, name.encode(), queue_id=0)
                except (OSError, EOFError, TimeoutError):
                    if client is not None:
                        await client.close()
                    client = None
                    await asyncio.sleep(0.05)
                    continue
                if answer.code == Answer.SUCCESS:
                    self.history.append(Acknowledged(self._now_ms(), name))
                    self.answered.append(name)
        finally:
            if client is not None:
                await client.close()

    async def answers(self, count: int = 20) -> None:
        """Return once `count` further messages are answered with success."""
        wanted = len(self.answered) + count
        async with asyncio.timeout(_ANSWER_SECONDS):
            while len(self.answered) < wanted:  # noqa: ASYNC110 - the producer continues meanwhile
                await asyncio.sleep(0.05)

    def disturb(self, kind: str) -> None:
        """Disturb the group in one way, and repair it. Messages are sent meanwhile."""
        self.history.append(Disturbed(self._now_ms(), kind, is_restart=kind.startswith("kill")))
        what, _, name = kind.partition(" ")
        named: dict[str, _Ours | _Java] = {"master": self._master, "replica": self._replica, "Java": self._java}
        brokers = [named[name]] if name in named else list(named.values())
        match what:
            case "kill":
                for broker in brokers:
                    broker.kill()
                if self._master in brokers:
                    self._check_replicas()
                for broker in brokers:
                    broker.start()
            case "pause":
                process = brokers[0].process
                assert process is not None
                process.send_signal(signal.SIGSTOP)
                time.sleep(self._choices.uniform(0.5, 5))
                process.send_signal(signal.SIGCONT)
            case "cut":
                self._link.lose_answers()
                time.sleep(self._choices.uniform(0, 5))
                self._link.reset()
            case "slow":
                keep_disk_busy(self._directory, self._choices.uniform(1, 5))
            case _:
                for _ in range(5):
                    self._link.reset()
                    time.sleep(0.2)

    def _check_replicas(self) -> None:
        """While the master is down: its answers were true, both replicas have every message that it confirmed."""
        confirmed = {name.encode() for name in self.answered}
        for broker in (self._replica, self._java):
            missing = confirmed.difference(_BODY.findall(log_of(broker.store)))
            assert not missing, f"confirmed, but not in the log of {broker.store.name}: {sorted(missing)}"

    async def disturb_until_end(self) -> None:
        """Each kind once, and then random ones."""
        began, kinds = time.monotonic(), iter(_KINDS)
        while (kind := next(kinds, "")) or time.monotonic() - began < _SECONDS:
            await asyncio.to_thread(self.disturb, kind or self._choices.choice(_KINDS))
            await self.answers()

    async def check(self) -> None:
        """Check the master's queue, and that both replicas have its log."""
        for place, body in enumerate(await bodies_of(self._address, _TOPIC)):
            self.history.append(Read(self._now_ms(), _TOPIC, body.decode(), (0, place)))
        findings = check(self.history)
        assert not findings.faults, findings.table()
        found = [event.message_id for event in self.history if isinstance(event, Read)]
        answered = set(self.answered)
        assert [name for name in found if name in answered] == self.answered
        expected = log_of(self._master.store)
        for store in (self._replica.store, self._java.store):
            await asyncio.to_thread(until, partial(_is_copied, store, expected), f"the log of {store.name} differs")


def _is_copied(store: Path, expected: bytes) -> bool:
    return log_of(store) == expected


@pytest.fixture(scope="module", params=("4.9.7", "5.3.3"))
def servers(request: pytest.FixtureRequest) -> Release:
    return prepare_servers(request.param)


async def _run(group: _Group) -> None:
    producing = asyncio.create_task(group.produce())
    await group.answers()
    await group.disturb_until_end()
    producing.cancel()
    with suppress(asyncio.CancelledError):
        await producing
    await group.check()


def test_nothing_answered_is_lost_beside_a_java_replica(
    servers: Release, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any of the three brokers is killed or paused, or all are killed, and the replicas lose their connections."""
    with our_name_server(tmp_path / "ns") as namesrv, ExitStack() as stack:
        group = _Group(servers, tmp_path, namesrv, stack)
        with group.running():
            asyncio.run(_run(group))
    kinds = Counter(event.what for event in group.history if isinstance(event, Disturbed))
    with capsys.disabled():
        what = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
        print(f"{servers.version}: answered {len(group.answered)}, lost 0, three logs equal; {what}")
