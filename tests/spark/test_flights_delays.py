"""The example with real flights: broker, stream, windows with a watermark and late data, Parquet, plot."""

from __future__ import annotations

import asyncio
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from examples.flights import data
from examples.flights import table as flights_table
from examples.flights.delays import delays, from_file, plot

from aerobee_client import Message, connect
from aerobee_client.testing import BrokerProcess, run_broker
from tests.spark.cluster import SECONDS

COUNT = 4000


def publish(broker: BrokerProcess, flights: list[data.Flight]) -> None:
    async def work() -> None:
        async with connect(broker.endpoint) as client:
            await client.producer().send_many(
                [Message(topic=data.TOPIC, body=data.body(flight), tag=data.tag(flight)) for flight in flights]
            )

    asyncio.run(work())


def test_the_stream_agrees_exactly_with_pandas(spark: Any, tmp_path: Path) -> None:
    """Two runs; the second adds late flights to hours that the first has counted. Every number equals pandas'."""
    flights = list(islice(data.flights(), COUNT))
    with run_broker(tmp_path) as broker:
        publish(broker, flights[::2])
        delays(spark, broker.endpoint, tmp_path / "out", flights_a_batch=700)
        publish(broker, flights[1::2])
        result = delays(spark, broker.endpoint, tmp_path / "out", flights_a_batch=700)
    expected = from_file(flights)
    assert len(result) == len(expected) > 500
    assert (
        result.astype(str).to_numpy().tolist()
        == expected.astype(result.dtypes.to_dict()).astype(str).to_numpy().tolist()
    )
    assert int(result["flights"].sum()) == sum(flight["dep_delay"] is not None for flight in flights)
    plot(result, tmp_path / "delays.png")
    assert (tmp_path / "delays.png").stat().st_size > 10_000


def test_the_table_agrees_exactly_with_pandas(spark: Any, tmp_path: Path) -> None:
    """Two runs of the job; DuckDB's numbers by hour equal pandas', and none of the bodies failed to fit."""
    import pandas as pd

    flights = list(islice(data.flights(), COUNT))
    (tmp_path / "broker").mkdir()
    lake = tmp_path / "lake"
    with run_broker(tmp_path / "broker") as broker:
        publish(broker, flights[:3000])
        assert flights_table.keep(spark, broker.endpoint, lake) == 3000
        publish(broker, flights[3000:])
        assert flights_table.keep(spark, broker.endpoint, lake) == COUNT - 3000
        assert flights_table.keep(spark, broker.endpoint, lake) == 0
    hours = flights_table.delays_by_hour(lake)
    frame = pd.DataFrame(flights, columns=["hour", "dep_delay"]).dropna().astype(int)
    expected = frame.groupby("hour")["dep_delay"].agg(["size", "mean"]).reset_index()
    assert [(hour, count) for hour, count, _ in hours] == list(zip(expected["hour"], expected["size"], strict=True))
    assert [average for *_, average in hours] == pytest.approx(expected["mean"].tolist())
    flights_table.plot(hours, tmp_path / "hours.png")
    assert (tmp_path / "hours.png").stat().st_size > 10_000


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in its own kernel on a broker with some flights, and compares its numbers with pandas itself."""
    nbformat = pytest.importorskip("nbformat", reason="needs the extra examples-spark")
    nbclient = pytest.importorskip("nbclient", reason="needs the extra examples-spark")
    path = Path(data.__file__).parent / "delays.ipynb"
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    with run_broker(tmp_path) as broker:
        publish(broker, list(islice(data.flights(), 1000)))
        monkeypatch.setenv("FLIGHTS_ENDPOINT", broker.endpoint)
        monkeypatch.setenv("FLIGHTS_OUTPUT", str(tmp_path / "out"))
        resources = {"metadata": {"path": str(path.parent)}}
        nbclient.NotebookClient(notebook, timeout=SECONDS, startup_timeout=SECONDS, resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    text = "".join(output.get("text", "") for output in outputs)
    assert re.search(r"^\d+ hours, carriers and airports agree$", text, re.MULTILINE), text
    assert any(len(output.get("data", {}).get("image/png", "")) > 10_000 for output in outputs)
