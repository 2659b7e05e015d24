"""Runs an attack of `hostile_input` against a process and judges it: memory, steps, another client, gauges."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aerobee_broker.remoting_wire.codes import Request
from aerobee_broker.remoting_wire.frame import Command, encode
from aerobee_broker.remoting_wire.signature import PeerKey
from aerobee_broker.replication.authentication import NotAuthenticatedError, introduce
from aerobee_client import ClientError, Credentials, Message, connect
from aerobee_client.testing import BrokerProcess
from tests.support.hostile_input import ATTACKER, ATTACKER_SECRET, STORED_KEY, STORED_TOPIC, Attack, Records, split
from tests.support.tls_records import ALERT, USER_CANCELED, shake_hands, trusting

GROWTH_MAX: Final = 256 << 20
"""The promise of docs/security.md: bytes of memory over the base, whatever clients send."""
STEP_SECONDS_MAX: Final = 0.1 if "AEROBEE_HOSTILE_ROUNDS" in os.environ else 0.3
"""Processor time between two firings of the loop's timer. Beside other tests on two threads of one core, the same step
needs up to three times as much, so only `make test-hostile` judges by the promise."""
Certificate = tuple[Path, Path]
"""Its file and that of its key."""
_SEND_SECONDS: Final = 15.0  # for one write; a broker that stops reading ends the sending
_BACK_SECONDS: Final = 30.0  # for the gauges to return, or to come closer to their values of before
_BACK_SECONDS_MAX: Final = 600.0  # for all of it: a busy machine takes minutes to handle what some attacks have sent
_GAUGES: Final = re.compile(
    r"^(aerobee_(?:front_connections|front_calls|waiting_bytes|long_polls){[^}]*}) (\S+)$",
    re.MULTILINE,
)


@dataclass
class Verdict:
    """What an attack did."""

    name: str
    growth: int = 0
    """Bytes of anonymous memory, at the most, over those before."""
    step_seconds: float = 0.0
    answers: int = 0
    """To the other client."""
    slowest_seconds: float = 0.0
    sent: int = 0
    proofs: int = 0
    """Of the secret of the cluster, which the attacked port has taken."""
    left_over: dict[str, float] = field(default_factory=dict)
    """Gauges that did not return to their value."""
    blocked_by: str = ""
    """The slowest step, from the log."""
    uncharged: str = ""
    """What the ledger did not count while the attack lasted."""

    @property
    def harm(self) -> list[str]:
        """Why the attack succeeded; empty if it did nothing."""
        found = []
        if self.growth > GROWTH_MAX:
            found.append(f"memory +{self.growth >> 20} MiB")
        if self.step_seconds > STEP_SECONDS_MAX:
            found.append(f"a step of {self.step_seconds * 1000:.0f} ms of processor {self.blocked_by}")
        if self.uncharged:
            found.append(self.uncharged)
        if not self.answers:
            found.append("no answer to another client")
        if self.left_over:
            found.append(f"gauges that did not return: {self.left_over}")
        return found

    def __str__(self) -> str:
        return (
            f"{self.name}: sent {self.sent / 1000:.0f} kB, memory +{self.growth >> 20} MiB, "
            f"step {self.step_seconds * 1000:.0f} ms, {self.answers} answers, slowest {self.slowest_seconds:.2f} s"
            f"{f', left over {self.left_over}' if self.left_over else ''} {self.blocked_by}"
        )


def anonymous_memory(pid: int) -> int:
    """Bytes of the process's own memory: without the pages of mapped files, which the kernel takes back."""
    with open(f"/proc/{pid}/status") as file:
        (found,) = re.findall(r"RssAnon:\s+(\d+) kB", file.read())
    return int(found) << 10


