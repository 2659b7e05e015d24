"""Iceberg tables by the package pyiceberg, in a catalog of SQL or REST."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.offsets import Offsets, Queue, flat, nested
from aerobee_pipeline.tables.table import PARTITION, NewFile, TableChangedError, TableFile
from aerobee_pipeline.tables.warehouse import Warehouse

NAMESPACE: Final = "aerobee"
_OFFSETS: Final = "aerobee.offsets"
_PROPERTIES: Final = {
    # A repeated commit would not see that another writer has moved the progress.
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
_DIRECTORIES: Final = ("data", "metadata")
"""What a table has below its place; anything else, such as a catalog, is not its own."""
_EPOCH: Final = date(1970, 1, 1)
_CATALOG_ATTEMPTS: Final = 3  # one for each table of a catalog of SQL, and one more


def open_catalog(warehouse: Warehouse, uri: str | None) -> Any:
    """The catalog: `http(s)://` is REST, other URIs are databases; None: `catalog.db` in a warehouse that is a
    directory."""
    from pyiceberg.catalog.rest import RestCatalog

    if uri is None:
        if not warehouse.is_local:
            raise OptionError(
                f"catalog: {warehouse.uri} cannot have a catalog of SQLite; give a REST catalog (https://...), or "
                f"sqlite:////DIR/catalog.db"
            )
        Path(warehouse.uri).mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{warehouse.uri}/catalog.db"
    if uri.startswith(("http://", "https://")):
        return RestCatalog("aerobee", uri=uri, **warehouse.iceberg_options())
    return _sql_catalog(uri, warehouse)


def _sql_catalog(uri: str, warehouse: Warehouse) -> Any:
    """The catalog in a database. Of two jobs that make its tables at once one fails, and finds them the next time."""
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.exc import DBAPIError

    for attempt in range(_CATALOG_ATTEMPTS):
        try:
            return SqlCatalog("aerobee", uri=uri, warehouse=warehouse.file_uri, **warehouse.iceberg_options())
        except DBAPIError:
            if attempt + 1 == _CATALOG_ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


class IcebergTopicTable:
    """See TopicTable. The table is `aerobee.TOPIC`."""

    keeps_day_in_files = True

    def __init__(self, place: Warehouse, catalog: Any, topic: str) -> None:
        self._place = place
        self._catalog = catalog
        self._name = (NAMESPACE, topic)
        self._table: Any = None

    def load(self) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            self._table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            self._table = None

    def schema(self) -> pa.Schema | None:
        if self._table is None:
            return None
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        return pa.schema(schema_to_pyarrow(self._table.schema(), include_field_ids=False))

    def evolve(self, schema: pa.Schema) -> None:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError, ValidationError

        try:
            if self._table is None:
                self._create(schema)
                return
            if any(self._table.properties.get(name) != value for name, value in _PROPERTIES.items()):
                with self._table.transaction() as change:
                    change.set_properties(_PROPERTIES)
            try:
                with self._table.update_schema() as update:
                    update.union_by_name(schema)
            except (ValidationError, ValueError) as error:
                raise OptionError(
                    f"{self._place.uri}: the table cannot take these columns: {error}; begin a new table"
                ) from error
            self.load()
        except (CommitFailedException, TableAlreadyExistsError) as error:
            raise TableChangedError(f"{self._place.uri}: {error}") from error

    def _create(self, schema: pa.Schema) -> None:
        from sqlalchemy.exc import IntegrityError

        with suppress(IntegrityError):  # another job has just created it
            self._catalog.create_namespace_if_not_exists(NAMESPACE)
        with (
            self._catalog.create_table_transaction(
                self._name, schema=schema, location=self._place.file_uri, properties=_PROPERTIES
            ) as creation,
            creation.update_spec() as spec,
        ):
            spec.add_identity(PARTITION)
        self.load()

    def progress(self, queues: Iterable[Queue]) -> Offsets:
        if self._table is None:
            return {}
        text = self._progress_in_history()
        if text is None:
            text = self._table.properties.get(_OFFSETS)
        return {} if text is None else flat(json.loads(text))

    def _progress_in_history(self) -> str | None:
        """None if the history has none, or none any more. A table that was rolled back has an older one again."""
        snapshot = self._table.current_snapshot()
        while snapshot is not None:
            found = snapshot.summary.additional_properties.get(_OFFSETS) if snapshot.summary else None
            if found is not None:
                return str(found)
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.snapshot_by_id(parent)
        return None

    def files(self) -> list[TableFile]:
        """Read from the manifests: a scan of pyiceberg refuses tables that have deletes by equality."""
        snapshot = None if self._table is None else self._table.current_snapshot()
        if snapshot is None:
            return []
        entries = [
            entry
            for manifest in snapshot.manifests(self._table.io)
            for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
        ]
        data = [entry for entry in entries if _is_data(entry)]
        deletes = [(_day(entry), entry.sequence_number or 0) for entry in entries if not _is_data(entry)]
        return [
            TableFile(
                entry.data_file.file_path,
                _day(entry),
                entry.data_file.record_count,
                entry.data_file.file_size_in_bytes,
                # A delete file without a day is about all days. It deletes no rows that were added after it.
                any(day in (None, _day(entry)) and at >= (entry.sequence_number or 0) for day, at in deletes),
                entry.data_file,
            )
            for entry in data
        ]

    def commit(self, add: Sequence[NewFile], remove: Sequence[TableFile], offsets: Mapping[Queue, int]) -> None:
        from pyiceberg.exceptions import CommitFailedException, ValidationException
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        progress = {_OFFSETS: json.dumps(nested(offsets))}
        table = self._table
        assert table is not None
        try:
            with table.transaction() as change:
                change.set_properties({"schema.name-mapping.default": _mapping(change), **progress})
                update = change.update_snapshot(snapshot_properties=progress)
                with update.overwrite() if remove else update.fast_append() as snapshot:
                    paths = (f"{self._place.file_uri}/{file.path}" for file in add)
                    for file in parquet_files_to_data_files(table.io, change.table_metadata, paths):
                        snapshot.append_data_file(file)
                    for old in remove:
                        snapshot.delete_data_file(old.own)
        except (CommitFailedException, ValidationException) as error:
            raise TableChangedError(f"{self._place.uri}: {error}") from error

    def expire(self, days: float) -> None:
        from pyiceberg.exceptions import CommitFailedException

        if self._table is None:
            return
        before = datetime.now(UTC) - timedelta(days=days)
        heads = {reference.snapshot_id for reference in self._table.refs().values()}
        limit = int(before.timestamp() * 1000)
        if any(one.timestamp_ms < limit and one.snapshot_id not in heads for one in self._table.snapshots()):
            try:
                self._table.maintenance.expire_snapshots().older_than(before.replace(tzinfo=None)).commit()
            except CommitFailedException as error:
                raise TableChangedError(f"{self._place.uri}: {error}") from error
            self.load()
        self._delete_orphans(before)

    def _delete_orphans(self, before: datetime) -> None:
        """Delete data and metadata that no snapshot has: of expired ones, and of runs that died."""
        known = {_path(uri) for uri in self._reachable()}
        files = self._place.filesystem()
        root = _path(self._place.file_uri)
        for directory in _DIRECTORIES:
            for found in files.get_file_info(fs.FileSelector(directory, allow_not_found=True, recursive=True)):
                is_old = found.type == fs.FileType.File and found.mtime is not None and found.mtime < before
                if is_old and f"{root}/{found.path}" not in known:
                    files.delete_file(found.path)

    def _reachable(self) -> Iterable[str]:
        metadata = self._table.metadata
        yield self._table.metadata_location
        yield from (entry.metadata_file for entry in metadata.metadata_log)
        yield from (item.statistics_path for item in metadata.statistics)
        for snapshot in metadata.snapshots:
            yield snapshot.manifest_list
            for manifest in snapshot.manifests(self._table.io):
                yield manifest.manifest_path
                for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True):
                    yield entry.data_file.file_path


def _is_data(entry: Any) -> bool:
    from pyiceberg.manifest import DataFileContent

    return bool(entry.data_file.content == DataFileContent.DATA)


def _day(entry: Any) -> date | None:
    """The day of a file; None for one of a table that is not partitioned."""
    day = entry.data_file.partition[0] if len(entry.data_file.partition) else None
    return day if day is None or isinstance(day, date) else _EPOCH + timedelta(days=day)


def _mapping(change: Any) -> str:
    """Column names to field ids, for files without ids."""
    return str(change.table_metadata.schema().name_mapping.model_dump_json())


def _path(uri: str) -> str:
    """Without a scheme: `file:///a` and `/a` are the same."""
    return uri.partition("://")[2] if "://" in uri else uri.removeprefix("file:")
