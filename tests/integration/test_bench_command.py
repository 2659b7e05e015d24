"""Short runs of `aerobee bench`: every API and direction, with its own broker and with another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee_client.testing import run_broker


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command for a tenth of a second."""
    command = [sys.executable, "-m", "aerobee_broker", "bench", "--duration", "0.1", "--in-flight", "4", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("direction", ["send", "receive"])
@pytest.mark.parametrize("api", ["v2", "records", "batch"])
def test_each_api_is_measured(tmp_path: Path, api: str, direction: str) -> None:
    """The JSON figures are consistent, and the broker that the command started has ended."""
    arguments = ("--api", api, "--direction", direction, "--batch", "10", "--directory", str(tmp_path), "--json")
    ended = bench(*arguments)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
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


def test_baselines_as_text(tmp_path: Path) -> None:
    """The table has all servers, the disk, and the histogram."""
    ended = bench("--api", "records", "--batch", "100", "--baseline", "--directory", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    for text in ("broker", "discarding", "memory", "of discarding", "the disk's fdatasync", "us a message", "###"):
        assert text in ended.stdout


@pytest.mark.parametrize(("direction", "baseline"), [("send", "discarding"), ("receive", "memory")])
def test_all_baselines_in_one_run(tmp_path: Path, direction: str, baseline: str) -> None:
    """Receiving is compared with messages from memory; messages stored earlier are received to the end."""
    ended = bench("--direction", direction, "--baseline", "--directory", str(tmp_path), "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    for name in ("broker", "discarding", "memory"):
        assert found[name]["messages"] > 0
        assert found[name]["errors"] == 0
    assert found["ofBaseline"] == found["broker"]["messagesPerSecond"] / found[baseline]["messagesPerSecond"]
    assert found["fdatasync"]["p50Seconds"] > 0


def test_a_running_broker_is_measured(tmp_path: Path) -> None:
    """Of a remote broker, only its own answers are known."""
    with run_broker(tmp_path) as broker:
        ended = bench("--endpoint", broker.endpoint, "--topic", "load", "--json")
    found = json.loads(ended.stdout)["broker"]
    assert (found["cpuSeconds"], found["memoryBytes"]) == (None, None)
    assert found["fsyncs"] > 0


def test_impossible_measurements_are_refused(tmp_path: Path) -> None:
    """The command prints one line with the reason."""
    ended = bench("--directory", str(tmp_path / "nothing"))
    assert (ended.returncode, "is not a directory" in ended.stderr) == (1, True)
