"""The states, and what calls may be answered with in each."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import ClassVar, Final

from aerobee_client import Credentials
from tests.crossings import replicated
from tests.crossings.cell import ENDED, State, World
from tests.support import golden
from tests.support.accounts_file import write_accounts

_DAY: Final = 86_400
SENDS: Final = frozenset(("SendMessage", "AppendRecords", "SEND_MESSAGE_V2"))
_NONE: Final[frozenset[str]] = frozenset()


class Killed(State):
    """The broker was killed (SIGKILL) and started again, and is killed once more at the end."""

    name = "killed"
    answers = _NONE

    def enter(self, world: World) -> None:
        world.restart()

    def leave(self, world: World) -> None:
        world.restart()


class ClockAhead(State):
    """The clock is 400 days ahead, and then right again."""

    name = "clock-ahead"
    answers = _NONE
    seconds: ClassVar[float] = 400.0 * _DAY

    def enter(self, world: World) -> None:
        world.restart(clock_moved_seconds=self.seconds)

    def leave(self, world: World) -> None:
        world.restart(clock_moved_seconds=-self.seconds)


class ClockBack(ClockAhead):
    """The clock is 30 days late, and then right again."""

    name = "clock-back"
    seconds = -30.0 * _DAY


class DiskFull(State):
    """The disk is full, and then has space again."""

    name = "disk-full"
    answers = frozenset(("INTERNAL_SERVER_ERROR", "SERVICE_NOT_AVAILABLE"))
    refused = SENDS

    def enter(self, world: World) -> None:
        world.restart(settings={"store.disk_full_ratio": 1e-9})

    def leave(self, world: World) -> None:
        world.restart(settings={"store.disk_full_ratio": 1.0})


class NoReplica(State):
    """A master whose sends wait for a replica, without a replica; then a broker that waits for none."""

    name = "no-replica"
    answers = frozenset(("HA_NOT_AVAILABLE", "SLAVE_NOT_AVAILABLE"))
    refused = SENDS | {"AckMessage", "ACK_MESSAGE", "EndTransaction", "RecallMessage", "SyncLiteSubscription"}

    def enter(self, world: World) -> None:
        settings = {"role": "master", "acks": "1", "listen": "127.0.0.1:0"}
        world.restart(settings={f"replication.{name}": value for name, value in settings.items()})

    def leave(self, world: World) -> None:
        world.restart(settings={"replication.role": "none", "replication.acks": "none", "replication.listen": ""})


class TopicDeleted(State):
    """The topics are deleted, and then made again."""

    name = "topic-deleted"
    answers = frozenset(("TOPIC_NOT_FOUND", "TOPIC_NOT_EXIST"))
    refused = SENDS

    def enter(self, world: World) -> None:
        for cell in world.cells.values():
            topic = cell.topic
            cell.calls.administer(lambda admin, topic=topic: admin.delete_topic(topic))  # type: ignore[misc]
            cell.promises.topic_deleted(topic)
            cell.held = []

    def leave(self, world: World) -> None:
        for cell in world.cells.values():
            cell.make_topic()
            cell.begin()


class NoPermission(State):
    """A broker with accounts, and a caller that has none of the permissions."""

    name = "no-permission"
    answers = frozenset(("FORBIDDEN", "UNAUTHORIZED", "NO_PERMISSION"))
    allows_success = False
    owner: ClassVar = Credentials("owner", "the owner's secret")
    stranger: ClassVar = Credentials("stranger", "the stranger's secret")

    def prepare(self, directory: Path) -> tuple[Sequence[str], Mapping[str, object]]:
        accounts = write_accounts(
            directory / "accounts.toml",
            f'[accounts.owner]\nsecret_key = "{self.owner.secret_key}"\nadmin = true\n'
            f'[accounts.stranger]\nsecret_key = "{self.stranger.secret_key}"\n'
            'publish = ["elsewhere"]\nconsume = ["elsewhere"]\ngroups = ["others"]\n',
        )
        return ("--accounts", str(accounts)), self.settings

    def begin(self, world: World) -> None:
        world.connect(self.owner)

    def enter(self, world: World) -> None:
        world.connect(self.stranger)

    def leave(self, world: World) -> None:
        world.connect(self.owner)


class KilledInFlight(State):
    """The broker is killed while calls are in flight, and started again."""

    name = "killed-in-flight"
    answers = ENDED
    moves_time = False
    seconds: ClassVar[float] = 0.05

    def enter(self, world: World) -> None:
        self.timer = Timer(self.seconds, os.kill, (world.broker.pid, signal.SIGKILL))
        self.timer.start()

    def leave(self, world: World) -> None:
        self.timer.join()
        world.restart()


class Draining(State):
    """The broker was told to stop, and is started again once it has."""

    name = "draining"
    answers = ENDED
    moves_time = False

    def enter(self, world: World) -> None:
        os.kill(world.broker.pid, signal.SIGTERM)

    def leave(self, world: World) -> None:
        deadline = time.monotonic() + 60
        while world.broker.running and time.monotonic() < deadline:  # a second signal would interrupt its last steps
            time.sleep(0.02)
        assert world.broker.stop() == 0, world.broker.log_text()[-3000:]
        world.start()


class TableUnsaved(State):
    """The tables cannot be saved, at which the broker may end; then it is started again where they can."""

    name = "table-unsaved"
    answers = ENDED | {"INTERNAL_ERROR", "INTERNAL_SERVER_ERROR", "SYSTEM_ERROR"}
    moves_time = False

    def enter(self, world: World) -> None:
        tables = world.broker.store / "config"
        tables.rename(tables.with_name("away"))
        tables.touch()

    def leave(self, world: World) -> None:
        world.broker.kill()
        tables = world.broker.store / "config"
        tables.unlink()
        tables.with_name("away").rename(tables)
        world.start()


class OfRocketMQ(Killed):
    """The store was written by RocketMQ; the broker is killed on it twice."""

    name = "rocketmq-store"

    def prepare(self, directory: Path) -> tuple[Sequence[str], Mapping[str, object]]:
        golden.unpack_pop("in-flight", directory)
        return (), golden.POP_SIZES


STATES: Final[tuple[State, ...]] = (
    Killed(),
    ClockAhead(),
    ClockBack(),
    DiskFull(),
    NoReplica(),
    TopicDeleted(),
    NoPermission(),
    KilledInFlight(),
    Draining(),
    TableUnsaved(),
    OfRocketMQ(),
    *replicated.STATES,
)
