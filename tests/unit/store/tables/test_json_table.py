"""A configuration file and its copy: which is read, and that no crash during a save loses both."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from aerobee_store.disk.file_system import Buffer, DiskFileSystem, File
from aerobee_store.tables.java_json import Bean, dumps
from aerobee_store.tables.json_table import JsonTable, UnreadableTableError

NAMES = ("topics.json", "topics.json.bak")
CHECKSUMS = "topics.json.crc"
FIRST, SECOND, THIRD = ({"n": number, "rest": "x" * 100} for number in (1, 2, 3))
Files = dict[str, bytes]


def table(directory: Path) -> JsonTable:
    return JsonTable(DiskFileSystem(), directory / NAMES[0])


def lay_out(directory: Path, files: Files) -> None:
    directory.mkdir(exist_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)


def contents(directory: Path) -> Files:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def tables(directory: Path) -> Files:
    """Return the files in the directory except the checksums."""
    found = contents(directory)
    assert found.pop(CHECKSUMS)
    return found


class Recorder:
    """A disk that records every change and fails at call number `fails_at` (counted from 0)."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.disk = DiskFileSystem()
        self.fails_at = fails_at
        self.calls: list[tuple[str, tuple[object, ...]]] = []

    def _do(self, name: str, function: Callable[..., None], *arguments: object) -> None:
        if len(self.calls) == self.fails_at:
            raise OSError(errno.EIO, f"made to fail: {name}")
        self.calls.append((name, arguments))
        function(*arguments)

    def read_bytes(self, path: Path) -> bytes:
        return self.disk.read_bytes(path)

    def exists(self, path: Path) -> bool:
        return self.disk.exists(path)

    def open(self, path: Path) -> File:
        return RecordedFile(self, path, self.disk.open(path))

    def overwrite(self, path: Path, file: File, data: bytes, position: int) -> None:
        """Record the file's content after the write; a sync follows."""
        content = bytearray(self.disk.read_bytes(path))
        content[position : position + len(data)] = data
        self._do("overwrite", lambda *_: file.write([data], position), path, bytes(content))

    def write_new(self, path: Path, data: bytes) -> None:
        self._do("write_new", self.disk.write_new, path, data)

    def rename(self, source: Path, target: Path) -> None:
        self._do("rename", self.disk.rename, source, target)

    def link(self, source: Path, target: Path) -> None:
        self._do("link", self.disk.link, source, target)

    def unlink(self, path: Path) -> None:
        self._do("unlink", self.disk.unlink, path)

    def sync_directory(self, path: Path) -> None:
        self._do("sync_directory", self.disk.sync_directory, path)


class RecordedFile:
    """A file of a Recorder, to be overwritten and then synced."""

    def __init__(self, recorder: Recorder, path: Path, file: File) -> None:
        self._recorder = recorder
        self._path = path
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        self._recorder.overwrite(self._path, self._file, b"".join(buffers), position)

    def sync(self) -> None:
        self._recorder._do("sync", lambda _: self._file.sync(), self._path)


# Files that a save may find: name of the case -> files, and the content that load must return before the save.
STARTS: dict[str, tuple[Files, object]] = {
    "nothing": ({}, None),
    "main alone": ({NAMES[0]: dumps(FIRST)}, FIRST),
    "both": ({NAMES[0]: dumps(SECOND), NAMES[1]: dumps(FIRST)}, SECOND),
    "main missing": ({NAMES[1]: dumps(FIRST)}, FIRST),
    "main empty": ({NAMES[0]: b"", NAMES[1]: dumps(FIRST)}, FIRST),
    "main damaged": ({NAMES[0]: dumps(SECOND)[:-5], NAMES[1]: dumps(FIRST)}, FIRST),
    "copy damaged": ({NAMES[0]: dumps(SECOND), NAMES[1]: b"\0\0"}, SECOND),
    "left by a crash": (
        {
            NAMES[0]: dumps(SECOND),
            NAMES[1]: dumps(FIRST),
            "topics.json.tmp": b'{"n',
            "topics.json.bak.tmp": dumps(FIRST),
        },
        SECOND,
    ),
}
start = pytest.mark.parametrize("case", STARTS)


