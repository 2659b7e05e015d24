"""`aerobee namesrv` as a process."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.warm_program import start_warm


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
    command = ["namesrv", "--listen", "127.0.0.1:0", "--store", str(directory), *arguments]
    process = start_warm("aerobee_broker", command, log=log or Path("/dev/stderr"))
    try:
        yield process.first_line().decode().split("remoting=")[1].split()[0], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
