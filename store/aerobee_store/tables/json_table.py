"""One of RocketMQ's configuration files, with a copy of its previous content.

    topics.json        the content of the last save
    topics.json.bak    the content of the save before it
    topics.json.crc    the checksums of both: table_checksums.py
    topics.json.tmp, .bak.tmp, .crc.tmp     left by a crash; ignored, and replaced by the next save
    topics.json.damaged                     an unreadable main file, kept for inspection
    topics.json.changed, .changed.bak       a main file that differed from the saved content, and its .bak; kept too

The steps of a save:

    1  write and sync .tmp      2  link main to .bak.tmp, rename that to .bak (the first time: sync the directory)
    3  write and sync .crc      4  rename .tmp to main      5  sync the directory

The main file therefore always exists and is always complete. It has the old content before step 4 and the new content
afterwards; both are synced, and .crc contains the checksums of both. Step 2 gives the old file a second name and copies
no data. If the main file is unreadable, step 2 is omitted: .bak is then the only good content, and must stay until the
main file is good again.

RocketMQ renames main to .bak first and then writes main anew; its reader and ours therefore fall back to .bak.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from aerobee_store.errors import StoreError
from aerobee_store.stats import StoreStats
from aerobee_store.tables import java_json
from aerobee_store.tables.table_checksums import ChecksumFiles, Content, TableChecksums

_log = logging.getLogger(__name__)


class TableFiles(ChecksumFiles, Protocol):
    """The part of a file system that a table needs. Every method raises the operating system's OSError."""

    def link(self, source: Path, target: Path) -> object:
        """Give `source` a second name, which must be free."""

    def sync_directory(self, path: Path) -> object:
        """Make the entries of this directory durable."""


class UnreadableTableError(StoreError):
    """There is content, but neither the file nor its .bak can be read. Starting with an empty table would lose it."""

    def __init__(self, path: Path, causes: list[str]) -> None:
        super().__init__(
            f"{path}: no readable copy ({'; '.join(causes)}); "
            "restore one of them from a backup or repair it, add what is lost of topics and groups with "
            "`aerobee store rebuild DIR --tables`, or move all files of this name away to start with an empty table"
        )
        self.path = path


class _Copy(Struct, frozen=True):
    """The content of one of the two files."""

    state: Literal["good", "absent", "empty", "damaged"]
    value: object = None
    cause: str = ""  # why it is invalid
    content: Content | None = None  # the checksum that identifies it


