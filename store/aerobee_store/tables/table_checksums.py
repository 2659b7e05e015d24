"""The size and CRC-32 of a configuration file's content, in a separate file.

RocketMQ's JSON has no field for a checksum, and its format is not changed. `topics.json.crc` therefore describes two
contents, the one being saved and the previous one, each in a sector of its own:

    offset  size  field
         0     4  magic        MAGIC
         4     8  size         bytes of the content
        12     4  crc          CRC-32 of the content
        16     4  slot crc     CRC-32 of the 16 bytes before
       512    20  the other content; zeros where there is none

Before the new content is renamed to the main name, a save overwrites and syncs the slot that does not describe the
present content. After a power cut, the slot of the main file's content is therefore intact, and a crash is never
mistaken for damage. The first save creates the checksum file under another name. If that rename is lost, there are no
checksums and no warning.

Content that matches neither slot was damaged, or written by a person or by RocketMQ. These cases cannot be told apart:
a flipped bit and a person can both turn an 8 into a 9. A warning is logged and the content is used, except in tables
that nobody edits. Damage that restores exactly the previous content goes undetected, because a crash in the middle of a
save leaves the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, Self
from zlib import crc32

from msgspec import Struct

from aerobee_store.disk.file_system import File

SUFFIX: Final = ".crc"
MAGIC: Final = b"AETC"
SLOT_SIZE: Final = 512  # bytes that a disk writes atomically
_SLOT: Final = struct.Struct(">4sQII")
assert _SLOT.size == 20, "the table above and the struct must agree"
_FILE_SIZE: Final = 2 * SLOT_SIZE
_COVERED: Final = 16


class ChecksumFiles(Protocol):
    """The part of a file system that the checksums need. Every method raises the operating system's OSError."""

    def read_bytes(self, path: Path) -> bytes:
        """The whole file; FileNotFoundError if there is none."""

    def write_new(self, path: Path, data: bytes) -> object:
        """Create the file, write and sync it."""

    def open(self, path: Path) -> File:
        """Open a file to overwrite a part of it."""

    def rename(self, source: Path, target: Path) -> object:
        """Rename `source` to `target`, replacing it."""

    def unlink(self, path: Path) -> object:
        """Remove the name."""

    def exists(self, path: Path) -> bool:
        """Whether the file exists."""


class Content(Struct, frozen=True):
    """The identity of a content: its size in bytes and its CRC-32."""

    size: int
    crc: int

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Size and CRC-32 of these bytes."""
        return cls(len(data), crc32(data))

    def encoded(self) -> bytes:
        """The bytes of a slot."""
        covered = _SLOT.pack(MAGIC, self.size, self.crc, 0)[:_COVERED]
        return covered + crc32(covered).to_bytes(4, "big")

    @classmethod
    def decode(cls, slot: bytes) -> Self | None:
        """The content of a slot; None if it is damaged or empty."""
        magic, size, crc, slot_crc = _SLOT.unpack_from(slot)
        return cls(size, crc) if magic == MAGIC and slot_crc == crc32(slot[:_COVERED]) else None


class TableChecksums:
    """The checksums of one configuration file. Synchronous, one caller at a time, like its table."""

    def __init__(self, files: ChecksumFiles, table_path: Path) -> None:
        self.path = table_path.with_name(table_path.name + SUFFIX)
        self.exists = False
        self._files = files
        self._slots: list[Content | None] = [None, None]
        self._is_whole = False

    def load(self) -> None:
        """Read the file. A missing or damaged one is no error; OSError from the disk."""
        self._slots, self._is_whole = [None, None], False
        try:
            data = self._files.read_bytes(self.path)
        except FileNotFoundError:
            self.exists = False
            return
        self.exists = True
        if len(data) != _FILE_SIZE:
            return
        encoded = [data[start : start + _SLOT.size] for start in (0, SLOT_SIZE)]
        self._slots = [Content.decode(slot) for slot in encoded]
        # One slot may be empty. A slot that is neither empty nor valid is damaged, or a crash interrupted its write.
        self._is_whole = any(self._slots) and all(
            content is not None or not any(slot) for content, slot in zip(self._slots, encoded, strict=True)
        )

    def problem_of(self, content: Content) -> str | None:
        """Why this content does not match the saved one; None if it does, or there are no checksums."""
        if not self.exists or content in self._slots:
            return None
        if not self._is_whole:
            return f"{self.path.name} is damaged, so nothing tells whether the file is"
        wanted = " or ".join(f"{slot.size} bytes with CRC-32 {slot.crc:08x}" for slot in self._slots if slot)
        return f"{content.size} bytes with CRC-32 {content.crc:08x}, but {wanted} were saved"

    def contradict(self, content: Content) -> bool:
        """Whether this content was certainly not saved: other contents were, and their checksums are whole."""
        return self.exists and self._is_whole and content not in self._slots

    def note(self, content: Content, present: Content | None) -> None:
        """Record `content` durably, and keep `present`, which is still the file's content. OSError."""
        if self._is_usable():
            keep = self._slots.index(present) if present is not None and present in self._slots else None
            slots = list(self._slots)
            if keep is None:
                slots = [content, present]
                self._overwrite(0, _joined(slots))
            else:
                slots[1 - keep] = content
                self._overwrite((1 - keep) * SLOT_SIZE, content.encoded())
        else:
            slots = [content, present]
            temporary = self.path.with_name(self.path.name + ".tmp")
            if self._files.exists(temporary):
                self._files.unlink(temporary)
            self._files.write_new(temporary, _joined(slots))
            self._files.rename(temporary, self.path)
        self._slots, self.exists, self._is_whole = slots, True, True

    def _is_usable(self) -> bool:
        """Whether the file can be overwritten: it may have any size, or have been removed in the meantime."""
        return self.exists and any(self._slots) and self._files.exists(self.path)

    def _overwrite(self, position: int, data: bytes) -> None:
        file = self._files.open(self.path)
        try:
            file.write([data], position)
            file.sync()
        finally:
            file.close()


def _joined(slots: Sequence[Content | None]) -> bytes:
    return b"".join((slot.encoded() if slot is not None else b"").ljust(SLOT_SIZE, b"\0") for slot in slots)
