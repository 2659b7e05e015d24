"""Completeness of the cluster protocols' checklist."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.cluster.items import COUNT, COVERED_ELSEWHERE, LEFT_OUT, OPEN, SECTIONS, TITLES
from tests.conformance.cluster.table import item_number
from tests.conformance.test_checklist import names_of_tests

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def test_every_item_is_tested_or_listed() -> None:
    """Each item has exactly one test here or existing tests elsewhere, or is listed as open or left out."""
    assert list(TITLES) == list(range(1, COUNT + 1))
    assert [number for first, last, _ in SECTIONS for number in range(first, last + 1)] == list(TITLES)
    tests = [name for path in HERE.glob("test_*.py") for name in names_of_tests(path)]
    tested = [number for test in tests if (number := item_number(f"::{test}")) is not None]
    assert len(tested) == len(set(tested)), f"twice: {sorted(n for n in tested if tested.count(n) > 1)}"
    parts = (set(tested), set(COVERED_ELSEWHERE), set(OPEN), set(LEFT_OUT))
    assert sum(map(len, parts)) == COUNT, f"in two places: {sorted(parts[0] & (parts[1] | parts[2] | parts[3]))}"
    assert set.union(*parts) == set(TITLES)
    for nodeid in (nodeid for nodeids in COVERED_ELSEWHERE.values() for nodeid in nodeids):
        path, _, test = nodeid.partition("::")
        assert test in names_of_tests(ROOT / path), f"{nodeid} does not exist"
