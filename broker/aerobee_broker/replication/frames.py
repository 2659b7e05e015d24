"""The frames of RocketMQ's two replication protocols, between replicas and masters, as bytes. No sockets.

The plain protocol (HAService) has no handshake; integers are big-endian and signed:

    replica -> master   report     8   offset at which its log ends
    master -> replica   unit      12   offset of the first byte, size of the body; then the body
                        heartbeat      the same with size 0: the offset of the next byte

The protocol with epochs (AutoSwitchHAService), which Aerobee's brokers use among themselves:

    replica -> master   handshake 16   state 1, flags (two of 16 bits: from the last file, learner), id of the replica
                        report    12   state 2, offset
    master -> replica   handshake 20   state 1, size of the body, end of the log, last epoch (-1: none);
                                       then number and start of each epoch: 4 + 8 bytes
                        unit      36   state 2, size, offset, epoch, start of the epoch, confirmed offset; then the
                                       body. A heartbeat has size 0
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Literal

from aerobee_broker.errors import BrokerError

REPORT: Final = struct.Struct(">q")
UNIT: Final = struct.Struct(">qi")
HANDSHAKE: Final = struct.Struct(">ihhq")
EPOCH_REPORT: Final = struct.Struct(">iq")
MASTER_HANDSHAKE: Final = struct.Struct(">iiqi")
EPOCH: Final = struct.Struct(">iq")
EPOCH_UNIT: Final = struct.Struct(">iiqiqq")
assert (REPORT.size, UNIT.size, HANDSHAKE.size, EPOCH_REPORT.size) == (8, 12, 16, 12), (
    "the table above and the structs must agree"
)
assert (MASTER_HANDSHAKE.size, EPOCH.size, EPOCH_UNIT.size) == (20, 12, 36), (
    "the table above and the structs must agree"
)

UNIT_SIZE_SENT: Final = 32 << 10  # haTransferBatchSize
UNIT_SIZE_MAX: Final = (4 << 20) - UNIT.size  # the limit of RocketMQ's replicas
EPOCHS_MAX: Final = 10_000
_HANDSHAKE_STATE: Final = 1
_TRANSFER_STATE: Final = 2
_REPLICA_ID_MAX: Final = 1 << 31
# The eight bytes of a plain report that could also begin a handshake: state 1, and each flag 0 or 1.
_LIKE_HANDSHAKE: Final = frozenset((1 << 32) + first * 65536 + second for first in (0, 1) for second in (0, 1))

Protocol = Literal["plain", "epochs"]


class ReplicationFormatError(BrokerError):
    """The other side sent bytes that are not a frame of the protocol."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of the log, or a heartbeat. Epoch numbers and offsets are -1 in the plain protocol."""

    offset: int
    body: bytes
    epoch: int = -1
    epoch_start: int = -1
    confirmed: int = -1


@dataclass(frozen=True, slots=True)
class Epoch:
    """A span of the log that one master wrote: its number, and the physical offset at which it begins."""

    number: int
    start: int


@dataclass(frozen=True, slots=True)
class ReplicaHandshake:
    """The replica's first frame in the protocol with epochs. A learner's reports do not count: no message waits for it,
    and it cannot become the master."""

    replica_id: int
    from_last_file: bool = False
    is_learner: bool = False

    def encode(self) -> bytes:
        return HANDSHAKE.pack(_HANDSHAKE_STATE, self.from_last_file, self.is_learner, self.replica_id)


@dataclass(frozen=True, slots=True)
class MasterHandshake:
    """The master's answer to the handshake."""

    end: int
    epochs: tuple[Epoch, ...]

    def encode(self) -> bytes:
        body = b"".join(EPOCH.pack(epoch.number, epoch.start) for epoch in self.epochs)
        last = self.epochs[-1].number if self.epochs else -1
        return MASTER_HANDSHAKE.pack(_HANDSHAKE_STATE, len(body), self.end, last) + body


def encode_report(offset: int, protocol: Protocol) -> bytes:
    return REPORT.pack(offset) if protocol == "plain" else EPOCH_REPORT.pack(_TRANSFER_STATE, offset)


def encode_unit(unit: Unit, protocol: Protocol) -> bytes:
    if protocol == "plain":
        return UNIT.pack(unit.offset, len(unit.body)) + unit.body
    head = EPOCH_UNIT.pack(_TRANSFER_STATE, len(unit.body), unit.offset, unit.epoch, unit.epoch_start, unit.confirmed)
    return head + unit.body


