"""`aerobee namesrv` as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def our_name_server(directory: Path) -> Iterator[str]:
    """Run it on a free loopback port; yields its address."""
    with name_server_process(directory) as (address, _):
        yield address


@contextmanager
def name_server_process(
    directory: Path, log: Path | None = None, arguments: Sequence[str] = ()
) -> Iterator[tuple[str, int]]:
    """The same; yields also its process id, and with `log` writes its log there."""
    command = [sys.executable, "-m", "aerobee_broker", "namesrv", "--listen", "127.0.0.1:0", "--store", str(directory)]
    command += arguments
    with (
        ExitStack() as files,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=None if log is None else files.enter_context(log.open("w")),
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split("remoting=")[1].split()[0], process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
