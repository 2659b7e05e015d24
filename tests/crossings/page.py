"""Makes docs/crossings.md: every feature in every state, and the test of each pair.

    python -m tests.crossings.page             write the page
    python -m tests.crossings.page --check     fail if it differs from the code

Features and states come from `features.py` and `states.py`, whose tests are made for each pair. Tests elsewhere that go
deeper into a pair are named in FURTHER; each must exist.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.crossings.cell import Feature, State
from tests.crossings.features import FEATURES
from tests.crossings.states import STATES

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "crossings.md"
_HEAD: Final = """# Features in every state of a broker

Each feature is used before a state, within it, after 90 seconds within it, and after it. Then everything falls due, and
consumers finish what they get. `tests/model/promises.py` says what is promised; nothing may be lost, stuck, doubled,
early, or out of order, every call is answered, and only with the answers that the state allows.

The test of a pair is `tests/crossings/test_features_in_states.py::test_promises_hold[STATE-FEATURE]`, such as
`test_promises_hold[killed-delay]`. `make test` runs the pairs in one broker for each state, `make test-crossings` runs
each pair in a broker of its own, and the states that take long. `make map` writes this page.
"""
FURTHER: Final[Mapping[tuple[str, str], str]] = {
    # (state, feature): FILE::TEST
}


def problems() -> list[str]:
    """Further tests that do not exist, and pairs that do not."""
    states, features = {state.name for state in STATES}, {feature.name for feature in FEATURES}
    found = []
    for (state, feature), test in FURTHER.items():
        if state not in states or feature not in features:
            found.append(f"tests/crossings/page.py: there is no pair {state}-{feature}")
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        if name not in {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }:
            found.append(f"tests/crossings/page.py: {test} does not exist")
    return found


def page() -> str:
    """The whole page."""
    lines = [_HEAD, "## States\n", "| State | What happens | Answers besides OK |", "| --- | --- | --- |"]
    lines += [f"| {_name(state)} | {_what(state)} | {_answers(state)} |" for state in STATES]
    lines += ["", "## Features\n", "| Feature | What is done | Not in |", "| --- | --- | --- |"]
    lines += [f"| {feature.name} | {_what(feature)} | {_left_out(feature)} |" for feature in FEATURES]
    if FURTHER:
        lines += ["", "## Tests that go deeper\n", "| State | Feature | Test |", "| --- | --- | --- |"]
        lines += [f"| {state} | {feature} | `{test}` |" for (state, feature), test in sorted(FURTHER.items())]
    return "\n".join([*lines, ""])


def _name(state: State) -> str:
    return f"{state.name} (long)" if state.is_long else state.name


def _what(item: State | Feature) -> str:
    return (inspect.getdoc(item) or "").replace("\n", " ")


def _answers(state: State) -> str:
    names = ", ".join(f"`{name}`" for name in sorted(state.answers))
    return names if state.allows_success else f"{names}, and never OK"


def _left_out(feature: Feature) -> str:
    return "; ".join(f"{state}: {reason}" for state, reason in feature.cannot.items())


def main() -> int:
    found = problems()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != page():
            found.append(f"{PAGE.relative_to(ROOT)} differs from the code; run make map and commit it")
    else:
        PAGE.write_text(page())
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
