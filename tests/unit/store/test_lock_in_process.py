"""A store can be open only once, also within one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aerobee_store import MessageStore, StoreConfig, StoreLockedError
from aerobee_store.disk.file_system import is_locked
from aerobee_store.tools.actions import locked


def test_a_second_opening_in_the_same_process_is_refused_and_keeps_the_lock(tmp_path: Path) -> None:
    """The second opening fails, and the first one keeps its lock: other processes are still refused."""
    config = StoreConfig.tiny(tmp_path / "store")
    with MessageStore.open(config):
        for _ in range(2):
            with pytest.raises(StoreLockedError, match="open"):
                MessageStore.open(config)
        program = (
            "import sys; from pathlib import Path; from aerobee_store import MessageStore, StoreConfig\n"
            "MessageStore.open(StoreConfig.tiny(Path(sys.argv[1])))"
        )
        other = subprocess.run(
            [sys.executable, "-c", program, str(config.directory)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert "StoreLockedError" in other.stderr
    with MessageStore.open(config) as store:
        assert store.state == "open"


_OPEN = (
    "import sys; from pathlib import Path; from aerobee_store import MessageStore, StoreConfig\n"
    "MessageStore.open(StoreConfig.tiny(Path(sys.argv[1]))); print('opened')"
)


def _open_elsewhere(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _OPEN, str(directory)], capture_output=True, text=True, timeout=30, check=False
    )


def test_removing_the_lock_file_does_not_unlock_the_store(tmp_path: Path) -> None:
    """The directory is locked as well, so other openings are refused, and tools see the store as open."""
    config = StoreConfig.tiny(tmp_path / "store")
    with MessageStore.open(config):
        (config.directory / "lock").unlink()
        assert is_locked(config.directory / "lock")
        with pytest.raises(StoreLockedError), locked(config.directory, create=False):
            pass
        assert "StoreLockedError" in _open_elsewhere(config.directory).stderr
        assert "StoreLockedError" in _open_elsewhere(config.directory).stderr, "the first one has made a new file"
        with pytest.raises(StoreLockedError):
            MessageStore.open(config)
    assert not is_locked(config.directory / "lock")
    assert _open_elsewhere(config.directory).stdout == "opened\n"
