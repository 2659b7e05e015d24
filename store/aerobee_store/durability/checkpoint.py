"""How far each kind of file is known to be durable, in store time.

    offset  size  field
         0     8  physic_timestamp      store time of the last record of the commit log known to be synced
         8     8  logics_timestamp      the same of the consume queues
        16     8  index_timestamp       the same of the index
        24     8  master_flushed_offset kept as found
        32     8  confirm_offset        start of the last record that recovery found
        40     8  derived_offset        queues and index are synced for every record before this physical offset
        48     4  crc                   CRC-32 of the 48 bytes before
        52     -  zeros, to 4096 bytes

RocketMQ has zeros from byte 40 on. Times alone cannot tell what was synced: many records share a millisecond, and
clocks are set back. If RocketMQ changes the file, the checksum no longer matches, and the times are used.

Unlike RocketMQ, which stores the time of queue units that it has not synced yet, this store writes a time only after
the sync that it describes.
"""

from __future__ import annotations

import struct
from pathlib import Path
from zlib import crc32

from aerobee_store.disk.file_system import FileSystem, overwrite
from aerobee_store.errors import StoreDirectoryError

CHECKPOINT_SIZE = 4096
_FIELDS = struct.Struct(">qqqqq")
_DERIVED = struct.Struct(">qI")
assert (_FIELDS.size, _DERIVED.size) == (40, 12), "the table above and the structs must agree"

# Records are dated before they are written, and batches share a time; RocketMQ keeps the same distance.
_SAFETY_MS = 3000


class Checkpoint:
    """The file `checkpoint`. Times in Unix milliseconds; 0 means unknown."""

    def __init__(self, file_system: FileSystem, path: Path) -> None:
        self._file_system = file_system
        self._path = path
        self.physic_timestamp = 0
        self.logics_timestamp = 0
        self.index_timestamp = 0
        self.master_flushed_offset = 0
        self.confirm_offset = 0
        self.derived_offset: int | None = None
        self._saved: bytes | None = None

    def load(self) -> None:
        """Read the file. A missing or short file means that nothing is known; recovery then reads everything."""
        try:
            data = self._file_system.read_bytes(self._path)
        except FileNotFoundError:
            return
        except IsADirectoryError as error:
            raise StoreDirectoryError(
                f"{self._path}: a directory has the name of the checkpoint file; move it away"
            ) from error
        if len(data) < _FIELDS.size:
            return
        (
            self.physic_timestamp,
            self.logics_timestamp,
            self.index_timestamp,
            self.master_flushed_offset,
            self.confirm_offset,
        ) = _FIELDS.unpack_from(data)
        if len(data) >= _FIELDS.size + _DERIVED.size:
            derived_offset, crc = _DERIVED.unpack_from(data, _FIELDS.size)
            if crc == crc32(data[: _FIELDS.size + 8]) and derived_offset >= 0:
                self.derived_offset = derived_offset
        self._saved = data[: _FIELDS.size + _DERIVED.size]

    @property
    def min_timestamp(self) -> int:
        """Log and queues are complete for every record stored before this time."""
        return max(0, min(self.physic_timestamp, self.logics_timestamp) - _SAFETY_MS)

    def encoded(self) -> bytes:
        """The current values, for `save` in a disk thread."""
        fields = _FIELDS.pack(
            self.physic_timestamp,
            self.logics_timestamp,
            self.index_timestamp,
            self.master_flushed_offset,
            self.confirm_offset,
        )
        if self.derived_offset is None:
            return fields + bytes(_DERIVED.size)
        fields += self.derived_offset.to_bytes(8, "big")
        return fields + crc32(fields).to_bytes(4, "big")

    def save_lower(self, derived_offset: int) -> None:
        """Save a lower `derived_offset`. This object keeps its own, before which the log is known to be synced."""
        kept, self.derived_offset = self.derived_offset, derived_offset
        try:
            self.save(self.encoded())
        finally:
            self.derived_offset = kept

    def save(self, encoded: bytes) -> None:
        """Write the file in place, 52 bytes of one sector, and sync it. Does nothing if the content is unchanged."""
        if encoded == self._saved:
            return
        overwrite(self._file_system, self._path, encoded, CHECKPOINT_SIZE)
        self._saved = encoded
