"""The master's side of replication: accepts connections of replicas and sends them the log.

Only durable bytes are sent, so a replica never has bytes that this broker could lose. A unit ends at the end of a
record if one fits into it. RocketMQ's replicas append all bytes they receive, so their log then never ends within a
record.

    first report      sent from
    0                 the beginning of the log
    within the log    there, if a record begins there; otherwise the connection is closed: the logs differ
    anything else     the connection is closed

A report beyond the sent bytes, or below the previous report, closes the connection and does not count. Silence closes
it, too.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from contextlib import suppress
from typing import Final

from aerobee_broker.config import Address
from aerobee_broker.config.peers import PeersConfig
from aerobee_broker.config.replication import ReplicationConfig
from aerobee_broker.errors import BrokerError, ListenError
from aerobee_broker.front.accepting import PeerPort
from aerobee_broker.limits.input_turns import InputTurns
from aerobee_broker.limits.ledger import Holdings, Ledger
from aerobee_broker.limits.tls import charge_connection
from aerobee_broker.listening.peers import Peers
from aerobee_broker.replication.acknowledgements import Acknowledgements, Replica
from aerobee_broker.replication.authentication import MAGIC, admit
from aerobee_broker.replication.epochs import Epochs
from aerobee_broker.replication.frames import (
    UNIT_SIZE_MAX,
    UNIT_SIZE_SENT,
    MasterHandshake,
    Protocol,
    ReplicaHandshake,
    ReplicaReader,
    ReplicationFormatError,
    Unit,
    encode_unit,
)
from aerobee_store import MessageStore

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 5.0  # haSendHeartbeatInterval
SILENCE_SECONDS: Final = 20.0  # haHousekeepingInterval
CONNECTIONS_MAX: Final = 64
_SETTLE_SECONDS: Final = 1.0  # how long eight bytes that could begin a handshake wait for the rest
_READ_SIZE: Final = 4096
# bytes in flight to one replica; beyond it the master waits until the replica has read some
_WRITE_BUFFER: Final = 1 << 20
_SIZE: Final = struct.Struct(">i")


class ReplicaRefusedError(BrokerError):
    """A replica cannot be served as requested; its connection is closed."""


class ReplicationMaster:
    """Serves all replicas of one store. `run` runs beside the other services."""

    name: Final = "replication"

    def __init__(
        self,
        config: ReplicationConfig,
        store: MessageStore,
        epochs: Epochs,
        acknowledgements: Acknowledgements,
        *,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
        peers: PeersConfig | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """`ledger` counts the memory of each connection; without one the master has its own."""
        self._ledger = ledger or Ledger()
        self._config = config
        self._peers = Peers.load(peers or PeersConfig())
        self._new: dict[asyncio.Task[None], str] = {}  # connections without a report, oldest first, with their host
        self._store = store
        self._epochs = epochs
        self._acknowledgements = acknowledgements
        self._heartbeat_seconds = heartbeat_seconds
        self._silence_seconds = silence_seconds
        self._listener: asyncio.Server | PeerPort | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._more: set[asyncio.Event] = set()
        store.flush_listeners.append(self._wake)

    async def listen(self) -> Address:
        """Bind; returns the bound address. Raises ListenError."""
        address = Address.parse(self._config.listen)
        tls = self._peers.accepting
        try:
            if tls is not None:
                turns = InputTurns(asyncio.get_running_loop())
                port = self._listener = PeerPort(self._stream, address.host, address.port, tls, self._ledger, turns)
                return Address(address.host, port.number)
            self._listener = await asyncio.start_server(self._accept, address.host, address.port, limit=_READ_SIZE)
        except OSError as error:
            raise ListenError("replication.listen", address, error.strerror or str(error)) from None
        return Address(address.host, self._listener.sockets[0].getsockname()[1])

    def _stream(self, _is_tls: bool) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=_READ_SIZE), self._accept)

    async def stop(self) -> None:
        """Close all connections."""
        self._store.flush_listeners.remove(self._wake)
        if self._listener is not None:
            self._listener.close()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _wake(self) -> None:
        for event in self._more:
            event.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "streams are served in tasks"
        self._tasks.add(task)
        peer = writer.get_extra_info("peername") or ("unknown", 0)
        host = str(peer[0]).removeprefix("::ffff:")

        def drop() -> None:
            writer.transport.abort()  # a replica that does not read would keep what it was sent
            task.cancel()

        holdings = self._ledger.open(f"replica {host}:{peer[1]}", host, drop)
        holdings.set("received", 2 * _READ_SIZE)
        charge_connection(writer.transport, holdings, 0)
        try:
            self._make_space()
            self._new[task] = host
            await self._serve(reader, writer, host, f"{host}:{peer[1]}", holdings)
        except (OSError, EOFError, TimeoutError, BrokerError) as error:
            cause = str(error) or type(error).__name__
            _log.warning("replica disconnected address=%s:%s cause=%s", host, peer[1], cause)
            if isinstance(error, TimeoutError):
                writer.transport.abort()  # to close it would wait until the replica has read everything
        except asyncio.CancelledError:
            pass  # by `stop`; Python 3.11's streams would log the task's cancellation as an error
        finally:
            self._tasks.discard(task)
            self._new.pop(task, None)
            holdings.close()
            writer.close()

    def _make_space(self) -> None:
        """Close a connection that has not reported yet, if there are too many: the oldest of the host with most."""
        if len(self._new) < CONNECTIONS_MAX:
            return
        hosts = list(self._new.values())
        most = max(hosts, key=hosts.count)
        oldest = next(task for task, host in self._new.items() if host == most)
        del self._new[oldest]
        oldest.cancel()

    async def _authenticated(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> bytes:
        """Return when the replica may be served; the bytes that it has sent already. Raises ReplicaRefusedError."""
        # On this port, every TLS connection has shown a certificate of the cluster.
        if refusal := self._peers.admit(host, is_tls=writer.get_extra_info("sslcontext") is not None):
            raise ReplicaRefusedError(refusal)
        key = self._peers.key
        if key is None:
            return b""
        async with asyncio.timeout(self._silence_seconds):
            begun = await reader.readexactly(len(MAGIC))
        if begun == MAGIC:
            await admit(reader, writer, key)
            return b""
        if not self._peers.names(host):
            raise ReplicaRefusedError(
                f"it did not prove that it has the secret of the cluster; set peers.secret_key_file there, or for a "
                f"RocketMQ in a private network name {host} in peers.addresses"
            )
        return begun

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        host: str,
        address: str,
        holdings: Holdings,
    ) -> None:
        frames = ReplicaReader()
        begun = await self._authenticated(reader, writer, host)
        holdings.is_known = self._peers.key is not None
        start, protocol = await self._first_report(reader, writer, frames, begun)
        replica = self._accepted(frames.handshake, host, address)
        replica.sent = self._start_of(start)
        _log.info("replica connected address=%s id=%s from=%d end=%d", address, replica.key[1], replica.sent, self._end)
        more = asyncio.Event()
        self._more.add(more)
        self._acknowledgements.connected(replica)
        try:
            self._acknowledgements.reported(replica, start)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send(writer, replica, protocol, more, holdings))
                tasks.create_task(self._read(reader, frames, replica))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._more.discard(more)
            self._acknowledgements.gone(replica)

    def _accepted(self, handshake: ReplicaHandshake | None, host: str, address: str) -> Replica:
        """The replica of a connection; `handshake` is None for one of RocketMQ. ReplicaRefusedError."""
        if len(self._tasks) - len(self._new) >= CONNECTIONS_MAX:
            raise ReplicaRefusedError(f"{CONNECTIONS_MAX} replicas are connected, which is the limit")
        if (task := asyncio.current_task()) is not None:
            self._new.pop(task, None)
        if handshake is None:
            if not self._config.rocketmq_acks and self._config.acks != "none":
                _log.warning(
                    "replica not counted for replication.acks address=%s: replicas of RocketMQ confirm messages before "
                    "they are on their disk; set replication.rocketmq_acks = true to count them",
                    address,
                )
            return Replica(("host", host), address, counts=self._config.rocketmq_acks)
        if self._config.has_lease and handshake.replica_id == self._config.broker_id:
            raise ReplicaRefusedError(
                f"its replication.broker_id is {handshake.replica_id}, which is this broker's; every broker of a group "
                f"needs its own"
            )
        return Replica(("id", str(handshake.replica_id)), address, counts=not handshake.is_learner)

    @property
    def _end(self) -> int:
        return self._store.positions[2]

    async def _first_report(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: ReplicaReader, begun: bytes
    ) -> tuple[int, Protocol]:
        answered = False
        if (reports := frames.feed(begun)) and frames.protocol is not None:
            return reports[-1], frames.protocol
        async with asyncio.timeout(self._silence_seconds):
            while True:
                settles = frames.protocol is None
                try:
                    async with asyncio.timeout(_SETTLE_SECONDS if settles else None):
                        reports = frames.feed(await _some(reader))
                except TimeoutError:
                    if not settles:
                        raise
                    reports = frames.settle()
                if frames.handshake is not None and not answered:
                    answered = True
                    write(writer, MasterHandshake(self._end, self._epochs.all).encode())
                if reports:
                    assert frames.protocol is not None, "it reported"
                    return reports[-1], frames.protocol

    def _start_of(self, report: int) -> int:
        store, end = self._store, self._end
        if report == 0:
            return store.min_physical_offset
        if not store.min_physical_offset <= report <= end:
            raise ReplicaRefusedError(
                f"its log ends at {report}, but this log has {store.min_physical_offset}..{end}; a replica that is "
                f"ahead has diverged, and one that is too far behind must start with an empty store"
            )
        if not store.is_boundary(report):
            raise ReplicaRefusedError(f"its log ends at {report}, where no record begins: the logs have diverged")
        return report

    async def _read(self, reader: asyncio.StreamReader, frames: ReplicaReader, replica: Replica) -> None:
        while True:
            async with asyncio.timeout(self._silence_seconds):
                data = await _some(reader)
            for offset in frames.feed(data):
                if not replica.acked <= offset <= replica.sent:
                    raise ReplicationFormatError(
                        f"it confirmed offset {offset}, outside {replica.acked}..{replica.sent} (last confirmed, "
                        f"last sent)"
                    )
                self._acknowledgements.reported(replica, offset)

    async def _send(
        self,
        writer: asyncio.StreamWriter,
        replica: Replica,
        protocol: Protocol,
        more: asyncio.Event,
        holdings: Holdings,
    ) -> None:
        writer.transport.set_write_buffer_limits(_WRITE_BUFFER)
        rest = 0  # remaining bytes of a record that is sent in parts
        while True:
            more.clear()
            while True:
                position = replica.sent
                rest = self._send_unit(writer, replica, protocol, rest)
                if replica.sent == position:
                    break
                holdings.set("unsent", writer.transport.get_write_buffer_size())
                await writer.drain()
            holdings.set("unsent", writer.transport.get_write_buffer_size())
            with suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat_seconds):
                    await more.wait()
            if not more.is_set():
                write(writer, encode_unit(self._unit(replica.sent, b"", protocol), protocol))
                await writer.drain()

    def _send_unit(self, writer: asyncio.StreamWriter, replica: Replica, protocol: Protocol, rest: int) -> int:
        """Send what follows, if there is anything. `rest`: missing bytes of a record that is sent in parts; returns
        those that are missing now. Nothing keeps the body while the replica does not read."""
        position = replica.sent
        body = self._unit_body(position, protocol, rest)
        if not body:
            return rest
        if rest or len(body) == UNIT_SIZE_SENT:
            rest = self._rest_behind(body, rest)
        replica.sent = position + len(body)
        write(writer, encode_unit(self._unit(position, body, protocol), protocol))
        return rest

    def _unit(self, position: int, body: bytes, protocol: Protocol) -> Unit:
        epoch = self._epochs.at(position) if protocol == "epochs" else None
        if epoch is None:
            return Unit(position, body)
        return Unit(position, body, epoch.number, epoch.start, self._acknowledgements.answered_before)

    def _unit_body(self, position: int, protocol: Protocol, rest: int) -> bytes:
        """The next bytes, of one segment and one epoch: whole records, or a part of a record larger than a unit."""
        size_max = UNIT_SIZE_MAX if not rest else min(rest, UNIT_SIZE_SENT)
        if protocol == "epochs" and (end := self._epochs.end_of(position)) is not None:
            size_max = min(size_max, end - position)
        data = self._store.flushed_bytes(position, size_max)
        if not len(data) and self._store.min_physical_offset > position:
            raise ReplicaRefusedError(
                f"the log at {position} expired before it was sent; start the replica with an empty store"
            )
        return bytes(data if rest else data[: _records_end(data) or UNIT_SIZE_SENT])

    @staticmethod
    def _rest_behind(body: bytes, rest: int) -> int:
        """The number of bytes missing from the record or blank at the end of `body`."""
        if rest:
            return rest - len(body)
        size: int = _SIZE.unpack_from(body)[0]
        return max(0, size - len(body))


def _records_end(data: memoryview) -> int:
    """The end of the last whole record within a unit's usual size, or of the first record if it is larger. 0: none."""
    position = 0
    while position + _SIZE.size <= len(data):
        (size,) = _SIZE.unpack_from(data, position)
        if size <= 0 or position + size > len(data) or (position and position + size > UNIT_SIZE_SENT):
            break
        position += size
    return position


def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """ConnectionResetError on a closed connection, for which uvloop's transports raise RuntimeError."""
    if writer.is_closing():
        raise ConnectionResetError("the connection is closed")
    writer.write(data)


async def _some(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(_READ_SIZE)
    if not data:
        raise EOFError("the replica closed the connection")
    return data
