"""Keeps the house of a table: joins small files, deletes old days, forgets old versions and files that none has.

Each step is a commit of its own that carries the progress on. A step fails if the table has changed meanwhile, and is
done the next time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.jobs.over_tasks import NEW_FILES, over_tasks
from aerobee_pipeline.offsets import Offsets
from aerobee_pipeline.tables.data_files import joined
from aerobee_pipeline.tables.table import NewFile, TableFile, TopicTable
from aerobee_pipeline.tables.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A writer may be at work for long before it commits its files, and a reader may use an old version.
_VERSION_DAYS_MIN: Final = 1.0
_BINS_A_COMMIT: Final = 100


@dataclass(frozen=True, slots=True)
class Housekeeping:
    """`keep_days`: days of store time that the table keeps; None: all. `version_days`: how long old versions of the
    table can be read, and how long files of runs that died remain. `file_size`: bytes of a joined file.

    `today` is given in tests.
    """

    keep_days: int | None = None
    version_days: float = 5.0
    file_size: int = 128 << 20
    today: date | None = None

    def __post_init__(self) -> None:
        if self.version_days < _VERSION_DAYS_MIN and self.today is None:
            raise OptionError(
                f"versions must be kept for {_VERSION_DAYS_MIN:g} day at least, because they may be in use"
            )


def keep_house(
    spark: SparkSession, table: TopicTable, place: Warehouse, progress: Offsets, wanted: Housekeeping
) -> dict[str, int]:
    """Do what is due. `progress` is that of the version of `table` that is loaded. TableChangedError for a table that
    changes meanwhile: the steps before have been done."""
    today = wanted.today or datetime.now(UTC).date()
    done = {"files_joined": 0, "files_expired": 0}
    if wanted.keep_days is not None:
        oldest = today - timedelta(days=wanted.keep_days)
        old = [file for file in table.files() if file.day is not None and file.day < oldest]
        if old:
            table.commit((), old, progress)
            table.load()
            done["files_expired"] = len(old)
    bins = _bins(table.files(), place, today, wanted.file_size)
    schema = table.schema()
    for begin in range(0, len(bins), _BINS_A_COMMIT):
        assert schema is not None
        some = bins[begin : begin + _BINS_A_COMMIT]
        work = _Join(place, schema, table.keeps_day_in_files)
        items = [(str(files[0].day), [file.uri for file in files]) for files in some]
        rows = over_tasks(spark, items, work, NEW_FILES)
        table.commit([NewFile(*row) for row in rows], [file for files in some for file in files], progress)
        table.load()
        done["files_joined"] += sum(map(len, some))
    table.expire(wanted.version_days)
    return done


def _bins(files: Sequence[TableFile], place: Warehouse, today: date, size_max: int) -> list[list[TableFile]]:
    """Small files of closed days, as many together as make a large one.

    Files are left alone if some of their rows are deleted by another file, or if they are at another place.
    """
    bins: list[list[TableFile]] = []
    by_day: dict[date, list[TableFile]] = {}
    for file in files:
        is_ours = file.uri.startswith((f"{place.uri}/", f"{place.file_uri}/"))
        if file.day is not None and file.day < today and file.size < size_max // 2 and not file.has_deletes and is_ours:
            by_day.setdefault(file.day, []).append(file)
    for _, small in sorted(by_day.items()):
        filled = 0
        current: list[TableFile] = []
        for file in sorted(small, key=lambda item: item.uri):
            if current and filled + file.size > size_max:
                bins.append(current)
                filled, current = 0, []
            current.append(file)
            filled += file.size
        bins.append(current)
    return [files for files in bins if len(files) > 1]


@dataclass(frozen=True, slots=True)
class _Join:
    """Joins the files of one bin. Runs in a worker."""

    place: Warehouse
    schema: pa.Schema
    keeps_day: bool

    def __call__(self, item: tuple[str, list[str]]) -> Iterator[tuple[Any, ...]]:
        day, uris = item
        for file in joined(self.place, day, uris, self.schema, keeps_day=self.keeps_day):
            yield file.path, file.day, file.rows, file.size
