"""Compares the configuration files with their checksums, and checks the logs of their changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from aerobee_store.disk.file_system import FileSystem
from aerobee_store.tables import change_log, java_json
from aerobee_store.tables.change_log import decode_changes
from aerobee_store.tables.json_table import UnreadableTableError
from aerobee_store.tables.logged_table import FIELDS, LoggedTable
from aerobee_store.tables.table_checksums import SUFFIX, Content, TableChecksums
from aerobee_store.tools.findings import Finding
from aerobee_store.tools.store_files import StoreFiles

_READS_MAX: Final = 10  # a broker may save between the reads of a file and its checksums


def check_tables(files: StoreFiles) -> Iterator[Finding]:
    """The problems of files with checksums; RocketMQ's own have none and cannot be checked."""
    directory = files.directory / "config"
    if not files.disk.is_directory(directory):
        return
    for name in sorted(files.disk.list(directory)):
        if name.removesuffix(change_log.SUFFIX) in FIELDS and name not in FIELDS:
            yield from _check_changes(files.disk, directory / name)
        if not name.endswith(SUFFIX):
            continue
        path = directory / name.removesuffix(SUFFIX)
        relative = f"config/{path.name}"
        data, problem = table_problem(files.disk, path)
        if data is None:
            if not files.disk.exists(path.with_name(f"{path.name}.tmp")):  # that of a first save that goes on
                detail = f"missing, although {name} shows that it was saved; a start uses {path.name}.bak, or refuses"
                yield Finding(kind="configuration-file", path=relative, detail=detail)
            continue
        try:
            java_json.loads(data)
        except java_json.JsonFormatError as error:
            detail = f"{error}; a start uses {path.name}.bak instead, the content of the previous save"
            yield Finding(kind="configuration-file", path=relative, detail=detail)
            continue
        if problem is not None:
            detail = f"not as it was saved ({problem}): edited or damaged; a start uses it and logs a warning"
            yield Finding(kind="configuration-changed", severity="warning", path=relative, detail=detail)


def _check_changes(disk: FileSystem, path: Path) -> Iterator[Finding]:
    with suppress(FileNotFoundError):  # the broker has made a complete save in the meantime
        problem = decode_changes(disk.read_bytes(path)).problem
        if problem is not None:
            detail = f"{problem}; a start applies the readable changes, logs a warning, and keeps the file"
            yield Finding(kind="configuration-file", path=f"config/{path.name}", detail=detail)


def topics_of(files: StoreFiles) -> dict[str, object] | None:
    """The JSON of each topic in the broker's table, by name; None if the table is missing or unreadable."""
    name = "topics.json"
    try:
        content = LoggedTable(files.disk, files.directory / "config" / name).load(report=False)
    except (OSError, UnreadableTableError):
        return None
    table = content.get(FIELDS[name]) if isinstance(content, dict) else None
    return table if isinstance(table, dict) else None


def table_problem(disk: FileSystem, path: Path) -> tuple[bytes | None, str | None]:
    """The content of a configuration file, None without one, and why it does not match its checksum."""
    checksums = TableChecksums(disk, path)
    before: bytes | None = None
    problem: str | None = None
    for _ in range(_READS_MAX):
        try:
            data = disk.read_bytes(path)
        except FileNotFoundError:
            return None, None
        checksums.load()
        problem = checksums.problem_of(Content.of(data))
        if problem is None or data == before:
            return data, problem
        before = data  # no match, but the file may have been saved twice since it was read
    return before, problem
