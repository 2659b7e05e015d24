"""A new copy of another broker's log, beside the old copy that a replica has, and the exchange of the two.

A replica whose log cannot be continued any more copies the whole log of its master again. The new copy is a store of
its own:

    <store>/reseed/               its directory
    <parent of a log path>/reseed/<name of the log path>    its segments, on the disk of that log path
    <store>/reseedOrder           the order to exchange: a file that contains the step, `replace` or `move`

The old copy stays in use, unchanged, until the new one has everything and is closed. Then the exchange is ordered, and
the next start carries it out before it reads anything else. An interrupted start repeats it from the noted step on:

    replace   remove the old log and all that was derived from it; note the next step
    move      rename the files of the new copy to their places; remove its directories and the order

Tables, the role of the broker and its identity belong to the store, not to a copy of the log, and stay.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from aerobee_store.config import StoreConfig
from aerobee_store.disk.file_system import FileSystem, replace_file
from aerobee_store.disk.store_directory import ABORT, ID_FILE, NEW_ID_FILE
from aerobee_store.durability import log_cut, queue_bounds
from aerobee_store.errors import StoreDirectoryError
from aerobee_store.log import log_paths

DIRECTORY: Final = "reseed"
ORDER: Final = "reseedOrder"

Step = Literal["replace", "move"]
STEPS: Final[tuple[Step, ...]] = ("replace", "move")

_DERIVED: Final = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "checkpoint")
# of the store and of the process that has it open
_NOT_MOVED: Final = frozenset({"lock", ABORT, ID_FILE, NEW_ID_FILE, log_paths.FILE_NAME})


def config_of(config: StoreConfig) -> StoreConfig:
    """The configuration of the new copy of the log of a store."""
    paths = tuple(_copy_of(path) for path in config.commit_log_paths)
    directory = config.directory / DIRECTORY
    return replace(config, directory=directory, commit_log_paths=paths, read_only_commit_log_paths=())


def has_begun(file_system: FileSystem, config: StoreConfig) -> bool:
    """Whether there is a new copy, perhaps incomplete. Blocking."""
    return file_system.exists(config.directory / DIRECTORY)


def order(file_system: FileSystem, config: StoreConfig) -> None:
    """Order the exchange: the new copy is complete, and closed. Blocking; durable on return. Raises OSError."""
    _note(file_system, config.directory, "replace")


def discard(file_system: FileSystem, config: StoreConfig) -> None:
    """Remove the new copy, if there is one, which no process has open. Blocking. Raises OSError."""
    if not has_begun(file_system, config):
        return  # directories beside the log are not ours then
    for path in (*map(_copy_of, config.commit_log_paths), config.directory / DIRECTORY):
        _remove(file_system, path)
    for path in config.commit_log_paths:
        file_system.remove_directory(path.parent / DIRECTORY)


def carry_out(file_system: FileSystem, config: StoreConfig) -> bool:
    """Exchange the copies if that is ordered; return whether it was. The store's directories are locked.

    Blocking; durable on return. Raises StoreDirectoryError for an invalid order, and OSError: a repetition continues.
    """
    step = _ordered(file_system, config.directory)
    if step is None:
        return False
    if step == "replace":
        _remove_old(file_system, config)
        _note(file_system, config.directory, "move")
    for source, target in _moves(file_system, config):
        _move(file_system, source, target)
    discard(file_system, config)
    file_system.unlink(config.directory / ORDER)
    file_system.sync_directory(config.directory)
    return True


def _copy_of(log_path: Path) -> Path:
    return log_path.parent / DIRECTORY / log_path.name


def _note(file_system: FileSystem, directory: Path, step: Step) -> None:
    replace_file(file_system, directory / ORDER, f"{step}\n".encode())


def _ordered(file_system: FileSystem, directory: Path) -> Step | None:
    path = directory / ORDER
    if not file_system.exists(path):
        return None
    text = file_system.read_bytes(path).decode("ascii", "replace").strip()
    for step in STEPS:
        if text == step:
            return step
    raise StoreDirectoryError(
        f"{path}: {text[:40]!r} is not a step; write `replace` into the file to let the log in {DIRECTORY} replace the "
        f"store's, or remove the file to keep the store's"
    )


def _remove_old(file_system: FileSystem, config: StoreConfig) -> None:
    directory = config.directory
    for path in (*config.log_paths, *config.read_only_commit_log_paths):
        for name in file_system.list(path):
            file_system.unlink(path / name)
        if file_system.exists(path):
            file_system.sync_directory(path)
    tables = directory / "config"
    deleted = [tables / name for name in file_system.list(tables) if name.startswith("deletedTopics.json")]
    names = (*_DERIVED, queue_bounds.FILE_NAME, log_paths.FILE_NAME, log_cut.FILE_NAME)
    derived = [directory / name for name in names]
    for path in (*derived, *deleted):
        _remove(file_system, path)
    log_cut.remove_timer_files(file_system, directory)
    for path in (directory, tables):
        if file_system.exists(path):
            file_system.sync_directory(path)


def _moves(file_system: FileSystem, config: StoreConfig) -> list[tuple[Path, Path]]:
    """What is left to rename: each source with its target."""
    copy = config.directory / DIRECTORY
    found = []
    logs = {_copy_of(path): path for path in config.log_paths}
    for source, target in logs.items():
        found += [(source / name, target / name) for name in file_system.list(source)]
    for name in file_system.list(copy):
        if name not in _NOT_MOVED and copy / name not in logs:
            found.append((copy / name, config.directory / name))
    return found


def _move(file_system: FileSystem, source: Path, target: Path) -> None:
    """Rename, or move what a directory contains into one that exists."""
    if file_system.is_directory(source) and file_system.exists(target):
        for name in file_system.list(source):
            _move(file_system, source / name, target / name)
        return
    file_system.make_directory(target.parent)
    file_system.rename(source, target)
    file_system.sync_directory(target.parent)


def _remove(file_system: FileSystem, path: Path) -> None:
    """Remove a file or a directory with all that it contains, if it exists."""
    if file_system.exists(path) and file_system.is_directory(path):
        for name in file_system.list(path):
            _remove(file_system, path / name)
        file_system.remove_directory(path)
    else:
        with suppress(FileNotFoundError):
            file_system.unlink(path)
