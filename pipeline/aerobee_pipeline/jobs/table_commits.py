"""Tables of Delta Lake and Iceberg whose commits carry the offsets of all queues.

Files and progress are in one commit, so they cannot disagree, and nothing else records the progress:

    delta     one application transaction (`txn`) for each queue, `aerobee:TOPIC:BROKER:QUEUE`, with the next offset
    iceberg   the property `aerobee.offsets` of the newest snapshot that has it

Compaction, deletes and other writers keep both. A commit fails if another writer moved the progress since it was read.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from aerobee_pipeline.errors import OptionError, PipelineError
from aerobee_pipeline.offsets import Offsets, Queue, flat, nested

PACKAGES: Final = {"delta": "deltalake", "iceberg": "pyiceberg"}
ICEBERG_NAMESPACE: Final = "aerobee"
_OFFSETS: Final = "aerobee.offsets"


class TableConflictError(PipelineError):
    """Another writer committed to the table since this one read its progress."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file of one day, not yet in the table. `path` is absolute."""

    path: str
    day: str
    rows: int
    size: int


class TopicTable(Protocol):
    """A table that follows a topic."""

    keeps_day_in_files: bool

    def progress(self, queues: Iterable[Queue]) -> Offsets:
        """The next offset of each of these queues that the table has messages of, and of all that it knows."""

    def commit(self, files: Sequence[WrittenFile], offsets: Mapping[Queue, int]) -> None:
        """Add files and set the progress in one commit. TableConflictError if the progress has moved meanwhile."""


def open_table(kind: str, directory: Path, schema: pa.Schema) -> TopicTable:
    """The table in a directory; it is created by its first commit. OptionError for an unknown or missing format."""
    if kind not in PACKAGES:
        raise OptionError(f"format {kind!r} is unknown; choose one of {', '.join(PACKAGES)}")
    if importlib.util.find_spec(PACKAGES[kind]) is None:
        raise OptionError(f"format {kind!r} needs the package {PACKAGES[kind]}: pip install '.[spark-tables]'")
    return _Delta(directory, schema) if kind == "delta" else _Iceberg(directory, schema)


class _Delta:
    keeps_day_in_files = False

    def __init__(self, directory: Path, schema: pa.Schema) -> None:
        self._directory = directory
        self._schema = schema
        self._table: Any = None

    def progress(self, queues: Iterable[Queue]) -> Offsets:
        from deltalake import DeltaTable

        self._table = DeltaTable(str(self._directory)) if DeltaTable.is_deltatable(str(self._directory)) else None
        if self._table is None:
            return {}
        found = {queue: self._table.transaction_version(_transaction(queue)) for queue in queues}
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def commit(self, files: Sequence[WrittenFile], offsets: Mapping[Queue, int]) -> None:
        from deltalake import CommitProperties, Schema, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import AddAction, create_table_with_add_actions

        actions = [
            AddAction(
                str(Path(file.path).relative_to(self._directory)),
                file.size,
                {"date": file.day},
                Path(file.path).stat().st_mtime_ns // 1_000_000,
                True,
                json.dumps({"numRecords": file.rows}),
            )
            for file in files
        ]
        # Every queue is named, so that two writers conflict whichever queues they had messages of.
        progress = CommitProperties(
            app_transactions=[Transaction(_transaction(queue), offset) for queue, offset in sorted(offsets.items())],
            max_commit_retries=0,
        )
        columns = Schema.from_arrow(self._schema)
        try:
            if self._table is None:
                create_table_with_add_actions(
                    str(self._directory),
                    columns,
                    actions,
                    mode="error",
                    partition_by=["date"],
                    commit_properties=progress,
                )
            else:
                self._table.create_write_transaction(
                    actions, mode="append", schema=columns, partition_by=["date"], commit_properties=progress
                )
        except (CommitFailedError, DeltaError) as error:
            raise TableConflictError(f"{self._directory}: {error}") from error


def _transaction(queue: Queue) -> str:
    return f"aerobee:{queue.topic}:{queue.broker}:{queue.queue_id}"


class _Iceberg:
    keeps_day_in_files = True

    def __init__(self, directory: Path, schema: pa.Schema) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._schema = schema
        self._catalog = SqlCatalog(
            "aerobee", uri=f"sqlite:///{directory / 'catalog.db'}", warehouse=f"file://{directory}"
        )
        self._name = f"{ICEBERG_NAMESPACE}.messages"
        self._table: Any = None

    def progress(self, queues: Iterable[Queue]) -> Offsets:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            self._table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            self._catalog.create_namespace_if_not_exists(ICEBERG_NAMESPACE)
            properties = {"commit.retry.num-retries": "0"}
            with (
                self._catalog.create_table_transaction(
                    self._name, schema=self._schema, properties=properties
                ) as creation,
                creation.update_spec() as spec,
            ):
                spec.add_identity("date")
            self._table = self._catalog.load_table(self._name)
        for snapshot in sorted(self._table.snapshots(), key=lambda item: -item.sequence_number):
            text = snapshot.summary.additional_properties.get(_OFFSETS) if snapshot.summary else None
            if text is not None:
                return flat(json.loads(text))
        return {}

    def commit(self, files: Sequence[WrittenFile], offsets: Mapping[Queue, int]) -> None:
        from pyiceberg.exceptions import CommitFailedException

        try:
            self._table.add_files(
                [f"file://{file.path}" for file in files],
                snapshot_properties={_OFFSETS: json.dumps(nested(offsets))},
            )
        except CommitFailedException as error:
            raise TableConflictError(f"{self._directory}: {error}") from error
