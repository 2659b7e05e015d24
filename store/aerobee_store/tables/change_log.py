"""The changes of a configuration file since its last complete save: `topics.json.log` beside `topics.json`.

Without it, each new topic would rewrite all topics. The log has a fixed size and begins as zeros. Each save appends one
line and syncs it:

    <CRC-32 of the JSON, 8 hexadecimal digits> <one space> <JSON on one line> <line end>

The first line is `{"size":65536}`, the size of the file. Every other line is a change in the form of the table itself,
with the new value of each changed item, or null for a deleted one:

    {"after":17,"dataVersion":{"counter":19,...},"topicConfigTable":{"orders":{...},"bills":null}}

`after` is the counter of the table's dataVersion before the change. A change applies to a table with a lower counter
than its own; the table already contains the others.

A power cut during an append leaves some sectors of the last line as zeros. These zeros distinguish a torn line, which
was never acknowledged, from a damaged one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

from msgspec import Struct

from aerobee_store.disk.file_system import File, FileSystem
from aerobee_store.tables import java_json
from aerobee_store.tables.java_json import Bean

SUFFIX: Final = ".log"
SIZE_MIN: Final = 64 << 10
_BLOCK: Final = 4096
_SECTOR: Final = 512  # bytes that a disk writes atomically
_CRC_SIZE: Final = 8


class Changes(Struct, frozen=True):
    """The changes in a log, in order. `problem`: why some may be missing, None if the log is intact."""

    items: Sequence[dict[str, object]]
    problem: str | None = None


def encode_line(content: Bean) -> bytes:
    """One line of the log."""
    body = java_json.dumps(content, pretty=False)
    return b"%08x %b\n" % (crc32(body), body)


def decode_changes(data: bytes) -> Changes:
    """The changes in the bytes of a log file, without unreadable lines. A torn last line is no problem."""
    *lines, rest = data.rstrip(b"\0").split(b"\n")
    if rest and b"\0" not in rest:  # a torn line, or a damaged line end
        lines += (
            [rest] if _decode_line(rest) is not None else [rest[:-1]] if _decode_line(rest[:-1]) is not None else []
        )
    decoded = [_decode_line(line) for line in lines]
    if decoded and decoded[-1] is None and _lacks_a_sector(lines[-1], sum(len(line) + 1 for line in lines[:-1])):
        decoded.pop()
    damaged = [number for number, line in enumerate(decoded, 1) if line is None]
    header, items = (decoded[0], decoded[1:]) if decoded else (None, [])
    problem = None
    if damaged:
        problem = f"{len(damaged)} of {len(decoded)} lines have a wrong checksum, the first is line {damaged[0]}"
    elif header is None:
        problem = "it has no valid line"
    elif header.get("size") != len(data):
        problem = f"it has {len(data)} bytes instead of {header.get('size')}"
    return Changes([item for item in items if item is not None], problem)


def _lacks_a_sector(line: bytes, start: int) -> bool:
    """Whether one of the sectors of a line at this position is all zeros."""
    ends = [*range(_SECTOR - start % _SECTOR, len(line), _SECTOR), len(line)]
    return any(not any(line[begin:end]) for begin, end in zip([0, *ends], ends, strict=False))


def _decode_line(line: bytes) -> dict[str, object] | None:
    body = line[_CRC_SIZE + 1 :]
    if line[: _CRC_SIZE + 1] != b"%08x " % crc32(body):
        return None
    try:
        content = java_json.loads(body)
    except java_json.JsonFormatError:
        return None
    return content if isinstance(content, dict) else None


class ChangeLog:
    """The log of one table, for writing. One caller at a time."""

    def __init__(self, files: FileSystem, table_path: Path) -> None:
        self.path = table_path.with_name(table_path.name + SUFFIX)
        self.previous_path = table_path.with_name(table_path.name + SUFFIX + ".bak")
        """The changes between the previous complete save and the last one."""
        self._files = files
        self._file: File | None = None
        self._position = 0

    def read(self, *, previous: bool = False) -> Changes | None:
        """The changes in the log, or in that of the previous complete save; None without a file. OSError."""
        try:
            data = self._files.read_bytes(self.previous_path if previous else self.path)
        except FileNotFoundError:
            return None
        return decode_changes(data)

    @property
    def is_open(self) -> bool:
        """Whether this process has appended lines since the log was last retired."""
        return self._file is not None

    def fits(self, size: int) -> bool:
        """Whether a line of this many bytes fits after the lines of this process."""
        return self._file is None or self._position + size <= self._file.size

    def append(self, line: bytes, table_size: int) -> None:
        """Append a line; it is durable on return. After an OSError the log must be retired.

        The first line creates the file, as large as the table's own (`table_size` bytes), but at least 64 KiB: the
        total size of complete saves then stays proportional to the total size of changes.
        """
        if self._file is not None:
            self._file.write([line], self._position)
            self._file.sync()
            self._position += len(line)
            return
        size = -(-max(SIZE_MIN, table_size, 2 * len(line)) // _BLOCK) * _BLOCK
        temporary = self.path.with_name(self.path.name + ".tmp")
        if self._files.exists(temporary):
            self._files.unlink(temporary)
        data = encode_line(Bean(size=size)) + line
        self._file = self._files.create(temporary, size)
        self._file.write([data], 0)
        self._file.sync()
        self._position = len(data)
        self._files.rename(temporary, self.path)
        self._files.sync_directory(self.path.parent)

    def retire(self, *, damaged: bool = False) -> None:
        """Rename the log, because a complete save now contains its changes. OSError."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._files.exists(self.path):
            target = self.path.with_name(self.path.name + ".damaged") if damaged else self.previous_path
            self._files.rename(self.path, target)
