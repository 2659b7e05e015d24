"""Delta tables by the package deltalake. The catalog is the path."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.offsets import Offsets, Queue
from aerobee_pipeline.tables.table import PARTITION, NewFile, TableChangedError, TableFile
from aerobee_pipeline.tables.warehouse import Warehouse


class DeltaTopicTable:
    """See TopicTable."""

    keeps_day_in_files = False

    def __init__(self, place: Warehouse) -> None:
        self._place = place
        self._options = place.delta_options()
        self._table: Any = None
        self._known: Offsets = {}

    def load(self) -> None:
        from deltalake import DeltaTable

        there = DeltaTable.is_deltatable(self._place.uri, storage_options=self._options)
        self._table = DeltaTable(self._place.uri, storage_options=self._options) if there else None

    def schema(self) -> pa.Schema | None:
        return None if self._table is None else pa.schema(self._table.schema().to_arrow())

    def evolve(self, schema: pa.Schema) -> None:
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        there = self.schema()
        try:
            if there is None:
                self._table = DeltaTable.create(
                    self._place.uri,
                    Schema.from_arrow(schema),
                    partition_by=[PARTITION],
                    storage_options=self._options,
                )
                return
            for field in schema:
                if field.name in there.names and not _same(there.field(field.name).type, field.type):
                    raise OptionError(
                        f"{self._place.uri}: column {field.name!r} is {there.field(field.name).type} in the table and "
                        f"{field.type} in the schema; Delta tables keep the types of their columns: begin a new table"
                    )
            if missing := [field for field in schema if field.name not in there.names]:
                self._table.alter.add_columns(list(Schema.from_arrow(pa.schema(missing)).fields))
                self.load()
        except DeltaError as error:
            raise TableChangedError(f"{self._place.uri}: {error}") from error

    def progress(self, queues: Iterable[Queue]) -> Offsets:
        if self._table is None:
            return {}
        found: Offsets = {}
        given = set(queues)
        waiting, asked = sorted(given), set(given)
        while waiting:
            queue = waiting.pop()
            offset = self._table.transaction_version(_transaction(queue))
            if offset is not None:
                if offset or queue in given:
                    found[queue] = offset
                following = queue._replace(queue_id=queue.queue_id + 1)
                if following not in asked:  # the broker has it no longer, but the table may know it
                    asked.add(following)
                    waiting.append(following)
        self._known = found
        return found

    def files(self) -> list[TableFile]:
        if self._table is None:
            return []
        with_deletes = {unquote(str(path)) for path in _column(self._table.deletion_vectors(), "filepath")}
        actions = pa.table(self._table.get_add_actions(flatten=True))
        days = actions.column(f"partition.{PARTITION}").to_pylist()
        rows = zip(
            *(actions.column(name).to_pylist() for name in ("path", "num_records", "size_bytes")), days, strict=True
        )
        found = []
        for path, count, size, day in rows:
            uri = path if "://" in path or path.startswith("/") else f"{self._place.uri}/{path}"
            has_deletes = any(item.endswith(path) for item in with_deletes)
            found.append(TableFile(uri, _day(day), count or 0, size, has_deletes, path))
        return found

    def commit(self, add: Sequence[NewFile], remove: Sequence[TableFile], offsets: Mapping[Queue, int]) -> None:
        from deltalake import CommitProperties, Schema, Transaction
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import AddAction, RemoveAction

        now_ms = time.time_ns() // 1_000_000
        # Rows that are only in other files now are no change for readers of changes.
        is_new = not (add and remove)
        actions: list[Any] = [
            AddAction(
                file.path,
                file.size,
                {PARTITION: file.day},
                now_ms,
                is_new,
                json.dumps({"numRecords": file.rows}),
            )
            for file in add
        ]
        actions += [
            RemoveAction(file.own, is_new, now_ms, file.size, {PARTITION: None if file.day is None else str(file.day)})
            for file in remove
        ]
        # A transaction cannot be taken back: a queue that is gone begins at 0 again.
        all_offsets = {**dict.fromkeys(self._known, 0), **offsets}
        progress = CommitProperties(
            app_transactions=[Transaction(_transaction(queue), offset) for queue, offset in all_offsets.items()],
            max_commit_retries=0,
        )
        assert self._table is not None
        try:
            self._table.create_write_transaction(
                actions,
                mode="append",
                schema=Schema.from_arrow(self.schema()),
                partition_by=[PARTITION],
                commit_properties=progress,
            )
        except DeltaError as error:
            raise TableChangedError(f"{self._place.uri}: {error}") from error

    def expire(self, days: float) -> None:
        from deltalake.exceptions import DeltaError

        if self._table is None:
            return
        try:
            self._table.vacuum(int(days * 24), dry_run=False, enforce_retention_duration=False, full=True)
            self.load()
            self._table.create_checkpoint()
            self._table.cleanup_metadata()
        except DeltaError as error:
            raise TableChangedError(f"{self._place.uri}: {error}") from error
        self.load()


def _transaction(queue: Queue) -> str:
    return f"aerobee:{queue.topic}:{queue.broker}:{queue.queue_id}"


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    from deltalake import Schema

    first, second = (Schema.from_arrow(pa.schema([pa.field("a", kind)])) for kind in (one, other))
    return bool(first == second)


def _column(rows: Any, name: str) -> list[Any]:
    found = pa.table(rows)
    return found.column(name).to_pylist() if name in found.column_names else []


def _day(value: Any) -> date | None:
    return date.fromisoformat(value) if isinstance(value, str) else value
