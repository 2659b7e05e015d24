"""A real broker that must be well at the end, whatever a test did to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from aerobee_client.testing import BrokerProcess, run_broker


@contextmanager
def unharmed_broker(
    directory: Path, arguments: Sequence[str] = ("--dev",), settings: Mapping[str, object] | None = None
) -> Iterator[BrokerProcess]:
    """As `run_broker`; at the end of the block it stops without an error and has logged none."""
    with run_broker(directory, arguments, settings=settings) as running:
        yield running
        assert running.stop() == 0
        log = running.log_text()
        assert "Traceback" not in log, log[-6000:]
        assert " ERROR " not in log, log[-6000:]