class JsonTable:
    """The durable content of one file. Synchronous: the broker calls it in the disk thread, one call at a time."""

    def __init__(
        self,
        files: TableFiles,
        path: Path,
        *,
        old_content_helps: bool = True,
        checksum_inside: bool = False,
        may_be_edited: bool = True,
        stats: StoreStats | None = None,
    ) -> None:
        """`old_content_helps`: the content of .bak is better than none if the main file cannot be read.

        `checksum_inside`: the content has a checksum of its own, so that none is needed beside it. `may_be_edited`: a
        person or RocketMQ may write the file; otherwise content that does not match the saved checksum is damaged.
        `stats` counts contents that do not match the saved checksum.
        """
        self.path = path
        self._old_content_helps = old_content_helps
        self._files = files
        self._backup = _beside(path, ".bak")
        self._checksums = None if checksum_inside else TableChecksums(files, path)
        self._may_be_edited = may_be_edited
        self._stats = stats
        self._main_state: Literal["unknown", "good", "absent", "empty", "damaged"] = "unknown"
        self._is_changed = False  # the main file was read, but does not match its checksum
        self._present: Content | None = None  # the content returned by load, or saved last
        self.is_from_copy = False
        """Whether the last `load` returned the content of .bak."""

    def load(self, *, report: bool = True) -> object | None:
        """Return the content of the main file or, where that is missing, empty or invalid JSON, that of its .bak.

        None if neither exists and nothing was ever saved. A warning is logged if .bak is used, and if the content does
        not match its checksum. If a person may have edited it, such content is used nevertheless. With `report`
        false, another reader of the file logs the warning. Nothing is changed or deleted.

        Raises UnreadableTableError if there is or was content that cannot be read; OSError from the disk.
        """
        if self._checksums is not None:
            self._checksums.load()
        self.is_from_copy = False
        main = self._read(self.path)
        self._main_state, self._present = main.state, main.content
        if main.state == "good":
            self._is_changed = self._check(self.path, main, report)
            return main.value
        backup = self._read(self._backup)
        if backup.state == "good" and (self._old_content_helps or main.state == "absent"):
            self._present, self.is_from_copy = backup.content, True
            if report:
                _log.warning(
                    "configuration file unreadable, its copy is used path=%s cause=%r", self._backup, main.cause
                )
            self._check(self._backup, backup, report)
            return backup.value
        # Only this store writes files with a checksum inside, and it never leaves an empty one.
        was_saved = main.state == "empty" and (self._checksums is None or self._checksums.exists)
        # A crash of the first save leaves its .tmp beside the checksums.
        if main.state == "absent" and self._checksums is not None and self._checksums.exists:
            was_saved = not self._files.exists(_beside(self.path, ".tmp"))
        if "damaged" in (main.state, backup.state) or was_saved:
            raise UnreadableTableError(self.path, [main.cause, backup.cause])
        if main.state == "empty" and report:
            # A crash during RocketMQ's very first save leaves an empty file: there never was any content.
            _log.warning("configuration file is empty and has no copy; the table starts empty path=%s", self.path)
        return None

    @property
    def content_size(self) -> int:
        """Bytes of the content that was last loaded or saved; 0 without one."""
        return self._present.size if self._present is not None else 0

    def save(self, value: object) -> None:
        """Save `value` as the content; it is durable on return. The previous content becomes .bak.

        After an OSError or a crash at any moment, `load` returns either the previous content or `value`.
        """
        data = java_json.dumps(value)
        if self._main_state == "unknown":
            if self._checksums is not None:
                self._checksums.load()
            main = self._read(self.path)
            self._main_state, self._present = main.state, main.content
        temporary = self._free_name(".tmp")
        self._files.write_new(temporary, data)
        if self._main_state == "absent":
            self._files.sync_directory(self.path.parent)  # checksums alone mean that a saved file is gone
        if self._is_changed:
            self._keep_changed()
        if self._main_state == "good":
            # If .bak is the same file already, rename does nothing and leaves both names; the next save cleans up.
            second_name = self._free_name(".bak.tmp")
            self._files.link(self.path, second_name)
            self._files.rename(second_name, self._backup)
        elif self._main_state == "damaged" and not self._files.exists(_beside(self.path, ".damaged")):
            self._files.link(self.path, _beside(self.path, ".damaged"))
        content = Content.of(data)
        if self._checksums is not None:
            self._checksums.note(content, self._present)
        self._files.rename(temporary, self.path)
        self._main_state, self._present, self._is_changed = "good", content, False
        self._files.sync_directory(self.path.parent)

    def _keep_changed(self) -> None:
        """Keep a possibly damaged file under names that no save removes; only the latest is kept."""
        for source, suffix in ((self.path, ".changed"), (self._backup, ".changed.bak")):
            target = self._free_name(suffix)
            if self._files.exists(source):
                self._files.link(source, target)

    def _check(self, path: Path, copy: _Copy, report: bool) -> bool:
        """Log a warning if the file does not match its checksum; return whether it does not."""
        assert copy.content is not None
        problem = self._checksums.problem_of(copy.content) if self._checksums is not None else None
        if problem is None or not report:
            return problem is not None
        _log.warning(
            "configuration file does not match its checksum and is used as it is; unless it was edited, compare it "
            "with its copy or a backup path=%s cause=%r",
            path,
            problem,
        )
        if self._stats is not None:
            self._stats.tables_changed += 1
        return True

    def _read(self, path: Path) -> _Copy:
        try:
            data = self._files.read_bytes(path)
        except FileNotFoundError:
            return _Copy("absent", cause=f"{path.name} is missing")
        if not data.strip():
            return _Copy("empty", cause=f"{path.name} is empty")
        content = Content.of(data)
        if not self._may_be_edited and self._checksums is not None and self._checksums.contradict(content):
            cause = f"{path.name}: {self._checksums.problem_of(content)}; if it was edited, remove"
            return _Copy("damaged", cause=f"{cause} {self._checksums.path.name}")
        try:
            return _Copy("good", java_json.loads(data), content=content)
        except java_json.JsonFormatError as error:
            return _Copy("damaged", cause=f"{path.name}: {error}")

    def _free_name(self, suffix: str) -> Path:
        """A free name beside the main file; a crash may have left a file there."""
        path = _beside(self.path, suffix)
        if self._files.exists(path):
            self._files.unlink(path)
        return path


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
