"""States of a broker with a replica, which takes its place, and of one whose lease is lost."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar, Final

from aerobee_broker.config import Address
from aerobee_broker.tables.deleted_letters import FILE_NAME as LETTERS
from aerobee_client.testing import BrokerProcess
from tests.crossings.cell import ENDED, State, World
from tests.model.calls import SETTINGS
from tests.support import kubernetes
from tests.support.paired_broker import PairedBroker
from tests.support.ports import free_ports
from tests.support.remoting_client import RemotingClient, send

_SECONDS: Final = 120.0
_SEGMENT_SIZE: Final = 1 << 20


def _table(broker: PairedBroker, name: str) -> Any:
    path = broker.store / "config" / name
    return json.loads(path.read_bytes()) if path.exists() else {}


def _has_deletions(replica: PairedBroker, master: PairedBroker) -> bool:
    """Whether it has deleted all that its master has: topics, purged ones too, and dead letters."""
    masters, own = (_table(each, "deletedTopics.json").get("topics", {}) for each in (master, replica))
    return all(
        own.get(name, {}).get("physicalOffset", -1) >= deleted["physicalOffset"] for name, deleted in masters.items()
    ) and _table(master, LETTERS) == _table(replica, LETTERS)


class Promoted(State):
    """A replica was promoted after the death of the master, and is killed and started again."""

    name = "promoted"
    answers: ClassVar = frozenset[str]()

    def broker(self, directory: Path) -> BrokerProcess:
        settings = {**SETTINGS, "store.segment_size": _SEGMENT_SIZE, "replication.role": "master"}
        self._master, self._replica = (PairedBroker(directory, name, settings) for name in ("master", "replica"))
        return self._master

    def begin(self, world: World) -> None:
        self._replica.follow(self._master.remoting)

    def enter(self, world: World) -> None:
        self._catch_up(world)
        self._replica.has_all_of(self._master)
        deadline = time.monotonic() + _SECONDS
        while not _has_deletions(self._replica, self._master):
            assert time.monotonic() < deadline, self._replica.log_text()[-3000:]
            time.sleep(0.05)
        self._master.kill()
        assert not (refusal := self._replica.promote()), refusal
        self._replica.kill()
        self._replica.serve()
        world.broker = self._replica
        world.connect()

    def _catch_up(self, world: World) -> None:
        """Let the replica follow."""

    def leave(self, world: World) -> None:
        world.restart()

    def end(self) -> None:
        self._master.close()
        self._replica.close()


class Reseeded(Promoted):
    """A replica was away until the master had removed what follows its log, copied the log again and was promoted."""

    name = "reseeded"

    def begin(self, world: World) -> None:
        """The first segment, which expires, has no message of a feature; the replica has only its beginning."""
        super().begin(world)
        asyncio.run(self._fill(1000))
        self._replica.has_all_of(self._master)
        self._replica.kill()
        asyncio.run(self._fill(_SEGMENT_SIZE + 1000))

    async def _fill(self, size: int) -> None:
        client = await RemotingClient.connect(Address.parse(self._master.remoting))
        try:
            for left in range(size, 0, -200_000):
                assert (await send(client, "BenchmarkTest", bytes(min(left, 200_000)))).code == 0
        finally:
            await client.close()

    def _catch_up(self, world: World) -> None:
        assert self._master.stop() == 0, self._master.log_text()[-3000:]
        (self._master.store / "commitlog" / f"{0:020}").unlink()
        world.start()
        self._replica.follow(self._master.remoting)


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
