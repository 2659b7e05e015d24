"""The directory of a store: what it may hold before it is opened, and the lock that keeps it to one process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from aerobee_store.disk.file_system import NO_ROOM, FileSystem, Lock
from aerobee_store.errors import StoreDirectoryError, StoreError, StoreFullError, StoreLockedError

# A directory with any of these is a store; one with other things and none of these belongs to somebody else.
_STORE_NAMES: Final = frozenset(
    {
        "commitlog",
        "commitlog.paths",
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
"""Is there while a store is in use, and after a stop that was not orderly."""
REBUILD_OLD: Final = "rebuild.old"
"""Where a rebuild (tools/rebuild.py) moves what it replaces, until it is done."""
REBUILT_NAMES: Final = ("consumequeue", "batchconsumequeue", "index")


def lock_directory(file_system: FileSystem, directory: Path) -> Lock:
    """Lock the directory of a store, made if it is not there. StoreLockedError, StoreDirectoryError, OSError."""
    if file_system.exists(directory):
        if not file_system.is_directory(directory):
            raise StoreDirectoryError(f"{directory}: not a directory; name one that is empty or holds a store")
        names = set(file_system.list(directory))
        if names and not names & _STORE_NAMES:
            example = min(names)
            raise StoreDirectoryError(
                f"{directory}: holds {example!r} and nothing of a store; name an empty directory, or one with a store"
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
    """Put back what a rebuild had moved away and not replaced yet when it was killed; whether there was any. OSError.

    Queues of which the log has no message any more know alone where their offsets go on.
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
    """Write the file `abort`, which an orderly stop removes: process id and boot id, a line each. OSError."""
    content = f"{os.getpid()}\n{file_system.boot_id()}\n"
    file_system.write_new(directory / ABORT, content.encode())
    file_system.sync_directory(directory)


def writes_may_be_lost(file_system: FileSystem, directory: Path) -> bool:
    """Whether the machine may have stopped since a process left the store in use, and with it writes that were not
    synced. OSError.

    The death of the process alone takes no write. An empty `abort` is a tool's, which has synced what it wrote.
    """
    try:
        lines = file_system.read_bytes(directory / ABORT).decode("ascii", "replace").split()
    except FileNotFoundError:
        return False
    return bool(lines) and (len(lines) < 2 or lines[1] != file_system.boot_id())


def sync_names(file_system: FileSystem, directories: Iterable[Path]) -> None:
    """Make durable what these directories have, and their own names up to the root. OSError.

    A process that died, or a start that was broken off, may have made any of them a moment before.
    """
    found: dict[Path, None] = {}
    for directory in directories:
        if file_system.exists(directory):
            found |= dict.fromkeys((directory.absolute(), *directory.absolute().parents))
    for directory in found:
        with suppress(PermissionError):  # of a parent that may not be listed, and was not made by us
            file_system.sync_directory(directory)


def open_error(directory: Path, error: OSError) -> StoreError:
    """What to say of a disk that refused when a store was opened."""
    if isinstance(error, StoreError):
        return error
    if error.errno in NO_ROOM:
        return StoreFullError(f"{directory}: no space left on the disk; free some and start again")
    return StoreDirectoryError(f"{error.filename or directory}: {error.strerror}; the store cannot be opened")
