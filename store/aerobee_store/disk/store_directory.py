"""The directory of a store: checks before opening, and the lock for a single process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from aerobee_store.disk.file_system import NO_ROOM, FileSystem, Lock
from aerobee_store.errors import StoreDirectoryError, StoreError, StoreFullError, StoreLockedError

ID_FILE: Final = "store.id"
"""The identity of a store: see log/log_claims.py."""
NEW_ID_FILE: Final = "store.id.tmp"

# A directory with any of these is a store. One with other entries and none of these belongs to another program.
STORE_NAMES: Final = frozenset(
    {
        "commitlog",
        "commitlog.paths",
        ID_FILE,
        NEW_ID_FILE,
        "consumequeue",
        "batchconsumequeue",
        "index",
        "checkpoint",
        "abort",
        "abort.bak",
        "lock",
        "config",
        "store",
        "lost+found",
    }
)


ABORT: Final = "abort"
"""Exists while a store is in use, and after an unclean stop."""
REBUILD_OLD: Final = "rebuild.old"
"""The directory to which a rebuild (tools/rebuild.py) moves the replaced files until it is complete."""
REBUILT_NAMES: Final = ("consumequeue", "batchconsumequeue", "index")


def lock_directory(file_system: FileSystem, directory: Path) -> Lock:
    """Lock the directory of a store; create it if needed. StoreLockedError, StoreDirectoryError, OSError."""
    if file_system.exists(directory):
        if not file_system.is_directory(directory):
            raise StoreDirectoryError(f"{directory}: not a directory; name one that is empty or holds a store")
        names = set(file_system.list(directory))
        if names and not names & STORE_NAMES:
            example = min(names)
            raise StoreDirectoryError(
                f"{directory}: contains {example!r} but no store; name an empty directory or one with a store"
            )
    else:
        file_system.make_directory(directory)
    try:
        return file_system.lock(directory / "lock", b"lock")
    except BlockingIOError as error:
        raise StoreLockedError(
            f"{directory}: another process has this store open; stop it, or name another directory"
        ) from error


def put_back(file_system: FileSystem, directory: Path) -> bool:
    """Restore files moved by an interrupted rebuild; return whether there were any. OSError.

    An empty queue's files are the only record of its next offset.
    """
    moved = [
        name
        for name in REBUILT_NAMES
        if file_system.exists(directory / REBUILD_OLD / name) and not file_system.exists(directory / name)
    ]
    for name in moved:
        file_system.rename(directory / REBUILD_OLD / name, directory / name)
    if moved:
        file_system.sync_directory(directory / REBUILD_OLD)
        file_system.sync_directory(directory)
    return bool(moved)


def mark_in_use(file_system: FileSystem, directory: Path) -> None:
    """Write the file `abort`, which a clean stop removes: process id and boot id, one per line. OSError."""
    content = f"{os.getpid()}\n{file_system.boot_id()}\n"
    file_system.write_new(directory / ABORT, content.encode())
    file_system.sync_directory(directory)


def writes_may_be_lost(file_system: FileSystem, directory: Path) -> bool:
    """Whether the machine may have stopped since a process left the store in use, so that unsynced writes may be lost.
    OSError.

    The death of the process alone loses no write. An empty `abort` comes from a tool, which synced its writes.
    """
    try:
        lines = file_system.read_bytes(directory / ABORT).decode("ascii", "replace").split()
    except FileNotFoundError:
        return False
    return bool(lines) and (len(lines) < 2 or lines[1] != file_system.boot_id())


def sync_names(file_system: FileSystem, directories: Iterable[Path]) -> None:
    """Make the entries of these directories durable, and their own entries up to the root. OSError.

    A process that died, or an interrupted start, may have made any of them just before.
    """
    found: dict[Path, None] = {}
    for directory in directories:
        if file_system.exists(directory):
            found |= dict.fromkeys((directory.absolute(), *directory.absolute().parents))
    for directory in found:
        with suppress(PermissionError):  # a parent that may not be listed was not made by us
            file_system.sync_directory(directory)


def open_error(directory: Path, error: OSError) -> StoreError:
    """The error for a disk error while a store is opened."""
    if isinstance(error, StoreError):
        return error
    if error.errno in NO_ROOM:
        return StoreFullError(f"{directory}: no space left on the disk; free some space and start again")
    return StoreDirectoryError(
        f"{error.filename or directory}: {error.strerror}; the store cannot be opened, check the path and its "
        f"permissions"
    )