class ReplicaReader:
    """Reads a replica's frames, on the master's side. `protocol` is known after the first frame.

    A report of 4 GiB and a handshake begin with the same eight bytes. A handshake is sent in one piece, so the caller
    reports with `settle` that no more bytes have arrived for a while.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.protocol: Protocol | None = None
        self.handshake: ReplicaHandshake | None = None

    def feed(self, data: bytes) -> list[int]:
        """The offsets reported so far. Raises ReplicationFormatError."""
        self._buffer += data
        if self.protocol is None:
            self._detect()
        reports: list[int] = []
        if self.protocol == "plain":
            size = len(self._buffer) - len(self._buffer) % REPORT.size
            reports = [offset for (offset,) in REPORT.iter_unpack(self._buffer[:size])]
            del self._buffer[:size]
        elif self.protocol == "epochs":
            size = len(self._buffer) - len(self._buffer) % EPOCH_REPORT.size
            for state, offset in EPOCH_REPORT.iter_unpack(self._buffer[:size]):
                if state != _TRANSFER_STATE:
                    raise ReplicationFormatError(f"a replica reported in state {state}, not {_TRANSFER_STATE}")
                reports.append(offset)
            del self._buffer[:size]
        return reports

    def settle(self) -> list[int]:
        """No more bytes have arrived: eight bytes that could begin a handshake are a report."""
        if self.protocol is None and len(self._buffer) >= REPORT.size:
            self.protocol = "plain"
        return self.feed(b"")

    def _detect(self) -> None:
        if len(self._buffer) < REPORT.size:
            return
        (first,) = REPORT.unpack_from(self._buffer)
        if first not in _LIKE_HANDSHAKE:
            self.protocol = "plain"
        elif len(self._buffer) >= HANDSHAKE.size:
            _, from_last_file, is_learner, replica_id = HANDSHAKE.unpack_from(self._buffer)
            if not -1 <= replica_id < _REPLICA_ID_MAX:  # the next report, of such a long log
                self.protocol = "plain"
                return
            self.protocol = "epochs"
            self.handshake = ReplicaHandshake(replica_id, bool(from_last_file), bool(is_learner))
            del self._buffer[: HANDSHAKE.size]


class MasterReader:
    """Reads a master's frames, on the replica's side. Keeps at most one incomplete frame."""

    def __init__(self, protocol: Protocol, *, unit_size_max: int = UNIT_SIZE_MAX) -> None:
        self._protocol = protocol
        self._unit_size_max = unit_size_max
        self._buffer = bytearray()
        self._error: ReplicationFormatError | None = None
        self.handshake: MasterHandshake | None = None

    def feed(self, data: bytes) -> list[Unit]:
        """The complete units and heartbeats, including those before an invalid frame.

        Raises ReplicationFormatError. If valid units precede the invalid bytes, `check` raises it.
        """
        self.check()
        self._buffer += data
        if self._protocol == "epochs" and self.handshake is None and not self._take_handshake():
            return []
        units: list[Unit] = []
        position = 0
        try:
            while (found := self._unit_at(position)) is not None:
                unit, position = found
                units.append(unit)
        except ReplicationFormatError as error:
            if not units:
                raise
            self._error = error
        del self._buffer[:position]
        return units

    def check(self) -> None:
        """Raise the error that `feed` found after the returned units."""
        if self._error is not None:
            raise self._error

    def _unit_at(self, position: int) -> tuple[Unit, int] | None:
        head = UNIT if self._protocol == "plain" else EPOCH_UNIT
        if len(self._buffer) - position < head.size:
            return None
        if self._protocol == "plain":
            offset, size = UNIT.unpack_from(self._buffer, position)
            epoch = epoch_start = confirmed = -1
        else:
            state, size, offset, epoch, epoch_start, confirmed = EPOCH_UNIT.unpack_from(self._buffer, position)
            if state != _TRANSFER_STATE:
                raise ReplicationFormatError(f"a master sent state {state}, not {_TRANSFER_STATE}")
        if not 0 <= size <= self._unit_size_max:
            raise ReplicationFormatError(f"a master sent {size} bytes at once, not 0..{self._unit_size_max}")
        end = position + head.size + size
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[position + head.size : end])
        return Unit(offset, body, epoch, epoch_start, confirmed), end

    def _take_handshake(self) -> bool:
        if len(self._buffer) < MASTER_HANDSHAKE.size:
            return False
        state, size, end, last = MASTER_HANDSHAKE.unpack_from(self._buffer)
        if state != _HANDSHAKE_STATE or size % EPOCH.size or not 0 <= size <= EPOCHS_MAX * EPOCH.size:
            raise ReplicationFormatError(f"a master answered the handshake with state {state} and {size} bytes")
        if len(self._buffer) < MASTER_HANDSHAKE.size + size:
            return False
        body = self._buffer[MASTER_HANDSHAKE.size : MASTER_HANDSHAKE.size + size]
        epochs = tuple(Epoch(number, start) for number, start in EPOCH.iter_unpack(body))
        if (epochs[-1].number if epochs else -1) != last:
            raise ReplicationFormatError(f"the master's last epoch is {last}, and its list {epochs[-3:]}")
        self.handshake = MasterHandshake(end, epochs)
        del self._buffer[: MASTER_HANDSHAKE.size + size]
        return True
