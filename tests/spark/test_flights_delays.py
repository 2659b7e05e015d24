"""The example on the real flights: broker, stream, windows with a watermark and late data, Parquet, plot."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path
from typing import Any

from examples.flights import data
from examples.flights.delays import delays, from_file, plot

from aerobee_client import Message, connect
from aerobee_client.testing import BrokerProcess, run_broker

COUNT = 4000


def publish(broker: BrokerProcess, flights: list[data.Flight]) -> None:
    async def work() -> None:
        async with connect(broker.endpoint) as client:
            await client.producer().send_many(
                [Message(topic=data.TOPIC, body=data.body(flight), tag=data.tag(flight)) for flight in flights]
            )

    asyncio.run(work())


def test_the_stream_agrees_exactly_with_pandas(spark: Any, tmp_path: Path) -> None:
    """Two runs; the second brings late flights of hours that the first has counted. Every number is the same."""
    flights = list(islice(data.flights(), COUNT))
    with run_broker(tmp_path) as broker:
        publish(broker, flights[::2])
        delays(spark, broker.endpoint, tmp_path / "out", flights_a_batch=700)
        publish(broker, flights[1::2])
        table = delays(spark, broker.endpoint, tmp_path / "out", flights_a_batch=700)
    expected = from_file(flights)
    assert len(table) == len(expected) > 500
    assert (
        table.astype(str).to_numpy().tolist() == expected.astype(table.dtypes.to_dict()).astype(str).to_numpy().tolist()
    )
    assert int(table["flights"].sum()) == sum(flight["dep_delay"] is not None for flight in flights)
    plot(table, tmp_path / "delays.png")
    assert (tmp_path / "delays.png").stat().st_size > 10_000
