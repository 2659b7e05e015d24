"""A broker of a pair: with movable time, the same addresses in every life, and a role that a test gives it."""

from __future__ import annotations

import asyncio
import itertools
import re
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.frame import Command
from aerobee_client.testing import AddressKeeper, BrokerProcess
from tests.support.ports import free_ports
from tests.support.remoting_client import RemotingClient, json_body

SECONDS: Final = 120.0
_SERVES: Final = re.compile(rb"ready grpc=\S+ .*\n")
_FOLLOWS: Final = re.compile(rb"ready role=replica .*\n")
_TABLES: Final = (
    Request.GET_ALL_TOPIC_CONFIG,
    Request.GET_ALL_SUBSCRIPTION_GROUP_CONFIG,
    Request.GET_ALL_CONSUMER_OFFSET,
)
_PAUSE_SECONDS: Final = 4.0  # of the broker's time: tables are copied every three seconds


class DivergedError(Exception):
    """A replica has messages that its master never had."""


class RoleChangedError(Exception):
    """A replica has become the master."""


class PairedBroker(BrokerProcess):
    """A broker with a replica, or one that follows another one."""

    def __init__(self, directory: Path, name: str, settings: Mapping[str, object]) -> None:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(4)]
        grpc, metrics, self.remoting, listen = addresses
        super().__init__(
            directory / name,
            directory / f"{name}.log",
            (),
            settings={
                "listen.leave_seconds": 0.0,
                "listen.drain_seconds": 0.5,
                "listen.remoting": self.remoting,
                "replication.listen": listen,
                **settings,
            },
            moving_time=True,
        )
        self.name = name
        self.endpoint, self.metrics = grpc, metrics
        self.is_paused = False
        self._late_seconds = 0.0
        self._reserved = AddressKeeper()
        self._reserved.keep(*addresses)

    # --- Its life

    def serve(self, *, settings: Mapping[str, object] | None = None, clock_moved_seconds: float = 0.0) -> None:
        """Start as the master."""
        self._launch({**(settings or {}), "replication.role": "master"}, clock_moved_seconds)
        self._wait_for(_SERVES, "serve")

    def follow(
        self, master: str, *, settings: Mapping[str, object] | None = None, clock_moved_seconds: float = 0.0
    ) -> None:
        """Start as the replica of the broker with this remoting address."""
        role = {"replication.role": "replica", "replication.master": master}
        self._launch({**(settings or {}), **role}, clock_moved_seconds)
        self._wait_for(_FOLLOWS, "follow")

    def join(self, role: str) -> None:
        """Start in a group with a lease, as a replica at first; `role` is for the first start."""
        self._launch({"replication.role": role}, 0.0)
        self._wait_for(_FOLLOWS, "begin as a replica")

    def serves(self) -> bool:
        """Whether it listens for clients."""
        host, _, port = self.endpoint.rpartition(":")
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=SECONDS):
            return True
        return False

    def promote(self, *, force: bool = False) -> str:
        """Make it the master, and return once it serves; or return why it refuses."""
        fields = {"masterBrokerId": 1, **({"force": "true"} if force else {})}
        answered = self.ask(Request.NOTIFY_BROKER_ROLE_CHANGED, fields)
        if answered.code != Answer.SUCCESS:
            return answered.remark or f"code {answered.code}"
        self._wait_for(_SERVES, "serve after its promotion")
        return ""

    def pause(self) -> None:
        """Let the process stand still, as in a virtual machine that is paused."""
        self._signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Let it go on, at the present time."""
        if self.is_paused:
            self._signal(signal.SIGCONT)
            self.is_paused = False
            self.advance(self._late_seconds)
            self._late_seconds = 0.0

    def advance(self, seconds: float) -> None:
        """Also of one that does not run, or is paused: it finds its clock moved later."""
        if self.is_paused:
            self._late_seconds += seconds
        elif self.running:
            super().advance(seconds)
        else:
            self._advanced_seconds += seconds

    def kill(self) -> None:
        self.is_paused = False
        self._advanced_seconds += self._late_seconds
        self._late_seconds = 0.0
        super().kill()

    def close(self) -> None:
        try:
            self.kill()
            super().close()
        finally:
            self._reserved.release()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "started before"
        self._process.signal(number)

    # --- What it says

    def ask(self, code: Request, fields: Mapping[str, object] | None = None) -> Command:
        """A request over the remoting protocol."""

        async def asked() -> Command:
            client = await RemotingClient.connect(Address.parse(self.remoting))
            try:
                return await client.call(code, dict(fields or {}))
            finally:
                await client.close()

        return asyncio.run(asked())

    def status(self) -> Any:
        """Its role, its replicas or its master."""
        return json_body(self.ask(Request.GET_BROKER_HA_STATUS))

    def has_all_of(self, master: PairedBroker) -> None:
        """Return once it has its master's log and tables, and the master counts it. DivergedError if it never will,
        RoleChangedError if it need not.

        The time of both moves ahead, so that nothing waits for a pause between attempts.
        """
        deadline = time.monotonic() + SECONDS
        for _ in range(2):  # what the tables say of a place in the log is done once the log has reached it
            for looks in itertools.count(1):
                if self._has_all_of(master):
                    break
                assert time.monotonic() < deadline, (self.status(), master.status(), self.log_text()[-3000:])
                time.sleep(0.05)
                if looks % 5 == 0:  # more often would end each connection before it has done anything
                    self._pass_pauses(master)
            self._pass_pauses(master)

    def _pass_pauses(self, master: PairedBroker) -> None:
        for each in (master, self):
            each.advance(_PAUSE_SECONDS)

    def _has_all_of(self, master: PairedBroker) -> bool:
        with suppress(ConnectionError):  # it opens its store again
            return self._compare(master)
        assert self.running, self.log_text()[-3000:]
        return False

    def _compare(self, master: PairedBroker) -> bool:
        own = self.status()
        if own["master"]:
            raise RoleChangedError(own)
        info = own["haClientRuntimeInfo"]
        if "nothing was deleted" in info["lastError"]:
            raise DivergedError(info["lastError"])
        if info["reseeding"] or info["tablesMissing"] or info.get("lag") != 0 or info.get("lacking") != 0:
            return False
        found = master.status()
        if info["maxOffset"] < found["masterCommitLogMaxOffset"] or not found["inSyncSlaveNums"]:
            return False
        return all(json_body(master.ask(code)) == json_body(self.ask(code)) for code in _TABLES)
