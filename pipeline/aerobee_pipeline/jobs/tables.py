"""Tables of Delta Lake and Iceberg over the Parquet files of an export, by the formats' own Python packages.

A table is a list of files with versions. Spark writes the files, as in any export. Then all files of the export that
the table lacks are added to it in one commit. If a run dies in between, the next one adds them; no file is added twice.
So a table has what the Parquet files have, and any release of Spark can write it.

    delta     the export's directory is the table: `_delta_log` beside the Parquet files
    iceberg   the table `aerobee.messages` of a catalog in SQLite, `_iceberg/catalog.db`; its metadata is beside it
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import parquet

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.reading.schema import arrow_schema

PACKAGES: Final = {"delta": "deltalake", "iceberg": "pyiceberg"}
ICEBERG_TABLE: Final = "aerobee.messages"
_PARTITIONS: Final = ("topic", "date")
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
PARTITION_COLUMNS: Final = {
    "parquet": _PARTITIONS,
    "delta": _PARTITIONS,
    # Iceberg wants all columns in the files, and Spark leaves out those that name directories.
    "iceberg": ("partition_topic", "partition_date"),
}
"""Columns that name the directories of an export, by format."""


def check_format(file_format: str, output: str) -> None:
    """OptionError for an unknown format, one whose package is missing, or an output that its package cannot use."""
    if file_format not in PARTITION_COLUMNS:
        raise OptionError(f"format {file_format!r} is unknown; choose one of {', '.join(PARTITION_COLUMNS)}")
    if file_format == "parquet":
        return
    if importlib.util.find_spec(PACKAGES[file_format]) is None:
        raise OptionError(
            f"format {file_format!r} needs the package {PACKAGES[file_format]}: pip install '.[spark-tables]'"
        )
    if "://" in output:
        raise OptionError(
            f"format {file_format!r}: {output} is not a directory of the driver; give one, or export to Parquet"
        )


def check_layout(file_format: str, output: str) -> None:
    """OptionError if the output has an export whose directories are named differently."""
    own = PARTITION_COLUMNS[file_format][0]
    if "://" not in output and any(
        any(Path(output).glob(f"{names[0]}=*")) for names in PARTITION_COLUMNS.values() if names[0] != own
    ):
        raise OptionError(f"{output} has an export of another format than {file_format!r}; give each its own directory")


def add_files(file_format: str, output: str, files: Collection[str], columns: Sequence[str]) -> int:
    """Add the export's Parquet files that the table lacks, in one commit; return their number.

    `files`: paths or `file:` URIs. `columns`: those of the table. It is created with its first files.
    """
    root = Path(output).absolute()
    schema = arrow_schema([name for name in columns if name != "date"]).append(pa.field("date", pa.date32()))
    given = sorted({_path(file) for file in files} - set(table_files(file_format, output)))
    if given:
        (_add_to_delta if file_format == "delta" else _add_to_iceberg)(root, given, schema)
    return len(given)


def table_files(file_format: str, output: str) -> Sequence[Path]:
    """The files that the table has now; none if there is no table."""
    root = Path(output).absolute()
    if file_format == "delta":
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(str(root)):
            return []
        return [_path(uri) for uri in DeltaTable(str(root)).file_uris()]
    if not (root / "_iceberg").is_dir():
        return []
    table = _iceberg_table(root, None)
    return [] if table is None else [_path(task.file.file_path) for task in table.scan().plan_files()]


def _add_to_delta(root: Path, files: Sequence[Path], schema: pa.Schema) -> None:
    from deltalake import DeltaTable, Schema
    from deltalake.transaction import AddAction, create_table_with_add_actions

    actions = []
    for file in files:
        relative = file.relative_to(root)
        values = dict(part.split("=", 1) for part in relative.parts[:-1])
        status = file.stat()
        actions.append(
            AddAction(
                str(relative),
                status.st_size,
                {name: None if value == _NULL else unquote(value) for name, value in values.items()},
                status.st_mtime_ns // 1_000_000,
                True,
                json.dumps({"numRecords": parquet.read_metadata(file).num_rows}),
            )
        )
    columns = Schema.from_arrow(schema)
    if DeltaTable.is_deltatable(str(root)):
        table = DeltaTable(str(root))
        table.create_write_transaction(actions, mode="append", schema=columns, partition_by=list(_PARTITIONS))
    else:
        create_table_with_add_actions(
            str(root), columns, actions, mode="error", partition_by=list(_PARTITIONS), name="aerobee messages"
        )


def _add_to_iceberg(root: Path, files: Sequence[Path], schema: pa.Schema) -> None:
    table = _iceberg_table(root, schema)
    assert table is not None
    table.add_files([str(file) for file in files])


def _iceberg_table(root: Path, schema: pa.Schema | None) -> Any:
    """The table, created if a schema is given; None if there is none."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import NoSuchTableError

    place = root / "_iceberg"
    place.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog("aerobee", uri=f"sqlite:///{place / 'catalog.db'}", warehouse=f"file://{place}")
    try:
        return catalog.load_table(ICEBERG_TABLE)
    except NoSuchTableError:
        if schema is None:
            return None
    catalog.create_namespace_if_not_exists(ICEBERG_TABLE.partition(".")[0])
    with catalog.create_table_transaction(ICEBERG_TABLE, schema=schema) as creation, creation.update_spec() as spec:
        for name in _PARTITIONS:
            spec.add_identity(name)
    return catalog.load_table(ICEBERG_TABLE)


def _path(file: str) -> Path:
    """The path of a file given as a path, or as a URI with encoded special characters."""
    if file.startswith("file:"):
        return Path(unquote("/" + file.removeprefix("file:").lstrip("/")))
    return Path(file)
