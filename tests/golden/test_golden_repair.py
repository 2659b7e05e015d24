"""Repair of stores that RocketMQ left damaged: it does what it announces, and everything that is possible."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_store import MessageStore
from aerobee_store.tools.repair import LOST_FOR_GOOD, repair
from aerobee_store.tools.verify import verify
from tests.golden.test_golden_rebuild import given, snapshot
from tests.golden.test_golden_store import config_of
from tests.support import golden

UNDAMAGED = {"plain", "propcrc", "propcrc-unclosed", "wide", "kinds", "batch-cq", "v43", "deleted-head"}
KINDS = {
    "cq-ahead-clean": {"drop-units", "remove-file", "write-index", "write-checkpoint"},
    "cq-ahead-crash": {"drop-units", "remove-file", "write-index", "write-checkpoint", "close-in-order"},
    "cq-behind-clean": {"add-units", "write-index", "write-checkpoint"},
    "crash-tail": {"cut-log", "add-units", "remove-file", "write-index", "write-checkpoint", "close-in-order"},
    "no-cq-clean": {"add-units", "write-index", "write-checkpoint"},
}


@pytest.mark.parametrize("name", golden.names())
def test_it_is_announced_and_then_done(name: str, tmp_path: Path) -> None:
    """Without apply nothing changes. With it the same actions are done, and only lost records remain as findings."""
    case = golden.load(name, tmp_path)
    before = snapshot(case.store)
    announced = repair(case.store, sizes=given(case))
    assert snapshot(case.store) == before
    assert not announced.applied
    if name in UNDAMAGED:
        assert announced.actions == []
    if name in KINDS:
        assert {action.kind for action in announced.actions} == KINDS[name]
    done = repair(case.store, sizes=given(case), apply=True)
    assert [str(action) for action in done.actions] == [str(action) for action in announced.actions]
    assert {finding.kind for finding in done.left} <= LOST_FOR_GOOD
    assert [str(finding) for finding in done.left] == [str(finding) for finding in announced.left]
    changed = {path for path, state in snapshot(case.store).items() if before.get(path) != state} - {"lock"}
    changed |= before.keys() - snapshot(case.store).keys()
    told = {action.path for action in done.actions}
    # Opening gives the store an identity, writes the checkpoint and the bounds of the queues, and marks the store as
    # closed; the checkpoint may have been the same before.
    contents = {path for path in changed if before.get(path, ("",))[0] != snapshot(case.store).get(path, ("",))[0]}
    announced_moves = " ".join(action.detail for action in done.actions if action.kind == "set-aside")
    moved = {path for path in contents if path.startswith("quarantine/") and path in announced_moves}
    assert contents - moved <= told | {"abort", "checkpoint", "queueBounds.json", "store.id"}
    assert {path for path in changed if path.startswith("commitlog")} <= told
    report = verify(case.store)
    assert report.state == "stopped"
    assert report.records == len(case.intact)
    assert repair(case.store, sizes=given(case)).actions == []


@pytest.mark.parametrize("name", golden.names())
def test_what_was_repaired_opens_with_nothing_to_do(name: str, tmp_path: Path) -> None:
    """A repaired store has the queues of the manifest, and opening it changes nothing."""
    case = golden.load(name, tmp_path)
    repair(case.store, sizes=given(case), apply=True)
    expected = case.manifest["recovery"]["lossless"]
    with MessageStore.open(config_of(case)) as store:
        recovery = store.recovery
        if name != "pre-blank":
            assert (recovery.units_added, recovery.units_corrected, recovery.units_dropped) == (0, 0, 0)
        assert {
            topic: {str(queue_id): list(store.queue_range(topic, queue_id)) for queue_id in queue_ids}
            for topic, queue_ids in store.queues().items()
        } == expected["queues"]
