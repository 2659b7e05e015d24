"""States of a broker with a replica, which takes its place, and of one whose lease is lost."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar, Final

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Request
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.deleted_letters import FILE_NAME as LETTERS
from tests.crossings.cell import ENDED, State, World
from tests.model.calls import SETTINGS
from tests.support import kubernetes
from tests.support.etcd import free_ports
from tests.support.remoting_client import RemotingClient, json_body, send

_SECONDS: Final = 120.0
_SEGMENT_SIZE: Final = 1 << 20
_TABLES: Final = (
    Request.GET_ALL_TOPIC_CONFIG,
    Request.GET_ALL_SUBSCRIPTION_GROUP_CONFIG,
    Request.GET_ALL_CONSUMER_OFFSET,
)


def _ask(address: str, code: Request, fields: Mapping[str, object] | None = None) -> Command:
    async def asked() -> Command:
        client = await RemotingClient.connect(Address.parse(address))
        try:
            return await client.call(code, dict(fields or {}))
        finally:
            await client.close()

    return asyncio.run(asked())


def _tables(store: Path, name: str) -> Any:
    path = store / "config" / name
    return json.loads(path.read_bytes()) if path.exists() else {}


class Replica:
    """A replica process of the broker whose remoting address is `master`."""

    def __init__(self, directory: Path, master: str) -> None:
        self.store = directory / "replica"
        self._master_store = directory / "store"
        self.log = directory / "replica.log"
        self._master = master
        self._config = directory / "replica.toml"
        settings = {"listen.drain_seconds": 0.1, **SETTINGS, "store.segment_size": _SEGMENT_SIZE}
        self._config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
        self._grpc, self._remoting, self._listen = (f"127.0.0.1:{port}" for port in free_ports(3))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "aerobee_broker", "serve", "--config", str(self._config)]
        command += ["--store", str(self.store), "--listen", self._grpc, "--metrics", "127.0.0.1:0"]
        command += ["--listen-remoting", self._remoting, "--listen-replicas", self._listen]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--role", "replica", "--master", self._master], stdout=subprocess.PIPE, stderr=log
            )
        self._ready("role=replica")

    def _ready(self, what: str) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()  # empty if the process has ended
        assert line.startswith(f"ready {what}"), (line, self.log.read_text()[-3000:])

    def status(self) -> Any:
        return json_body(_ask(self._remoting, Request.GET_BROKER_HA_STATUS))["haClientRuntimeInfo"]

    def has_all(self, *, reseeded: bool = False) -> None:
        """Return once it has its master's log and tables; `reseeded`: after it has copied the log again."""
        if reseeded:
            self._ready("role=replica")
        deadline = time.monotonic() + _SECONDS
        while not self._has_all():
            assert time.monotonic() < deadline, (self.status(), self.log.read_text()[-3000:])
            time.sleep(0.05)

    def _has_all(self) -> bool:
        info = self.status()
        if info["reseeding"] or info["tablesMissing"] or info.get("lag") != 0 or info.get("lacking") != 0:
            return False
        end = json_body(_ask(self._master, Request.GET_BROKER_HA_STATUS))["masterCommitLogMaxOffset"]
        if info["maxOffset"] < end:
            return False
        same = all(json_body(_ask(self._master, code)) == json_body(_ask(self._remoting, code)) for code in _TABLES)
        return same and self._has_deletions()

    def _has_deletions(self) -> bool:
        """Whether it has deleted all that its master has: topics, purged ones too, and dead letters."""
        masters, own = (
            _tables(store, "deletedTopics.json").get("topics", {}) for store in (self._master_store, self.store)
        )
        return all(
            own.get(name, {}).get("physicalOffset", -1) >= deleted["physicalOffset"]
            for name, deleted in masters.items()
        ) and _tables(self._master_store, LETTERS) == _tables(self.store, LETTERS)

    def promote(self) -> None:
        """Make it the master, and return once it serves."""
        answered = _ask(self._remoting, Request.NOTIFY_BROKER_ROLE_CHANGED, {"masterBrokerId": 1})
        assert answered.code == 0, answered.remark
        self._ready("grpc=")

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the process, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(_SECONDS)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


