"""Other programs that write and sync the same disk, which delays the syncs of a broker."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_WRITERS = 4
_BLOCK = 4 << 20
_BLOCKS = 8


def keep_disk_busy(directory: Path, seconds: float) -> None:
    """Return after this time. Each of some threads writes and syncs the same 32 MiB repeatedly."""
    end = time.monotonic() + seconds
    paths = [directory / f"other-{number}" for number in range(_WRITERS)]
    threads = [threading.Thread(target=_write_and_sync, args=(path, end)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _write_and_sync(path: Path, end: float) -> None:
    block = os.urandom(_BLOCK)
    with path.open("wb") as file:
        while time.monotonic() < end:
            for _ in range(_BLOCKS):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
    path.unlink()
