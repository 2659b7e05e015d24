"""Lets Spark find the data source `aerobee`: it imports every top-level module named `pyspark_*` .

An error here would disable the discovery of all data sources, so imports are deferred until first use, and a failed
import looks like a module without a data source.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from aerobee_pipeline.source import AerobeeDataSource
        except ImportError as error:
            raise AttributeError(f"the data source aerobee needs `pip install '.[spark]'`: {error}") from error
        return AerobeeDataSource
    raise AttributeError(name)