@start
def test_load_takes_main_else_copy_and_changes_nothing(tmp_path: Path, case: str) -> None:
    """In any state of the files, the newest readable content is returned and no file changes."""
    files, expected = STARTS[case]
    lay_out(tmp_path, files)
    assert table(tmp_path).load() == expected
    assert contents(tmp_path) == files


@start
@pytest.mark.parametrize("load_first", [True, False])
def test_save_keeps_previous_content_as_copy(tmp_path: Path, case: str, load_first: bool) -> None:
    """After a save main has the new content and .bak what load returned before; no other file is left."""
    files, before = STARTS[case]
    lay_out(tmp_path, files)
    saved = table(tmp_path)
    if load_first:
        saved.load()
    saved.save(THIRD)
    after = contents(tmp_path)
    assert after.pop(NAMES[0]) == dumps(THIRD)
    assert after.pop(NAMES[1], None) == (None if before is None else dumps(before))
    assert after.pop(CHECKSUMS)
    assert after == ({"topics.json.damaged": files[NAMES[0]]} if case == "main damaged" else {})
    assert table(tmp_path).load() == THIRD


@start
def test_failure_at_every_call_keeps_old_or_new(tmp_path: Path, case: str) -> None:
    """After a failure or a killed process at any step, old or new content is loaded; the OSError is raised.

    An existing main file is never missing, and the next save works.
    """
    files, before = STARTS[case]
    for fails_at in itertools.count():
        directory = tmp_path / str(fails_at)
        lay_out(directory, files)
        disk = Recorder(fails_at)
        saved = JsonTable(disk, directory / NAMES[0])
        assert saved.load() == before
        with contextlib.suppress(OSError):
            saved.save(THIRD)
            assert fails_at >= 5, "a save has at least two writes, two renames and a sync"
            return
        found = table(directory).load()
        renamed = any(name == "rename" and arguments[1] == saved.path for name, arguments in disk.calls)
        assert found == (THIRD if renamed else before)
        assert NAMES[0] in contents(directory) or NAMES[0] not in files
        disk.fails_at = None
        saved.save(SECOND)
        assert table(directory).load() == SECOND
        assert table(directory).load() == SECOND


Names = dict[str, bytes | None]


def name_changes(files: Files, calls: list[tuple[str, tuple[object, ...]]]) -> tuple[Names, list[Names]]:
    """Return the names that a sync of the directory made durable, and the changes of each later call.

    None stands for a removed name. The content of every file is synced before it gets its name, so an entry has all of
    it or is missing. A rename is one change.
    """
    names: Names = dict(files)
    durable: Names = dict(files)
    changes: list[Names] = []
    for call, arguments in calls:
        first, second = arguments[0], arguments[1] if len(arguments) > 1 else None
        assert isinstance(first, Path)
        match call, second:
            case "write_new", bytes():
                step: Names = {first.name: second}
            case "link", Path():
                step = {second.name: names[first.name]}
            case "rename", Path():
                step = {second.name: names[first.name], first.name: None}
            case "overwrite", bytes():
                for step in changes:
                    step.update({first.name: second} if first.name in step else {})
                names[first.name] = second
                continue
            case "sync_directory", None:
                durable, changes = dict(names), []
                continue
            case "sync", None:
                continue
            case _:
                assert call == "unlink"
                step = {first.name: None}
        names.update(step)
        changes.append(step)
    return durable, changes


