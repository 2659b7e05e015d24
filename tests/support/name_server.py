"""`aerobee namesrv` as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def our_name_server(directory: Path) -> Iterator[str]:
    """Run it on a free loopback port; yields its address."""
    command = [sys.executable, "-m", "aerobee_broker", "namesrv", "--listen", "127.0.0.1:0", "--store", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split("remoting=")[1].strip()
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
