"""Completeness of the checklist."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.conformance.items import COUNT, COVERED_ELSEWHERE, SECTIONS, TITLES
from tests.conformance.table import item_number

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def names_of_tests(path: Path) -> list[str]:
    """The names of the test functions in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [function.name for function in functions if function.name.startswith("test_")]


def test_every_item_is_tested_or_listed() -> None:
    """Each item has exactly one test in its section's file, or existing tests elsewhere."""
    assert list(TITLES) == list(range(1, COUNT + 1))
    tested: list[int] = []
    for first, last, _, name in SECTIONS:
        numbers = [item_number(f"::{test}") for test in names_of_tests(HERE / name)] if (HERE / name).exists() else []
        for number in numbers:
            assert number is not None, f"{name} has a test without a number"
            assert first <= number <= last, f"{name}: item {number} belongs elsewhere"
            tested.append(number)
    assert len(tested) == len(set(tested)), f"twice: {sorted(n for n in tested if tested.count(n) > 1)}"
    open_items = [
        f"{number} {title}"
        for number, title in TITLES.items()
        if number not in tested and number not in COVERED_ELSEWHERE
    ]
    assert not open_items, "neither tested nor listed in items.py"
    for nodeid in (nodeid for nodeids in COVERED_ELSEWHERE.values() for nodeid in nodeids):
        path, _, test = nodeid.partition("::")
        assert test in names_of_tests(ROOT / path), f"{nodeid} does not exist"
