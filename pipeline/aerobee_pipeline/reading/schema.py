"""The columns of the source: their names, their types in Spark and in Arrow, and the columns of a query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from aerobee_pipeline.errors import OptionError

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
MAP: Final = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True, slots=True)
class Column:
    """`spark_type` as in a DDL string. `group`: the option that adds the column to the default ones."""

    name: str
    spark_type: str
    arrow_type: pa.DataType
    group: str = "default"


COLUMNS: Final[dict[str, Column]] = {
    column.name: column
    for column in (
        Column("topic", "string", pa.string()),
        Column("brokerName", "string", pa.string()),
        Column("queueId", "int", pa.int32()),
        Column("queueOffset", "bigint", pa.int64()),
        Column("msgId", "string", pa.string()),
        Column("keys", "string", pa.string()),
        Column("tags", "string", pa.string()),
        Column("body", "binary", pa.binary()),
        Column("bornTimestamp", "timestamp", TIMESTAMP),
        Column("storeTimestamp", "timestamp", TIMESTAMP),
        Column("properties", "map<string,string>", MAP, "includeProperties"),
        Column("flag", "int", pa.int32(), "includeSystem"),
        Column("sysFlag", "int", pa.int32(), "includeSystem"),
        Column("reconsumeTimes", "int", pa.int32(), "includeSystem"),
        Column("physicalOffset", "bigint", pa.int64(), "includeSystem"),
        Column("storeSize", "int", pa.int32(), "includeSystem"),
        Column("bodyCrc", "bigint", pa.int64(), "includeSystem"),
        Column("decodeError", "string", pa.string(), "onBadBody"),
    )
}


def default_columns(*, properties: bool = False, system: bool = False, errors: bool = False) -> list[str]:
    """The columns of a query without a schema of its own."""
    chosen = {"default": True, "includeProperties": properties, "includeSystem": system, "onBadBody": errors}
    groups = {group for group, wanted in chosen.items() if wanted}
    return [column.name for column in COLUMNS.values() if column.group in groups]


def spark_ddl(names: Iterable[str]) -> str:
    """The schema of these columns as Spark's DDL."""
    return ", ".join(f"{name} {COLUMNS[name].spark_type}" for name in names)


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    """The Arrow form of these columns, exactly as Spark derives it from `spark_ddl`; all are nullable."""
    return pa.schema([pa.field(name, COLUMNS[name].arrow_type) for name in names])


def checked_columns(fields: Sequence[tuple[str, str]]) -> list[str]:
    """The names in a user's schema of (name, Spark type). Raises OptionError for unknown columns."""
    for name, spark_type in fields:
        column = COLUMNS.get(name)
        if column is None:
            raise OptionError(f"schema: unknown column {name!r}; the source has {', '.join(COLUMNS)}")
        if spark_type != column.spark_type:
            raise OptionError(
                f"schema: column {name!r} is {column.spark_type}, not {spark_type}; read it as {column.spark_type} "
                f"and cast it afterwards"
            )
    names = [name for name, _ in fields]
    if len(set(names)) < len(names):
        raise OptionError(f"schema: a column appears twice in {', '.join(names)}")
    return names
