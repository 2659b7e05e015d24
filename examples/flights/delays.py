"""Hourly delays per carrier and airport from the stream of flights: python -m examples.flights.delays

Reads the topic `flights` from a broker with Spark's structured streaming, counts departures and adds up their delays by
hour of departure, carrier and airport, and writes Parquet and a plot. Flights may come late: an hour stays open until
one has been seen that is `WATERMARK` younger.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from aerobee_pipeline.worker_start import retry_worker_start
from examples.flights import data

# The file is not in the order of time: October follows January, and February December.
WATERMARK: Final = "366 days"
KEYS: Final = ["hour", "carrier", "origin"]
_FIELDS: Final = "carrier string, origin string, time_hour timestamp, dep_delay int"


def main() -> int:
    arguments = _arguments()
    data.require_broker(arguments.endpoint)
    from aerobee_pipeline import local_session

    spark = local_session("flights")
    spark.sparkContext.setLogLevel("ERROR")
    try:
        table = delays(spark, arguments.endpoint, arguments.output, flights_a_batch=20_000)
    finally:
        spark.stop()
    plot(table, arguments.output / "delays.png")
    print(f"{int(table.flights.sum()):,} departures in {len(table):,} hours, carriers and airports")
    print(f"written: {arguments.output / 'delays'} and {arguments.output / 'delays.png'}")
    return 0


def delays(spark: Any, endpoint: str, output: Path, *, flights_a_batch: int) -> Any:
    """Read what the topic has now, or what came since the last run; return all hours so far as a pandas frame."""
    from pyspark.sql import functions as f

    stream = (
        spark.readStream.format("aerobee")
        .options(endpoint=endpoint, subscribe=data.TOPIC, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", flights_a_batch)
        .load()
    )
    flight = stream.select(f.from_json(f.col("body").cast("string"), _FIELDS).alias("flight")).select("flight.*")
    hours = (
        flight.where("dep_delay is not null")  # cancelled flights have none
        .withWatermark("time_hour", WATERMARK)
        .groupBy(f.window("time_hour", "1 hour"), "carrier", "origin")
        .agg(f.count("*").alias("flights"), f.sum("dep_delay").alias("delay_minutes"))
        .select(f.col("window.start").alias("hour"), "carrier", "origin", "flights", "delay_minutes")
    )

    def write(batch: Any, number: int) -> None:
        """The hours that have changed, under the number of the batch: a repeated batch replaces its first attempt."""
        batch.write.mode("overwrite").parquet(str(output / "delays" / f"batch={number}"))

    writer = hours.writeStream.outputMode("update").foreachBatch(write)
    writer = writer.option("checkpointLocation", str(output / "checkpoint")).trigger(availableNow=True)

    def run() -> None:
        query = writer.start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    retry_worker_start(run)
    # Of an hour that has changed in several batches the last one has the sums.
    latest = spark.read.parquet(str(output / "delays")).groupBy(*KEYS)
    last = latest.agg(f.max_by(f.struct("flights", "delay_minutes"), "batch").alias("last"))
    table = last.select(*KEYS, "last.*").toPandas()
    return table.sort_values(KEYS, ignore_index=True)


def from_file(flights: Iterable[data.Flight]) -> Any:
    """The same numbers with pandas, from the file itself."""
    import pandas as pd

    frame = pd.DataFrame(list(flights), columns=["carrier", "origin", "time_hour", "dep_delay"])
    frame = frame.dropna(subset=["dep_delay"])
    frame["hour"] = pd.to_datetime(frame["time_hour"], utc=True).dt.tz_localize(None)
    sums = frame.groupby(KEYS).agg(flights=("dep_delay", "size"), delay_minutes=("dep_delay", "sum")).reset_index()
    return sums.sort_values(KEYS, ignore_index=True)


def plot(table: Any, path: Path) -> None:
    """The average delay by hour of the day, a line for each airport."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sums = table.assign(of_day=table["hour"].dt.tz_localize("UTC").dt.tz_convert("America/New_York").dt.hour)
    sums = sums.groupby(["origin", "of_day"])[["flights", "delay_minutes"]].sum()
    average = (sums["delay_minutes"] / sums["flights"]).unstack("origin")
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    average.plot(ax=axes, marker="o", markersize=3)
    axes.set_xticks(range(5, 24))
    axes.set_xlabel("hour of scheduled departure, New York")
    axes.set_ylabel("average delay of departure, minutes")
    axes.set_title("Flights from New York City")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Hourly delays per carrier and airport from the stream of flights.")
    parser.add_argument("--endpoint", default="127.0.0.1:8081", help="of the broker (default: 127.0.0.1:8081)")
    parser.add_argument("--output", type=Path, default=Path("data/delays"), help="directory (default: data/delays)")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
