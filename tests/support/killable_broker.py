"""A broker process that tests kill, pause and restart, with one store and one address."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

from aerobee_client.testing import AddressKeeper
from tests.support.front_under_test import FRONT
from tests.support.warm_program import WarmProgram, start_warm

FLUSH_MODES = ("sync", "async")
WRITE_MODES = ("gathered", "mapped", "pool")
_START_SECONDS = 60.0
_READY = re.compile(rb"ready grpc=(\S+) metrics=(\S+)")


class KillableBroker:
    """A broker process that always listens on its first address."""

    def __init__(self, directory: Path, config: str, environment: Mapping[str, str] | None = None) -> None:
        """`config` is the text of its aerobee.toml, where {paths} is replaced by two directories of the log.

        `environment` is added to the current one, without its AEROBEE_ variables.
        """
        self.store = directory / "store"
        self.log = directory / "broker.log"
        self._config = directory / "aerobee.toml"
        paths = ", ".join(f"'{path}'" for path in (self.store / "commitlog", directory / "second" / "commitlog"))
        self._config.write_text(config.replace("{paths}", paths))
        ours = {name: value for name, value in os.environ.items() if not name.startswith("AEROBEE_")}
        self._environment = {**ours, **(environment or {})}
        self.endpoint = self._metrics = "127.0.0.1:0"
        self._process: WarmProgram | None = None
        self._keeper = AddressKeeper()

    @property
    def pid(self) -> int:
        """The process id of the current or last process."""
        assert self._process is not None, "it was never started"
        return self._process.pid

    async def launch(self, flush: str, write_mode: str) -> None:
        """Start the process without waiting."""
        command = ["serve", "--store", str(self.store), "--config", str(self._config)]
        ports = ["--listen", self.endpoint, "--metrics", self._metrics, "--flush", flush, "--write-mode", write_mode]
        if FRONT is not None:
            ports += ["--front", FRONT]
        self._process = start_warm("aerobee_broker", [*command, *ports], log=self.log, environment=self._environment)

    async def ready(self) -> None:
        """Wait until the broker serves. AssertionError with its log if it does not."""
        assert self._process is not None
        async with asyncio.timeout(_START_SECONDS):
            line = await self._process.line()
        match = _READY.match(line)
        assert match, f"the broker did not start: {line!r}\n{self.log.read_text()[-4000:]}"
        self.endpoint, self._metrics = match[1].decode(), match[2].decode()
        self._keeper.release()

    async def kill(self) -> None:
        """Send SIGKILL. AssertionError if the process has already ended by itself."""
        assert self._process is not None
        assert self._process.returncode is None, f"it ended by itself\n{self.log.read_text()[-4000:]}"
        self._process.send_signal(signal.SIGKILL)
        await self._ended(self._process)

    async def pause(self, seconds: float) -> None:
        """Stop the process for `seconds` (SIGSTOP), then continue it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._process.send_signal(signal.SIGCONT)

    async def stop(self) -> int:
        """Stop the process cleanly; returns its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(_START_SECONDS):
            return await self._ended(self._process)

    async def end(self) -> None:
        """Kill the process if it still runs."""
        if self._process is not None:
            self._process.kill()
        self._keeper.release()

    async def _ended(self, process: WarmProgram) -> int:
        code = await process.ended()
        if not self.endpoint.endswith(":0"):
            self._keeper.keep(self.endpoint, self._metrics)
        return code
