"""A store is open once, also within one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aerobee_store import MessageStore, StoreConfig, StoreLockedError


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
