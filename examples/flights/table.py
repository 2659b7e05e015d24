"""The topic of flights as a Delta table, and delays by hour from it: python -m examples.flights.table

The bodies become typed columns by `flight.json`, and each flight is in the table once, however often this is run or
killed. The plot reads the table with DuckDB; nothing of Spark takes part in that.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from examples.flights import data

SCHEMA: Final = Path(__file__).with_name("flight.json")
# Flights that were cancelled have no delay. The hour is that of New York, as in the timetable.
_BY_HOUR: Final = """
    select hour, count(dep_delay) flights, avg(dep_delay) average_delay
    from flights where dep_delay is not null group by hour order by hour
"""


def main() -> int:
    arguments = _arguments()
    data.require_broker(arguments.endpoint)
    from aerobee_pipeline import local_session

    spark = local_session("flights")
    spark.sparkContext.setLogLevel("ERROR")
    try:
        added = keep(spark, arguments.endpoint, arguments.warehouse)
    finally:
        spark.stop()
    hours = delays_by_hour(arguments.warehouse)
    plot(hours, arguments.warehouse / "delays-by-hour.png")
    print(f"{added:,} flights added; {sum(flights for _, flights, _ in hours):,} departures in the table")
    for hour, flights, average in hours:
        print(f"  {hour:2}:00  {flights:7,} flights  {average:5.1f} minutes late on average")
    print(f"written: {arguments.warehouse / 'delays-by-hour.png'}")
    return 0


def keep(spark: Any, endpoint: str, warehouse: Path) -> int:
    """Add what is new in the topic; return the number of messages."""
    from aerobee_pipeline.jobs import TableOptions, keep_table
    from aerobee_pipeline.tables.bodies import BodySchema

    schema = BodySchema.of(SCHEMA.name, SCHEMA.read_bytes())
    table = TableOptions(to="delta", warehouse=str(warehouse), body_schema=schema, keep_body=False)
    added: int = keep_table(spark, {"endpoint": endpoint}, data.TOPIC, table).facts["messages"]
    return added


def delays_by_hour(warehouse: Path) -> list[tuple[int, int, float]]:
    """The hour of scheduled departure, its flights, and their average delay in minutes."""
    import duckdb
    from deltalake import DeltaTable

    database = duckdb.connect()
    database.register("flights", DeltaTable(str(warehouse.absolute() / data.TOPIC)).to_pyarrow_dataset())
    found: list[tuple[int, int, float]] = database.sql(_BY_HOUR).fetchall()
    return found


def plot(hours: list[tuple[int, int, float]], path: Path) -> None:
    """The average delay by hour, with the number of flights."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.bar([hour for hour, _, _ in hours], [average for _, _, average in hours])
    axes.set_xticks([hour for hour, _, _ in hours])
    axes.set_xlabel("hour of scheduled departure, New York")
    axes.set_ylabel("average delay of departure, minutes")
    axes.set_title(f"{sum(flights for _, flights, _ in hours):,} departures from New York City")
    axes.grid(alpha=0.3, axis="y")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The topic of flights as a Delta table, and delays by hour from it.")
    parser.add_argument("--endpoint", default="127.0.0.1:8081", help="of the broker (default: 127.0.0.1:8081)")
    parser.add_argument("--warehouse", type=Path, default=Path("data/lake"), help="directory (default: data/lake)")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
