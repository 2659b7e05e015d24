"""The order to truncate the log at the next start: a file that contains the offset, removed when the log is truncated.

A replica writes it if its log has bytes that its master's log does not have. The bytes after the offset are copied to
`quarantine` (`diverged-OFFSET`, whole segments as `diverged-SEGMENT`), and the log continues at the offset. An
interrupted start repeats the cut. The timer's files are derived from the log, so they are removed and rebuilt.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from aerobee_store.disk.file_system import FileSystem, replace_file
from aerobee_store.errors import StoreDirectoryError
from aerobee_store.records.decimals import decimal

FILE_NAME: Final = "logCut"
DIVERGED: Final = "diverged-"
"""Prefix of the names of files in `quarantine` with such a tail; the physical offset follows."""


def order(file_system: FileSystem, directory: Path, physical_offset: int) -> None:
    """Order the cut at this offset, which must be the end of a record. Blocking; durable on return. Raises OSError."""
    replace_file(file_system, directory / FILE_NAME, f"{physical_offset}\n".encode())


def ordered(file_system: FileSystem, directory: Path) -> int | None:
    """The ordered offset; None without an order. Blocking. StoreDirectoryError, OSError."""
    path = directory / FILE_NAME
    if not file_system.exists(path):
        return None
    text = file_system.read_bytes(path).decode("ascii", "replace").strip()
    offset = decimal(text)
    if offset is None:
        raise StoreDirectoryError(f"{path}: {text[:40]!r} is not an offset; remove the file to leave the log unchanged")
    return offset


def done(file_system: FileSystem, directory: Path) -> None:
    """Remove the order, after the log was cut and everything is synced. Blocking. OSError."""
    remove_timer_files(file_system, directory)
    with suppress(FileNotFoundError):
        file_system.unlink(directory / FILE_NAME)
    file_system.sync_directory(directory)


def remove_timer_files(file_system: FileSystem, directory: Path) -> None:
    """Remove the timer's files, which are rebuilt from the log. Blocking; not synced. OSError."""
    timer_log = directory / "timerlog"
    names = file_system.list(timer_log) if file_system.exists(timer_log) else []
    for path in (
        *(timer_log / name for name in names),
        directory / "timerwheel",
        directory / "config" / "timercheck",
    ):
        with suppress(FileNotFoundError):
            file_system.unlink(path)
