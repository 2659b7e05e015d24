"""Short runs of `aerobee bench`: every API and direction, with its own broker and with another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee_client.testing import run_broker
from tests.support.shell import Shell

Bench = Callable[..., str]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The command line without a broker, with fewer messages to receive and fewer syncs than a measurement needs."""
    monkeypatch.setattr("aerobee_broker.commands.bench._FILL_COUNT", 5000)
    monkeypatch.setattr("aerobee_broker.commands.bench._FSYNC_SECONDS", 0.1)
    return Shell("")


@pytest.fixture
def bench(shell: Shell) -> Bench:
    """Runs the command for a tenth of a second; returns its output."""
    return lambda *arguments: shell.text("bench", "--duration", "0.1", "--in-flight", "4", *arguments)


@pytest.mark.parametrize("direction", ["send", "receive"])
@pytest.mark.parametrize("api", ["v2", "records", "batch"])
def test_each_api_is_measured(bench: Bench, tmp_path: Path, api: str, direction: str) -> None:
    """The JSON figures are consistent, and the broker that the command started has ended."""
    arguments = ("--api", api, "--direction", direction, "--batch", "10", "--directory", str(tmp_path), "--json")
    found = json.loads(bench(*arguments))
    assert (found["api"], found["direction"], found["size"], found["batch"]) == (api, direction, 256, 10)
    broker = found["broker"]
    assert broker["errors"] == 0
    assert broker["messagesPerSecond"] * broker["seconds"] == pytest.approx(broker["messages"])
    assert 0 < broker["latencySeconds"]["p50"] <= broker["latencySeconds"]["p999"] <= broker["latencySeconds"]["max"]
    assert broker["memoryBytes"] > 1 << 20
    if direction == "send":
        assert broker["fsyncs"] > 0
        assert broker["messages"] % 10 == 0
    assert list(tmp_path.iterdir()) == []


def test_baselines_as_text(bench: Bench, tmp_path: Path) -> None:
    """The table has all servers, the disk, and the histogram."""
    text = bench("--api", "records", "--batch", "100", "--baseline", "--directory", str(tmp_path))
    for part in ("broker", "discarding", "memory", "of discarding", "the disk's fdatasync", "us a message", "###"):
        assert part in text


@pytest.mark.parametrize(("direction", "baseline"), [("send", "discarding"), ("receive", "memory")])
def test_all_baselines_in_one_run(bench: Bench, tmp_path: Path, direction: str, baseline: str) -> None:
    """Receiving is compared with messages from memory; messages stored earlier are received to the end."""
    found = json.loads(bench("--direction", direction, "--baseline", "--directory", str(tmp_path), "--json"))
    for name in ("broker", "discarding", "memory"):
        assert found[name]["messages"] > 0
        assert found[name]["errors"] == 0
    assert found["ofBaseline"] == found["broker"]["messagesPerSecond"] / found[baseline]["messagesPerSecond"]
    assert found["fdatasync"]["p50Seconds"] > 0


def test_a_running_broker_is_measured(bench: Bench, tmp_path: Path) -> None:
    """Of a remote broker, only its own answers are known."""
    with run_broker(tmp_path) as broker:
        found = json.loads(bench("--endpoint", broker.endpoint, "--topic", "load", "--json"))["broker"]
    assert (found["cpuSeconds"], found["memoryBytes"]) == (None, None)
    assert found["fsyncs"] > 0


def test_impossible_measurements_are_refused(shell: Shell, tmp_path: Path) -> None:
    """The command prints one line with the reason."""
    assert "is not a directory" in shell.error("bench", "--directory", str(tmp_path / "nothing"))
