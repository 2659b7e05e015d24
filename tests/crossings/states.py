"""The states, and what calls may be answered with in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from aerobee_client import Credentials
from tests.crossings.cell import State, World

_DAY: Final = 86_400
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
    answers = frozenset(("TOO_MANY_REQUESTS", "SERVICE_NOT_AVAILABLE", "SYSTEM_BUSY"))

    def enter(self, world: World) -> None:
        world.restart(settings={"store.disk_full_ratio": 1e-9})

    def leave(self, world: World) -> None:
        world.restart(settings={"store.disk_full_ratio": 1.0})


class NoReplica(State):
    """A master whose sends wait for a replica, without a replica; then a broker that waits for none."""

    name = "no-replica"
    answers = frozenset(("HA_NOT_AVAILABLE", "SLAVE_NOT_AVAILABLE", "SLAVE_PERSISTENCE_TIMEOUT", "FLUSH_SLAVE_TIMEOUT"))

    def enter(self, world: World) -> None:
        settings = {"role": "master", "acks": "1", "listen": "127.0.0.1:0"}
        world.restart(settings={f"replication.{name}": value for name, value in settings.items()})

    def leave(self, world: World) -> None:
        world.restart(settings={"replication.role": "none", "replication.acks": "none", "replication.listen": ""})


class TopicDeleted(State):
    """The topics are deleted, and then made again."""

    name = "topic-deleted"
    answers = frozenset(("TOPIC_NOT_FOUND", "TOPIC_NOT_EXIST", "NOT_FOUND", "MESSAGE_NOT_FOUND"))

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
        accounts = directory / "accounts.toml"
        accounts.write_text(
            f'[accounts.owner]\nsecret_key = "{self.owner.secret_key}"\nadmin = true\n'
            f'[accounts.stranger]\nsecret_key = "{self.stranger.secret_key}"\n'
            'publish = ["elsewhere"]\nconsume = ["elsewhere"]\ngroups = ["others"]\n'
        )
        accounts.chmod(0o600)
        return ("--accounts", str(accounts)), self.settings

    def begin(self, world: World) -> None:
        world.connect(self.owner)

    def enter(self, world: World) -> None:
        world.connect(self.stranger)

    def leave(self, world: World) -> None:
        world.connect(self.owner)


STATES: Final[tuple[State, ...]] = (
    Killed(),
    ClockAhead(),
    ClockBack(),
    DiskFull(),
    NoReplica(),
    TopicDeleted(),
    NoPermission(),
)
