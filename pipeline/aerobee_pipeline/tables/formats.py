"""Opens the table of a topic."""

from __future__ import annotations

import importlib.util
from typing import Final

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.tables.table import TopicTable
from aerobee_pipeline.tables.warehouse import Warehouse

PACKAGES: Final = {"delta": "deltalake", "iceberg": "pyiceberg"}
"""The formats, and the Python package of each."""


def open_table(kind: str, warehouse: Warehouse, topic: str, catalog: str | None = None) -> TopicTable:
    """The table of a topic, which is loaded, if it is there. OptionError for an unknown or missing format."""
    if kind not in PACKAGES:
        raise OptionError(f"format {kind!r} is unknown; choose one of {', '.join(PACKAGES)}")
    if importlib.util.find_spec(PACKAGES[kind]) is None:
        raise OptionError(f"format {kind!r} needs the package {PACKAGES[kind]}: pip install '.[spark-tables]'")
    place = warehouse.below(topic)
    table: TopicTable
    if kind == "delta":
        if catalog is not None:
            raise OptionError("catalog: a Delta table is found by its path; leave it out")
        from aerobee_pipeline.tables.delta import DeltaTopicTable

        table = DeltaTopicTable(place)
    else:
        from aerobee_pipeline.tables.iceberg import IcebergTopicTable, open_catalog

        table = IcebergTopicTable(place, open_catalog(warehouse, catalog), topic)
    table.load()
    return table
