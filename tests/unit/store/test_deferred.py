"""Modules that are imported at first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from aerobee_store.deferred import deferred, load_deferred
from aerobee_store.queues import batch_consume_queue, consume_queue, index_file
from aerobee_store.timer import log, wheel


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module that is not imported."""
    (tmp_path / "module_for_deferred.py").write_text("value = [1]\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("aerobee_store.deferred._NAMES", {})
    monkeypatch.delitem(sys.modules, "module_for_deferred", raising=False)
    return "module_for_deferred"


def test_the_first_use_imports_the_module(module: str) -> None:
    """Each attribute is the module's own; a missing one raises an error that names it."""
    stand_in = deferred(module)
    assert module not in sys.modules
    assert stand_in.value is sys.modules[module].value
    assert stand_in.value is sys.modules[module].value
    with pytest.raises(AttributeError, match=r"module_for_deferred.*'missing'"):
        _ = stand_in.missing


def test_all_deferred_modules_can_be_imported_in_advance(module: str) -> None:
    """The broker does this with its first client."""
    deferred(module)
    load_deferred()
    assert module in sys.modules


def test_the_store_can_be_imported_without_numpy() -> None:
    """A client and an idle broker do not need numpy."""
    check = "import sys, aerobee_store.message_store; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60, check=False).returncode == 0


def test_nothing_is_imported_at_the_first_use_of_numpy() -> None:
    """numpy's own deferred part takes 15 ms, in a step of the event loop."""
    use = "np.unique(np.array([2, 1, 2])), np.unique([2, 1], return_inverse=True), np.array([1, 2]).searchsorted(1)"
    check = (
        "import sys, numpy as np, aerobee_store.message_store, aerobee_store.deferred as d; d.load_deferred(); "
        f"before = set(sys.modules); {use}; sys.exit(' '.join(set(sys.modules) - before) or None)"
    )
    subprocess.run([sys.executable, "-c", check], timeout=60, check=True)


def test_the_layouts_for_numpy_and_for_struct_agree() -> None:
    """Units, entries and slots have the same size in both."""
    assert np.dtype(consume_queue.UNIT_DTYPE).itemsize == consume_queue.UNIT_SIZE
    assert np.dtype(batch_consume_queue.BATCH_UNIT_DTYPE).itemsize == batch_consume_queue.BATCH_UNIT_SIZE
    assert np.dtype(index_file.ENTRY_DTYPE).itemsize == index_file.ENTRY_SIZE
    assert np.dtype(log.UNIT_DTYPE).itemsize == log.UNIT_SIZE
    assert np.dtype(wheel.SLOT_DTYPE).itemsize == wheel.SLOT_SIZE