class Promoted(State):
    """A replica was promoted after the death of the master, and is killed and started again."""

    name = "promoted"
    answers: ClassVar = frozenset[str]()

    def prepare(self, directory: Path) -> tuple[Sequence[str], Mapping[str, object]]:
        self._remoting, listen = (f"127.0.0.1:{port}" for port in free_ports(2))
        self._replica = Replica(directory, self._remoting)
        return (), {
            "listen.remoting": self._remoting,
            "replication.role": "master",
            "replication.listen": listen,
            "store.segment_size": _SEGMENT_SIZE,
        }

    def begin(self, world: World) -> None:
        self._replica.start()

    def enter(self, world: World) -> None:
        self._catch_up(world)
        world.broker.kill()
        self._replica.promote()
        self._replica.end()
        world.broker.store = self._replica.store
        world.start()

    def _catch_up(self, world: World) -> None:
        self._replica.has_all()

    def leave(self, world: World) -> None:
        world.restart()

    def end(self) -> None:
        self._replica.end()


class Reseeded(Promoted):
    """A replica was away until the master had removed what follows its log, copied the log again and was promoted."""

    name = "reseeded"

    def begin(self, world: World) -> None:
        """The first segment, which expires, has no message of a feature; the replica has only its beginning."""
        asyncio.run(self._fill(1000))
        self._replica.start()
        self._replica.has_all()
        self._replica.end()
        asyncio.run(self._fill(_SEGMENT_SIZE + 1000))

    async def _fill(self, size: int) -> None:
        client = await RemotingClient.connect(Address.parse(self._remoting))
        try:
            for left in range(size, 0, -200_000):
                assert (await send(client, "BenchmarkTest", bytes(min(left, 200_000)))).code == 0
        finally:
            await client.close()

    def _catch_up(self, world: World) -> None:
        assert world.broker.stop() == 0, world.broker.log_text()[-3000:]
        (world.broker.store / "commitlog" / f"{0:020}").unlink()
        world.start()
        self._replica.start()
        self._replica.has_all(reseeded=True)


class LeaseLost(State):
    """The lease that makes the broker the master cannot be renewed, and then it can be taken again."""

    name = "lease-lost"
    answers: ClassVar = ENDED | {"HA_NOT_AVAILABLE", "SLAVE_NOT_AVAILABLE", "SYSTEM_ERROR", "SYSTEM_BUSY"}
    moves_time = False

    def prepare(self, directory: Path) -> tuple[Sequence[str], Mapping[str, object]]:
        self._stack = ExitStack()
        self._api = kubernetes.StandIn({kubernetes.TOKEN: {"get", "create", "update"}})
        access = self._stack.enter_context(kubernetes.serving(directory, self._api)).settings("crossings")
        remoting, listen = (f"127.0.0.1:{port}" for port in free_ports(2))
        settings = {"role": "master", "listen": listen, "acks": "all", "lease_seconds": 8, **access}
        return (), {
            "listen.remoting": remoting,
            **{
                f"replication.{name}": str(value) if isinstance(value, Path) else value
                for name, value in settings.items()
            },
        }

    def begin(self, world: World) -> None:
        world.restart()  # on the ports that it has again when it becomes the master again

    def enter(self, world: World) -> None:
        self._api.answer = lambda _method: (503, b"{}")
        self._wait(world, serves=False)

    def leave(self, world: World) -> None:
        self._api.answer = None
        self._wait(world, serves=True)
        world.connect()

    def _wait(self, world: World, *, serves: bool) -> None:
        deadline = time.monotonic() + _SECONDS
        while self._serves(world) is not serves:
            assert time.monotonic() < deadline, world.broker.log_text()[-3000:]
            time.sleep(0.05)

    def _serves(self, world: World) -> bool:
        host, _, port = world.broker.endpoint.rpartition(":")
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=_SECONDS):
            return True
        return False

    def end(self) -> None:
        self._stack.close()


STATES: Final[tuple[State, ...]] = (Promoted(), Reseeded(), LeaseLost())
