"""A table that follows a topic: its files and the next offset of every queue, changed together in one commit.

Files and progress cannot disagree, and nothing else records the progress:

    delta     one application transaction (`txn`) for each queue, `aerobee:TOPIC:BROKER:QUEUE`, with the next offset
    iceberg   the property `aerobee.offsets` of the newest snapshot in the history of the table that has it, and the
              same property of the table, for histories that others have cut off

Compaction, deletes and other writers keep both. A commit fails if the table has changed since it was loaded; whether
its progress has moved then tells another writer of this kind from one that only keeps house.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Protocol

import pyarrow as pa

from aerobee_pipeline.errors import PipelineError
from aerobee_pipeline.offsets import Offsets, Queue

PARTITION = "date"
"""The day of store time in UTC."""


class TableConflictError(PipelineError):
    """Another writer of this topic committed to the table since this one read its progress."""


class TableChangedError(PipelineError):
    """The table has another version than the one that was loaded; nothing was committed."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A Parquet file of one day, not yet in the table. `path` is relative to the table's place."""

    path: str
    day: str
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of the table. `uri` is absolute. `has_deletes`: some of its rows are deleted by another file."""

    uri: str
    day: date | None
    rows: int
    size: int
    has_deletes: bool
    own: Any
    """The format's own description."""


class TopicTable(Protocol):
    """A table in one version, until `load` reads the newest one."""

    keeps_day_in_files: bool
    """Whether the files have the column of the partition, or only the table."""

    def load(self) -> None:
        """Read the newest version, if there is a table."""

    def schema(self) -> pa.Schema | None:
        """The columns; None without a table."""

    def evolve(self, schema: pa.Schema) -> None:
        """Create the table, or add the columns that it lacks, by the format's rules. OptionError for a column that
        has another type and cannot take this one."""

    def progress(self, queues: Iterable[Queue]) -> Offsets:
        """The next offset of each of these queues, and of others that the table knows."""

    def files(self) -> list[TableFile]:
        """The files of this version."""

    def commit(self, add: Sequence[NewFile], remove: Sequence[TableFile], offsets: Mapping[Queue, int]) -> None:
        """Add and remove files and set the progress in one commit. TableChangedError if the version is not the newest
        any more."""

    def expire(self, days: float) -> None:
        """Forget versions that are older, and delete the files that no version left has and that are older."""
