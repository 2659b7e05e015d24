"""Which topics a promoted replica creates for the messages in its log: those that its master may have had."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest

from aerobee_broker.config import BrokerConfig, Settings
from aerobee_broker.remoting_wire.codes import Request
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.fields import answer
from aerobee_broker.remoting_wire.frame import FRAME_SIZE_MAX, Command
from aerobee_broker.replication.metadata import Metadata
from aerobee_broker.tables.table_files import Tables
from aerobee_store import Message, MessageStore
from aerobee_store.testing.travelling_clock import TravellingClock
from tests.support.replicating import store_config


class _RocketMqMaster:
    """Answers with its topics, and nothing of what was deleted."""

    frame_size_max = FRAME_SIZE_MAX

    def __init__(self, topics: Iterable[str]) -> None:
        self._topics = {name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1} for name in topics}

    async def ask(self, request: Command, _: float) -> Command:
        table: dict[str, object] = {}
        if request.code == Request.GET_ALL_TOPIC_CONFIG:
            table = {"topicConfigTable": self._topics}
        return answer(body=table)


class _Replica:
    """The tables and the log of a replica, which may stop and start again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.start()

    def start(self) -> None:
        self.store = MessageStore.open(store_config(self._directory))
        clock = TravellingClock()
        settings = Settings(BrokerConfig.tiny(self._directory))
        tables = Tables.load(settings, clock, self.store.file_system, self.store.in_disk_thread)
        self._metadata = Metadata(self.store, tables, clock)

    def stop(self) -> None:
        self.store.close()

    def follows(self, topic: str) -> None:
        """A message of the topic arrives with the master's log."""
        self.store.append([Message(topic, 0, b"x")])
        self.store.flush()

    async def hears(self, *topics: str, ahead: int = 0) -> None:
        """The master has these topics, and a log that is so many bytes longer than the one here."""
        master = cast(Connection, _RocketMqMaster(topics))
        await self._metadata.copy(master, self.store.positions[0] + ahead)

    def noted(self) -> dict[str, int]:
        """The topics that the note on disk calls deleted, and where the log ended."""
        found = json.loads((self._directory / "config" / "deletedAtMaster.json").read_bytes())["topics"]
        return cast(dict[str, int], found)

    def promoted(self) -> list[str]:
        return self._metadata.restore_topics()


_AHEAD = 1000  # bytes, of the log


@pytest.mark.parametrize(
    ("steps", "restored"),
    [
        pytest.param(["follows T"], ["T"], id="no table was ever copied"),
        pytest.param(["hears", "follows T"], ["T"], id="made after the tables were copied"),
        pytest.param(["hears", "follows T", "restarts"], ["T"], id="made after, and restarted"),
        pytest.param(["hears T", "follows T", "hears"], [], id="deleted"),
        pytest.param(["hears T", "follows T", "hears", "restarts"], [], id="deleted, and restarted"),
        pytest.param(["hears T", "follows T", "hears", "hears", "restarts"], [], id="deleted, and heard again"),
        pytest.param(["follows T", "restarts", "hears", "restarts"], [], id="deleted before the first tables"),
        pytest.param(["hears T", "hears ahead", "follows T"], [], id="deleted, its messages come later"),
        pytest.param(
            ["hears T", "hears ahead", "hears ahead", "restarts", "follows T"], [], id="deleted, all comes later"
        ),
        pytest.param(["hears T", "follows T", "hears", "follows T"], ["T"], id="made again"),
        pytest.param(
            ["hears T", "follows T", "hears", "restarts", "follows T"], ["T"], id="made again after a restart"
        ),
        pytest.param(["hears T", "follows T", "hears", "hears T", "restarts"], [], id="made again, and in the table"),
        pytest.param(
            ["hears T", "follows T", "hears", "follows T", "hears T", "hears"], [], id="made again, and deleted again"
        ),
        pytest.param(["hears T", "follows T", "hears", "follows T", "hears"], [], id="both between two copies"),
    ],
)
async def test_topics_that_a_promoted_replica_creates(tmp_path: Path, steps: list[str], restored: list[str]) -> None:
    replica = _Replica(tmp_path)
    try:
        for step in steps:
            match step.split():
                case ["follows", topic]:
                    replica.follows(topic)
                case ["hears", "ahead"]:
                    await replica.hears(ahead=_AHEAD)
                case ["hears", *topics]:
                    await replica.hears(*topics)
                case ["restarts"]:
                    replica.stop()
                    replica.start()
        assert replica.promoted() == restored
    finally:
        replica.stop()


async def test_the_note_of_deleted_topics_ends_with_their_queues(tmp_path: Path) -> None:
    """And it is not written for each of the master's answers, of which there is one every few seconds."""
    replica = _Replica(tmp_path)
    try:
        replica.follows("T")
        replica.stop()
        replica.start()
        await replica.hears("U")
        noted = replica.noted()
        assert noted == {"T": replica.store.positions[0]}
        replica.follows("U")
        await replica.hears("U")
        assert replica.noted() == noted
        await replica.store.delete_topics(["T"])
        await replica.hears("U")
        assert replica.noted() == {}
    finally:
        replica.stop()