@start
def test_power_cut_that_keeps_any_of_the_unsynced_names(tmp_path: Path, case: str) -> None:
    """Before the sync of the directory any of its changes may be lost; old or new content is still loaded."""
    files, before = STARTS[case]
    lay_out(tmp_path, files)
    disk = Recorder()
    JsonTable(disk, tmp_path / NAMES[0]).save(THIRD)
    *calls, last = disk.calls
    assert last == ("sync_directory", (tmp_path,))
    durable, changes = name_changes(files, calls)
    subsets = list(itertools.product([True, False], repeat=len(changes)))
    for kept in subsets if len(subsets) <= 128 else random.Random(case).sample(subsets, 128):
        names = dict(durable)
        for change in itertools.compress(changes, kept):
            names.update(change)
        for path in tmp_path.iterdir():
            path.unlink()
        lay_out(tmp_path, {name: data for name, data in names.items() if data is not None})
        found = table(tmp_path).load()
        assert found in (before, THIRD)
        assert found == THIRD or not all(kept)


def test_crash_while_writing_the_temporary_file(tmp_path: Path) -> None:
    """A torn temporary file is not read, and does not block the next save."""
    lay_out(tmp_path, {NAMES[0]: dumps(FIRST), "topics.json.tmp": dumps(SECOND)[:-1]})
    saved = table(tmp_path)
    assert saved.load() == FIRST
    saved.save(THIRD)
    assert tables(tmp_path) == {NAMES[0]: dumps(THIRD), NAMES[1]: dumps(FIRST)}


def test_save_after_crash_between_copy_and_rename(tmp_path: Path) -> None:
    """Main and .bak may then be one file; renaming one name to the other leaves both, which is harmless."""
    lay_out(tmp_path, {NAMES[0]: dumps(FIRST)})
    (tmp_path / NAMES[1]).hardlink_to(tmp_path / NAMES[0])
    saved = table(tmp_path)
    saved.save(SECOND)
    assert table(tmp_path).load() == SECOND
    saved.save(THIRD)
    assert tables(tmp_path) == {NAMES[0]: dumps(THIRD), NAMES[1]: dumps(SECOND)}


def test_many_saves(tmp_path: Path) -> None:
    """Each save moves the content of the one before to .bak."""
    saved = table(tmp_path)
    for number in range(5):
        saved.save(Bean(n=number))
    assert tables(tmp_path) == {NAMES[0]: b'{\n\t"n":4\n}', NAMES[1]: b'{\n\t"n":3\n}'}


@pytest.mark.parametrize(
    "files", [{NAMES[0]: b"{"}, {NAMES[1]: b"{"}, {NAMES[0]: b"{", NAMES[1]: b""}, {NAMES[0]: b"", NAMES[1]: b"x"}]
)
def test_nothing_readable_is_an_error(tmp_path: Path, files: Files) -> None:
    """Unreadable content is not loaded as an empty table; the error names file, place and next step."""
    lay_out(tmp_path, files)
    with pytest.raises(UnreadableTableError, match=r"topics\.json.*line 1, column.*repair"):
        table(tmp_path).load()
    assert contents(tmp_path) == files


@pytest.mark.parametrize("files", [{NAMES[0]: b""}, {NAMES[0]: b" \n", NAMES[1]: b""}, {NAMES[1]: b""}])
def test_empty_files_are_an_empty_table(tmp_path: Path, files: Files) -> None:
    """A crash during RocketMQ's first save leaves empty files."""
    lay_out(tmp_path, files)
    assert table(tmp_path).load() is None


def test_use_of_the_copy_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the file used and the reason; reading a good main file logs nothing."""
    lay_out(tmp_path, {NAMES[0]: b"{]", NAMES[1]: dumps(FIRST)})
    with caplog.at_level(logging.DEBUG):
        table(tmp_path).load()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "topics.json.bak" in record.getMessage()
    assert "line 1, column 2" in record.getMessage()
    caplog.clear()
    lay_out(tmp_path, {NAMES[0]: dumps(FIRST)})
    table(tmp_path).load()
    assert not caplog.records
