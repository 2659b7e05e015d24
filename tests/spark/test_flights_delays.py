"""The example with real flights: broker, stream, windows with a watermark and late data, Parquet, plot."""

from __future__ import annotations

import asyncio
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from examples.flights import data
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
        table = delays(spark, broker.endpoint, tmp_path / "out", flights_a_batch=700)
    expected = from_file(flights)
    assert len(table) == len(expected) > 500
    assert (
        table.astype(str).to_numpy().tolist() == expected.astype(table.dtypes.to_dict()).astype(str).to_numpy().tolist()
    )
    assert int(table["flights"].sum()) == sum(flight["dep_delay"] is not None for flight in flights)
    plot(table, tmp_path / "delays.png")
    assert (tmp_path / "delays.png").stat().st_size > 10_000


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
