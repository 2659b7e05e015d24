"""The timer's progress, in `config/timercheck`, 4096 bytes.

    offset  size  field
         0     8  read_time        all slots before this time are complete, and their deliveries are durable
         8     8  log_position     the timer log is durable up to here
        16     8  queue_offset     the first message of the timer topic that is not in that part of the timer log
        24     8  master_offset    queue_offset of the master; here always equal to queue_offset
        32     8  state_version    of RocketMQ's data version
        40     8  timestamp        of RocketMQ's data version
        48     8  counter          of RocketMQ's data version
        56     8  begin            deliveries of the slots from read_time on are after this offset of the commit log
        64     4  precision        of the wheel, in ms
        68     4  clean            1: wheel and timer log were durable as a whole, and nothing was written since
        72     4  crc              CRC-32 of the 72 bytes before
        76    56  copy             of the first 56 bytes
       132     4  wheel_crc        CRC-32 of the whole wheel, where clean is 1
       136     8  log_begin        1 + the position from which the timer log is needed; 0: not known
       144     -  zeros

RocketMQ leaves zeros from byte 56 on, or the bytes that Aerobee wrote there; the checksum tells which of the two wrote
the file last. If the checksum is wrong, the copy differs in a single bit, and the copy makes the checksum right, then
that bit is damaged and is corrected: RocketMQ moves times by whole slots, which never changes only one bit.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from zlib import crc32

from aerobee_store.disk.file_system import FileSystem, overwrite

_log = logging.getLogger(__name__)

TIMER_CHECKPOINT_SIZE: Final = 4096
_FIELDS: Final = struct.Struct(">7q")
_OWN: Final = struct.Struct(">qii")
_CRC: Final = struct.Struct(">I")
_COPY_AT: Final = _FIELDS.size + _OWN.size + _CRC.size
_WHEEL_CRC_AT: Final = _COPY_AT + _FIELDS.size
_LOG_BEGIN: Final = struct.Struct(">q")
_LOG_BEGIN_AT: Final = _WHEEL_CRC_AT + _CRC.size
assert (_FIELDS.size, _OWN.size, _COPY_AT, _WHEEL_CRC_AT, _LOG_BEGIN_AT) == (56, 16, 76, 132, 136), (
    "the table above and the structs must agree"
)


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """Times in Unix ms. `begin` and `log_begin` are None and `clean` is false in a file that RocketMQ wrote last."""

    read_time_ms: int
    log_position: int
    queue_offset: int
    begin: int | None
    precision_ms: int = 0
    clean: bool = False
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0
    wheel_crc: int = field(default=0, compare=False)
    log_begin: int | None = field(default=None, compare=False)  # no unit before it is needed

    def encode_fields(self) -> bytes:
        """The fields that RocketMQ has, which brokers also send to each other."""
        return _FIELDS.pack(
            self.read_time_ms,
            self.log_position,
            self.queue_offset,
            self.queue_offset,
            self.state_version,
            self.timestamp_ms,
            self.counter,
        )

    def encode(self) -> bytes:
        fields = self.encode_fields()
        fields += _OWN.pack(self.begin or 0, self.precision_ms, self.clean)
        return (
            fields
            + _CRC.pack(crc32(fields))
            + fields[: _FIELDS.size]
            + _CRC.pack(self.wheel_crc)
            + _LOG_BEGIN.pack(0 if self.log_begin is None else 1 + self.log_begin)
        )

    @classmethod
    def decode(cls, data: bytes) -> TimerCheckpoint | None:
        """Decode the content of a file; None if it is too short, empty or impossible."""
        if len(data) < _FIELDS.size:
            return None
        copy = data[_COPY_AT : _COPY_AT + _FIELDS.size]
        if not _is_ours(data) and len(copy) == _FIELDS.size and _bits(copy, data) == 1:
            mended = copy + data[_FIELDS.size :]
            if _is_ours(mended):
                _log.warning("timer checkpoint has a flipped bit, corrected")
                data = mended
        read_time, position, queue_offset, _, version, timestamp, counter = _FIELDS.unpack_from(data)
        if read_time <= 0 or min(position, queue_offset) < 0:
            return None  # zeros: a power cut between the creation of the file and its first sync
        begin, precision, clean, wheel_crc, log_begin = None, 0, 0, 0, 0
        if _is_ours(data):
            begin, precision, clean = _OWN.unpack_from(data, _FIELDS.size)
            if len(data) >= _WHEEL_CRC_AT + _CRC.size:
                (wheel_crc,) = _CRC.unpack_from(data, _WHEEL_CRC_AT)
            if len(data) >= _LOG_BEGIN_AT + _LOG_BEGIN.size:
                (log_begin,) = _LOG_BEGIN.unpack_from(data, _LOG_BEGIN_AT)
        return cls(
            read_time,
            position,
            queue_offset,
            begin,
            precision,
            clean == 1,
            version,
            timestamp,
            counter,
            wheel_crc,
            log_begin - 1 if log_begin > 0 else None,
        )


def _is_ours(data: bytes) -> bool:
    """Whether the checksum is right: Aerobee wrote the file last, and the fields before the checksum are intact."""
    end = _FIELDS.size + _OWN.size
    return len(data) >= end + _CRC.size and _CRC.unpack_from(data, end)[0] == crc32(data[:end])


def _bits(one: bytes, other: bytes) -> int:
    """The number of differing bits, up to the length of the shorter one."""
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=False))


class TimerCheckpointFile:
    """The file. Blocking."""

    def __init__(self, file_system: FileSystem, path: Path) -> None:
        self._file_system = file_system
        self._path = path

    def load(self) -> TimerCheckpoint | None:
        """The checkpoint; None if there is no file, or no valid content."""
        try:
            return TimerCheckpoint.decode(self._file_system.read_bytes(self._path))
        except FileNotFoundError:
            return None

    def save(self, checkpoint: TimerCheckpoint) -> None:
        """Write it in place, within one sector, and sync it."""
        if not self._file_system.exists(self._path):
            self._file_system.make_directory(self._path.parent)
        overwrite(self._file_system, self._path, checkpoint.encode(), TIMER_CHECKPOINT_SIZE)
