"""The benchmarks run; what they measure on a busy machine is nobody's business here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.benchmarks import store


def test_the_short_form_of_the_store_goes_through_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends, each table has figures in all its rows, and no store is left behind."""
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
