"""The benchmarks run; their figures are not checked, because the machine may be busy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import store
from tests.benchmarks.peers import kafka, redis
from tests.benchmarks.peers.process import LeftOutError


def test_the_short_store_benchmark_covers_every_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends, every row of each table has figures, and no store is left behind."""
    store.main(["--short", "--directory", str(tmp_path)])
    tables = capsys.readouterr().out.split("\n\n")[1:]
    titles = [printed.splitlines()[0] for printed in tables]
    for part in (
        "fdatasync",
        "Bandwidth",
        "in store layout",
        "one message",
        "one by one",
        "reading",
        "look-ups",
        "topics",
    ):
        assert any(part in title for title in titles), f"{part}: {titles}"
    assert any("open and verify" in title for title in titles)
    for printed in tables:
        _, _, *rows = printed.splitlines()
        assert rows
        assert all(re.search(r"\d", row) for row in rows)
    for mode in ("gathered", "mapped", "pool"):
        assert sum(mode in row for printed in tables for row in printed.splitlines()) == 12
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(300)  # it starts a dozen processes
def test_the_short_records_benchmark_covers_every_part(tmp_path: Path) -> None:
    """It ends, and every row of each table has figures, for RecordService."""
    command = [sys.executable, "-m", "tests.benchmarks.records", "--short", "--directory", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stderr
    tables = result.stdout.split("\n\n")[1:]
    assert [printed.split(":")[0] for printed in tables[1:]] == [
        "AppendRecords",
        "AppendRecords",
        "ReadRecords",
        "SendMessage",
    ]
    assert all(re.search(r"\d", row) for printed in tables for row in printed.splitlines()[2:])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(300)  # it starts twenty processes
def test_the_short_broker_benchmark_covers_every_part(tmp_path: Path) -> None:
    """It ends, every row of each table has figures, and neither a store nor a server is left behind."""
    command = [sys.executable, "-m", "tests.benchmarks.broker", "--short", "--directory", str(tmp_path)]
    quiet = {**os.environ, "GRPC_VERBOSITY": "ERROR"}  # gRPC may log as information that a process was forked
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=quiet)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    tables = result.stdout.split("\n\n")[1:]
    titles = [printed.splitlines()[0] for printed in tables]
    for part in (
        "fdatasync",
        "Unary SendMessage",
        "Both fronts",
        "A backlog",
        "aerobee_client",
        "the official Python SDK",
        "Idle latency",
        "delayed messages",
        "topics of 8 queues",
        "receives that wait",
        "The process",
    ):
        assert sum(part in title for title in titles) == 1, f"{part}: {titles}"
    for printed in tables:
        _, _, *rows = printed.splitlines()
        assert rows
        assert all(re.search(r"\d", row) for row in rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(120)
def test_the_soak_of_records_prints_its_figures(tmp_path: Path) -> None:
    """The soak runs for a second with small requests."""
    command = [sys.executable, "-m", "tests.benchmarks.soak_records", "--seconds", "1", "--messages", "50"]
    command += ["--directory", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    _, _, *lines = result.stdout.split("\n\n")[1].splitlines()
    rows = [line for line in lines if line.startswith("  ")]  # the broker's warnings, if any, follow them
    assert len(rows) == 11
    assert all(re.search(r"\d", row) for row in rows)
    assert list(tmp_path.iterdir()) == []


def test_a_peer_that_is_not_installed_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LeftOutError, match="java is not installed"):
        kafka.prepare(tmp_path)
    with pytest.raises(LeftOutError, match="redis-server is not installed"):
        redis.prepare()
