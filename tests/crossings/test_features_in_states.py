"""Every feature in every state of a broker: no message is lost, stuck, doubled, early, or served to a stranger.

The test of a cell is named `test_promises_hold[STATE-FEATURE]`. All cells of a state share a broker, which runs once.
AEROBEE_CROSSINGS=alone, in `make test-crossings`, gives each cell its own one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from tests.crossings.cell import Cell, Feature, State, World
from tests.crossings.features import FEATURES
from tests.crossings.states import STATES

ALONE: Final = os.environ.get("AEROBEE_CROSSINGS") == "alone"
PAIRS: Final = [
    (state, feature)
    for state in STATES
    for feature in FEATURES
    if state.name not in feature.cannot and (ALONE or not state.is_long)
]


@dataclass
class Runs:
    """The brokers that ran already; `wanted` are the features whose tests were chosen, by state."""

    wanted: dict[str, list[Feature]]
    done: dict[str, World | Exception] = field(default_factory=dict)

    def of(self, state: State, feature: Feature) -> Cell:
        """The feature's cell, after its state has been gone through."""
        features = [feature] if ALONE else self.wanted[state.name]
        key = f"{state.name}-{feature.name}" if ALONE else state.name
        if key not in self.done:
            with TemporaryDirectory(prefix="aerobee-crossings-", dir="/dev/shm") as directory:
                world = World(Path(directory), state)
                try:
                    world.run(features)
                    self.done[key] = world
                except Exception as error:
                    error.add_note(world.broker.log_text()[-1500:])
                    self.done[key] = error
        found = self.done[key]
        if isinstance(found, Exception):
            raise found
        return found.cells[feature.name]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Runs:
    wanted: dict[str, list[Feature]] = {}
    chosen = {item.name for item in request.session.items}
    for state, feature in PAIRS:
        if f"test_promises_hold[{state.name}-{feature.name}]" in chosen:
            wanted.setdefault(state.name, []).append(feature)
    return Runs(wanted)


@pytest.mark.parametrize(("state", "feature"), PAIRS, ids=[f"{state.name}-{feature.name}" for state, feature in PAIRS])
def test_promises_hold(runs: Runs, state: State, feature: Feature) -> None:
    cell = runs.of(state, feature)
    assert not cell.problems, "\n".join([*cell.problems, "", *cell.history])
