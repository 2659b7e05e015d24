"""Which store a directory of the log belongs to, and whether another process writes it: checked before a start changes
anything.

A store has an identity, a random name in the file `store.id` of its directory. A copy of the directory has the same
one, a backup none. Every directory of the log carries a claim, the extended attribute `user.aerobee.store`:

    {"store": "8c1f...", "directory": "/var/lib/aerobee", "path": "/disk1/log"}

It is an attribute because RocketMQ refuses to load a log directory with any file that is not a segment. `directory` is
that of the store, so that the store itself is told from a copy; `path` is the directory of the log, so that a claim
that was copied or moved with its directory is recognised. Where a file system has no attributes, or the directory may
not be written, there is no claim; the other checks remain:

- every directory of the log is locked like that of the store, as long as the store is open;
- a log that lies in the directory of another store (`<other>/commitlog`) belongs to that store, whoever wrote it;
- a new store begins with an empty log, unless the log lies in its own directory;
- the last segments must not be open for writing in another process. RocketMQ locks only its storePathRootDir, which
  says nothing about a storePathCommitLog elsewhere, but it keeps its segments open.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Self

from msgspec import Struct

from aerobee_store.disk.file_system import FileSystem, Lock, replace_file
from aerobee_store.disk.store_directory import ID_FILE
from aerobee_store.errors import StoreDirectoryError, StoreLockedError
from aerobee_store.log.mapped_file import start_of

ATTRIBUTE: Final = "user.aerobee.store"
# A directory with any of these is the directory of a store; each store has at least one after its first start.
_OF_A_STORE: Final = ("consumequeue", "checkpoint", "config", ID_FILE)
_CHECKED_SEGMENTS: Final = 2  # RocketMQ writes the last or, while it has prepared the next one, the last but one
# The kernel closes the files of a killed process one by one, so its lock may be free a moment before its segments.
_ATTEMPTS: Final = 20
_PAUSE_SECONDS: Final = 0.1


class Claim(Struct, frozen=True):
    """The store that a directory of the log belongs to."""

    store: str
    directory: Path
    path: Path

    def encoded(self) -> bytes:
        """The value of the attribute."""
        content = {"store": self.store, "directory": str(self.directory), "path": str(self.path)}
        return json.dumps(content).encode()

    @classmethod
    def decode(cls, data: bytes | None) -> Self | None:
        """The claim in the value of an attribute; None without one, and for a value that is none of ours."""
        try:
            content = json.loads(data or b"")
            return cls(str(content["store"]), Path(content["directory"]), Path(content["path"]))
        except (ValueError, KeyError, TypeError):
            return None


class LogLocks:
    """The locks on the directories of a log."""

    def __init__(self, locks: Sequence[Lock]) -> None:
        self._locks = locks

    def release(self) -> None:
        """Release them all."""
        for lock in self._locks:
            lock.release()


def store_id(file_system: FileSystem, directory: Path) -> str | None:
    """The identity of the store in `directory`; None if it has none yet, as a store that RocketMQ wrote. OSError."""
    try:
        return file_system.read_bytes(directory / ID_FILE).decode("ascii", "replace").strip() or None
    except FileNotFoundError:
        return None


def claim_log(file_system: FileSystem, directory: Path, paths: Iterable[Path]) -> LogLocks:
    """Lock and claim the directories `paths` of the log of the store in `directory`, whose lock the caller holds.

    Missing directories are passed over. Raises StoreLockedError if another process uses one of them,
    StoreDirectoryError if one belongs to another store, and OSError. Nothing is changed before all are locked and
    checked.
    """
    directory = directory.resolve()
    paths = [path for path in dict.fromkeys(path.resolve() for path in paths) if file_system.exists(path)]
    identity = store_id(file_system, directory)
    is_new = not any(file_system.exists(directory / name) for name in _OF_A_STORE)
    locks: list[Lock] = []
    try:
        for path in paths:
            try:
                lock = file_system.lock_directory(path)
            except BlockingIOError as error:
                raise StoreLockedError(
                    f"{path}: another process has this directory of the log open; stop it, or name another directory"
                ) from error
            locks += () if lock is None else (lock,)
            _refuse_other_store(file_system, path, directory, identity, is_new=is_new)
            refuse_log_in_use(file_system, path)
        if identity is None:
            identity = _new_identity(file_system, directory)
        for path in paths:
            _claim(file_system, path, Claim(identity, directory, path))
    except BaseException:
        LogLocks(locks).release()
        raise
    return LogLocks(locks)


def refuse_log_in_use(file_system: FileSystem, path: Path) -> None:
    """Raise StoreLockedError if another process has the last segments of a directory open for writing."""
    segments = [name for name in file_system.list(path) if start_of(name) is not None][-_CHECKED_SEGMENTS:]
    for name in segments:
        for left in range(_ATTEMPTS - 1, -1, -1):
            if not file_system.is_open_for_writing(path / name):
                break
            if not left:
                raise StoreLockedError(
                    f"{path / name}: another process has this segment of the log open for writing, perhaps a running "
                    f"RocketMQ broker; stop it, or name a directory of this store's own"
                )
            time.sleep(_PAUSE_SECONDS)


def _refuse_other_store(
    file_system: FileSystem, path: Path, directory: Path, identity: str | None, *, is_new: bool
) -> None:
    """Raise StoreDirectoryError if a directory of the log belongs to another store than the one in `directory`."""
    is_own = path.parent == directory
    claim = Claim.decode(file_system.attribute(path, ATTRIBUTE))
    if claim is not None and claim.directory != directory:
        is_alive = claim.path == path and store_id(file_system, claim.directory) == claim.store
        if claim.store != identity and (is_alive or not is_own):
            raise StoreDirectoryError(
                f"{path}: this directory of the log belongs to the store in {claim.directory}, not to the one in "
                f"{directory}; name a directory of this store's own. If the other store is lost, move the segments to "
                f"a new directory and name that"
            )
        if is_alive:
            raise StoreDirectoryError(
                f"{path}: the store in {claim.directory} has its log here, and {directory} is a copy of that store; "
                f"copy this directory too and name the copy in store.commit_log_paths"
            )
    if is_own:
        return
    if path.name == "commitlog" and any(file_system.exists(path.parent / name) for name in _OF_A_STORE):
        raise StoreDirectoryError(
            f"{path}: this is the log of the store in {path.parent}; name a directory of this store's own, or open "
            f"the other store with store.directory (--store)"
        )
    if is_new and file_system.list(path):
        raise StoreDirectoryError(
            f"{path}: contains segments, but the store in {directory} is new, so they belong to another store; name an "
            f"empty directory. To begin a store with these segments alone, move them to {directory / 'commitlog'}"
        )


def _new_identity(file_system: FileSystem, directory: Path) -> str:
    identity = uuid.uuid4().hex
    replace_file(file_system, directory / ID_FILE, f"{identity}\n".encode())
    return identity


def _claim(file_system: FileSystem, path: Path, claim: Claim) -> None:
    if Claim.decode(file_system.attribute(path, ATTRIBUTE)) != claim:
        file_system.set_attribute(path, ATTRIBUTE, claim.encoded())