def processor_seconds(pid: int) -> float:
    """Processor time of the process's first thread, which runs the event loop."""
    with open(f"/proc/{pid}/task/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def metrics_of(broker: BrokerProcess) -> str:
    with urllib.request.urlopen(f"http://{broker.metrics}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def gauges(broker: BrokerProcess) -> Mapping[str, float]:
    return {name: float(value) for name, value in _GAUGES.findall(metrics_of(broker))}


def busiest_step(broker: BrokerProcess) -> float:
    (found,) = re.findall(r"^aerobee_event_loop_busy_seconds_max{[^}]*} (\S+)$", metrics_of(broker), re.MULTILINE)
    return float(found)


def slowest_warning(log: str) -> str:
    """The warning of the step with the most processor time."""
    found = re.findall(r"processor_milliseconds=(\d+) by=(.*)", log)
    return max(((int(milliseconds), by) for milliseconds, by in found), default=(0, ""))[1]


async def prepare(broker: BrokerProcess, credentials: Credentials | None = None) -> None:
    """Store what the attacks ask for, and warm the broker. `credentials` of an account that may do so."""
    async with connect(broker.endpoint, credentials=credentials) as client:
        producer = client.producer()
        for _ in range(8):
            await producer.send(Message(topic=STORED_TOPIC, body=os.urandom(1_500_000), keys=(STORED_KEY,)))
        consumer = client.simple_consumer("auditing", "returns")
        for _ in range(20):
            await producer.send(Message(topic="returns", body=b"x"))
            await consumer.ack(await consumer.receive(32))


async def judge(
    broker: BrokerProcess,
    attack: Attack,
    *,
    address: str = "",
    credentials: Credentials | None = None,
    scale: float = 1.0,
    certificate: Certificate | None = None,
) -> Verdict:
    """Run the attack against a broker while another client sends, with these credentials.

    `address`: of the attacked port, by default that of gRPC. `scale`: of the attack's connections. `certificate`: of
    the attacker.
    """
    verdict = Verdict(attack.name)
    before = gauges(broker)
    async with _watched(broker.pid, verdict), _beside(broker, verdict, credentials), _charged(broker, attack, verdict):
        await _run(address or broker.endpoint, attack, verdict, scale, certificate)
    verdict.left_over = await _not_returned(broker, before)
    verdict.step_seconds = await asyncio.to_thread(busiest_step, broker)
    verdict.blocked_by = slowest_warning(broker.log_text())
    return verdict


async def judge_name_server(
    address: str, pid: int, log: Path, attack: Attack, *, certificate: Certificate | None = None
) -> Verdict:
    """Run the attack against `aerobee namesrv`, whose log this is. Steps are those of which it warns."""
    verdict = Verdict(attack.name)
    async with _watched(pid, verdict), _asking(address, pid, verdict):
        await _run(address, attack, verdict, 1.0, certificate)
    text = log.read_text()
    found = re.findall(r"processor_milliseconds=(\d+)", text)
    verdict.step_seconds = max(map(int, found), default=0) / 1000
    verdict.blocked_by = slowest_warning(text)
    return verdict


@asynccontextmanager
async def _watched(pid: int, verdict: Verdict) -> AsyncIterator[None]:
    base = anonymous_memory(pid)

    async def watch() -> None:
        while True:
            verdict.growth = max(verdict.growth, anonymous_memory(pid) - base)
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        verdict.growth = max(verdict.growth, anonymous_memory(pid) - base)
        watching.cancel()


@asynccontextmanager
async def _charged(broker: BrokerProcess, attack: Attack, verdict: Verdict) -> AsyncIterator[None]:
    """Look in the ledger for what the attack must be charged."""
    if attack.charged is None:
        yield
        return
    kind, least = attack.charged
    most = 0.0

    async def watch() -> None:
        nonlocal most
        while True:
            found = await asyncio.to_thread(gauges, broker)
            sizes = [size for name, size in found.items() if "waiting_bytes" in name and f'of="{kind}"' in name]
            most = max(most, *sizes)
            await asyncio.sleep(0.2)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    if most < least:
        verdict.uncharged = f"{most:.0f} bytes of {kind} in the ledger, which should be {least} or more"


@asynccontextmanager
async def _beside(broker: BrokerProcess, verdict: Verdict, credentials: Credentials | None) -> AsyncIterator[None]:
    """Another client sends until the block has ended, and once more."""
    over = asyncio.Event()

    async def send() -> None:
        async with connect(broker.endpoint, credentials=credentials) as client:
            producer = client.producer()
            while True:
                last = over.is_set()
                started = time.monotonic()
                with suppress(ClientError):
                    async with asyncio.timeout(60):
                        await producer.send(Message(topic="returns", body=b"x" * 256))
                        verdict.answers += 1
                verdict.slowest_seconds = max(verdict.slowest_seconds, time.monotonic() - started)
                if last:
                    return
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send())
        await asyncio.sleep(0.1)
        try:
            yield
        finally:
            over.set()


@asynccontextmanager
async def _asking(address: str, pid: int, verdict: Verdict) -> AsyncIterator[None]:
    host, _, port = address.rpartition(":")
    over = asyncio.Event()

    async def ask() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        while True:
            last = over.is_set()
            started = time.monotonic()
            writer.write(encode(Command(Request.GET_BROKER_CLUSTER_INFO)))
            async with asyncio.timeout(60):
                size = int.from_bytes(await reader.readexactly(4), "big")
                await reader.readexactly(size)
            verdict.answers += 1
            verdict.slowest_seconds = max(verdict.slowest_seconds, time.monotonic() - started)
            if last:
                writer.close()
                return
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ask())
        await asyncio.sleep(0.1)
        try:
            yield
        finally:
            over.set()


async def _run(address: str, attack: Attack, verdict: Verdict, scale: float, certificate: Certificate | None) -> None:
    count = max(1, round(attack.connections * scale))
    if attack.records is not None:
        await _run_in_records(address, attack, attack.records, verdict, count, certificate)
        return
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(_attack(address, attack, number, verdict))
            if number % 50 == 49:
                await asyncio.sleep(0.01)


