"""The tables of a replica may have any size: the event loop neither reads, compares nor writes a whole one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from aerobee_broker.remoting_wire.codes import Request
from aerobee_broker.replication import metadata
from aerobee_broker.replication import replica as replica_module
from aerobee_broker.replication.master_log import content_of
from aerobee_broker.tables.consumer_groups import GroupTable
from aerobee_broker.tables.consumer_offsets import OffsetTable
from aerobee_broker.tables.topics import TopicTable
from aerobee_client import connect
from tests.support.remoting_client import json_body
from tests.support.replicating import eventually, master, replica

_TABLES: Final = (TopicTable, GroupTable, OffsetTable)


async def test_whole_tables_are_the_work_of_other_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a change is copied, and while another replica asks for the tables."""
    monkeypatch.setattr(replica_module, "METADATA_SECONDS", 0.1)
    did: list[tuple[str, bool]] = []

    def noted(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def note(*arguments: Any) -> Any:
            did.append((what, threading.current_thread() is threading.main_thread()))
            return function(*arguments)

        return note

    async with master(tmp_path / "a") as found, replica(tmp_path / "b", found.broker.remoting) as following:

        async def topics() -> set[str]:
            return set(json_body(await following.client.call(Request.GET_ALL_TOPIC_CONFIG))["topicConfigTable"])

        async def copied() -> bool:
            return "late" in await topics()

        monkeypatch.setattr(metadata, "content_of", noted("parse", content_of))
        for table in _TABLES:
            monkeypatch.setattr(table, "from_json", noted(f"read {table.__name__}", table.from_json))
            content = table.content
            write = f"write {table.__name__}"
            monkeypatch.setattr(
                table, "content", lambda self, content=content, write=write: noted(write, content(self))
            )
        async with connect(found.broker.endpoint) as client:
            await client.admin.create_topic("late")
        await eventually(copied)
        for code in (Request.GET_ALL_SUBSCRIPTION_GROUP_CONFIG, Request.GET_ALL_CONSUMER_OFFSET):
            assert (await following.client.call(code)).code == 0
    names = [table.__name__ for table in _TABLES]
    assert {what for what, _ in did} == {"parse", *(f"{act} {name}" for name in names for act in ("read", "write"))}
    assert not [what for what, in_loop in did if in_loop]
