"""The pages about formats name only existing modules, tests and pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "formats"
PAGES = sorted(path.name for path in FOLDER.glob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_names_on_a_page_exist(page: str) -> None:
    """Test paths, test names and links on the page exist."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    assert [path for path in re.findall(r"`(tests/[\w/]+(?:\.py)?)`", text) if not (ROOT / path).exists()] == []
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)]
    assert [link for link in links if link and not (FOLDER / link).exists()] == []
    names = set(re.findall(r"`(test_\w+)`", text))
    if names:
        tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
        assert names - set(re.findall(r"def (test_\w+)\(", tests)) == set()


def test_every_page_is_in_the_list() -> None:
    """README.md links to each other page."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [page for page in PAGES if page != "README.md" and f"]({page})" not in text] == []


def test_every_module_of_a_mechanism_exists() -> None:
    """The code column names existing modules of the store, or of the broker where it says so."""
    text = (FOLDER / "mechanisms.md").read_text(encoding="utf-8")
    modules = re.findall(r"`((?:[a-z_]+/)?[a-z_]+\.py)`", text)
    assert len(modules) > 20
    roots = (ROOT / "store" / "aerobee_store", ROOT / "broker" / "aerobee_broker")
    assert [module for module in modules if not any((root / module).exists() for root in roots)] == []


def test_every_mechanism_has_its_metric() -> None:
    """Each row's last column names metrics that docs/metrics.md explains."""
    text = (FOLDER / "mechanisms.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"`((?:aerobee|rocketmq)_[a-z_]+)`", (FOLDER.parent / "metrics.md").read_text()))
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ") and "---" not in line][1:]
    assert len(rows) > 20
    for row in rows:
        name, metrics = row[0].strip(), row[4]
        assert "`" in metrics or metrics.strip() == "those of ConsumeQueue", name
        assert set(re.findall(r"`([a-z_]+)`", metrics)) <= explained, name