async def _attack(address: str, attack: Attack, number: int, verdict: Verdict) -> None:
    if attack.tls or (attack.is_signed and attack.target == "replicas"):
        await _attack_after_proof(address, attack, number, verdict)
        return
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    with socket.socket() as connection, suppress(OSError, TimeoutError):
        connection.setblocking(False)
        if not attack.reads:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(connection, (host, int(port)))
        reading = asyncio.create_task(_discard(connection)) if attack.reads else None
        try:
            for part in attack.sent(number):
                async with asyncio.timeout(_SEND_SECONDS):
                    await loop.sock_sendall(connection, part)
                verdict.sent += len(part)
                await asyncio.sleep(attack.pause_seconds)
            await asyncio.sleep(attack.stays_seconds)
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)


async def _run_in_records(
    address: str, attack: Attack, records: Records, verdict: Verdict, count: int, certificate: Certificate | None
) -> None:
    """In TLS, with a thread for each connection."""
    all_made, loop = threading.Barrier(count), asyncio.get_running_loop()

    def run(number: int) -> None:
        with suppress(OSError, threading.BrokenBarrierError):
            _attack_in_records(address, attack, records, number, verdict, all_made, certificate)

    with ThreadPoolExecutor(count) as threads:
        await asyncio.gather(*(loop.run_in_executor(threads, run, number) for number in range(count)))


def _attack_in_records(
    address: str,
    attack: Attack,
    records: Records,
    number: int,
    verdict: Verdict,
    all_made: threading.Barrier,
    certificate: Certificate | None,
) -> None:
    """Raises OSError when the broker ends the connection."""
    host, _, port = address.rpartition(":")
    left = sys.maxsize if records.handshake_cut is None else records.handshake_cut

    def parts(data: bytes) -> Iterator[bytes]:
        nonlocal left
        for part in split(data[:left], records.handshake_write):
            yield part
            left -= len(part)
        if not left:
            raise _CutError

    with socket.create_connection((host, int(port)), _SEND_SECONDS) as connection:
        try:
            made = shake_hands(connection, parts, certificate)
        except _CutError:
            verdict.sent += records.handshake_cut or 0
            time.sleep(attack.stays_seconds)
            return
        kinds: dict[str, Callable[[], bytes]] = {
            "key updates": made.key_update,
            "empty records": lambda: made.record(b""),
            "warnings": lambda: made.record(bytes((1, USER_CANCELED)), ALERT),
        }
        between = kinds[records.between]
        sent = []
        for data in split(b"".join(attack.sent(number)), records.size):
            sent += [between() for _ in range(records.between_count)]
            sent.append(made.record(data))
        if records.handshake_cut is None:
            all_made.wait(_SEND_SECONDS)
        whole = b"".join(sent)
        for part in split(whole[: len(whole) - records.lacking], records.write_size or len(whole) or 1):
            connection.sendall(part)
            verdict.sent += len(part)
        time.sleep(attack.stays_seconds)


async def _attack_after_proof(address: str, attack: Attack, number: int, verdict: Verdict) -> None:
    """After a handshake of TLS, or after the proof of the cluster's secret."""
    host, _, port = address.rpartition(":")
    with suppress(OSError, TimeoutError, NotAuthenticatedError):
        async with asyncio.timeout(_SEND_SECONDS):
            context = _TRUSTS_EVERYBODY if attack.tls else None
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        try:
            if attack.is_signed:
                await introduce(reader, writer, PeerKey(ATTACKER, ATTACKER_SECRET.encode()))
                verdict.proofs += 1
            reading = asyncio.create_task(_read_on(reader)) if attack.reads else None
            for part in attack.sent(number):
                writer.write(part)
                await writer.drain()
                verdict.sent += len(part)
            await asyncio.sleep(attack.stays_seconds)
            if reading is not None:
                reading.cancel()
        finally:
            writer.transport.abort()


async def _read_on(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(1 << 18):
            pass


async def _discard(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while await loop.sock_recv(connection, 1 << 18):
            pass


async def _not_returned(broker: BrokerProcess, before: Mapping[str, float]) -> dict[str, float]:
    """Gauges above their value of before, and the other client's connection, when none has come closer to it for the
    longest wait."""
    gives_up, ends = time.monotonic() + _BACK_SECONDS_MAX, time.monotonic() + _BACK_SECONDS
    least: dict[str, float] = {}
    while True:
        now = await asyncio.to_thread(gauges, broker)
        found = {name: value for name, value in now.items() if value > before.get(name, 0.0) + _kept(name)}
        closer = {name: value for name, value in found.items() if value < least.get(name, float("inf"))}
        if closer or least.keys() - found.keys():
            ends = time.monotonic() + _BACK_SECONDS
        least = {name: min(value, least.get(name, value)) for name, value in found.items()}
        if not found or time.monotonic() > min(ends, gives_up):
            return found
        await asyncio.sleep(0.1)


def _kept(gauge: str) -> float:
    """What may stay for the other client, whose connection its library closes late, and of ids that are remembered."""
    if gauge.startswith("aerobee_front_connections"):
        return 1.0
    if re.search('of="(clients|settings|values)"', gauge):
        return float("inf")
    return 32_000.0 if 'of="calls"' in gauge or 'of="connections"' in gauge else 0.0


_TRUSTS_EVERYBODY: Final = trusting()


class _CutError(Exception):
    """The handshake ends here."""
