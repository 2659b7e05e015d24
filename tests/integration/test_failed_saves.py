"""A change of a table that cannot be saved is refused, and is not visible then or later; the broker serves on."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_proto import admin_v1, v2
from aerobee_store import StoreFailedError
from aerobee_store.disk.file_system import DiskFile, DiskFileSystem
from tests.support.in_process_broker import METADATA, InProcessBroker, message
from tests.support.remoting_client import RemotingClient, json_body, remoting_broker, send_fields

_OPERATIONS: Final = ("write_new", "create", "link", "rename")  # of the file system, besides writes to open files
_SECONDS: Final = 60


class _Disk:
    """Makes the operations on the files of one table fail, as a disk that is full or broken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error = 0
        self.table = ""
        self.failures = 0
        for name in _OPERATIONS:
            monkeypatch.setattr(DiskFileSystem, name, self._failing(getattr(DiskFileSystem, name)))
        monkeypatch.setattr(DiskFile, "write", self._failing(DiskFile.write))

    def _failing(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(self_: Any, *arguments: Any, **options: Any) -> Any:
            path = self_.path if isinstance(self_, DiskFile) else arguments[0]
            if self.error and path.parent.name == "config" and path.name.startswith(self.table):
                self.failures += 1
                raise OSError(self.error, os.strerror(self.error))
            return operation(self_, *arguments, **options)

        return call


class _World:
    """A broker with a topic, a group that has read it, and everything else that a change needs."""

    def __init__(self, broker: InProcessBroker, client: RemotingClient) -> None:
        self.broker = broker
        self.client = client

    async def call(self, stub: Any, method: str, request: Any) -> v2.Code.ValueType:
        answer = await getattr(stub, method)(request, metadata=METADATA, timeout=_SECONDS)
        code: v2.Code.ValueType = answer.status.code
        return code

    async def administer(self, method: str, request: Any) -> bool:
        return await self.call(self.broker.administration, method, request) == v2.Code.OK

    async def tell(self, code: Request, fields: Any = None, body: Any = b"") -> bool:
        return (await self.client.call(code, fields or {}, body)).code == Answer.SUCCESS

    async def topics(self) -> dict[str, str]:
        answer = await self.broker.administration.ListTopics(
            admin_v1.ListTopicsRequest(), metadata=METADATA, timeout=_SECONDS
        )
        return {topic.name: str(topic) for topic in answer.topics}

    async def groups(self) -> dict[str, str]:
        answer = await self.broker.administration.ListGroups(
            admin_v1.ListGroupsRequest(), metadata=METADATA, timeout=_SECONDS
        )
        return {group.name: str(group) for group in answer.groups}


@dataclass(frozen=True, slots=True)
class _Change:
    """One kind of change. `make` says whether it was accepted, `shown` what clients see of it."""

    table: str
    make: Callable[[_World], Awaitable[bool]]
    shown: Callable[[_World], Awaitable[object]]


def _administered(method: str, request: Any) -> Callable[[_World], Awaitable[bool]]:
    return lambda world: world.administer(method, request)


def _told(code: Request, fields: dict[str, object], body: Any = b"") -> Callable[[_World], Awaitable[bool]]:
    return lambda world: world.tell(code, fields, body)


async def _send_to_new_topic(world: _World) -> bool:
    request = v2.SendMessageRequest(messages=[message("first-use")])
    return await world.call(world.broker.messaging, "SendMessage", request) == v2.Code.OK


async def _offsets(world: _World) -> list[object]:
    found: list[object] = []
    for group in ("g", "untouched"):
        fields = {"consumerGroup": group, "topic": "orders", "queueId": 0}
        answer = await world.client.call(Request.QUERY_CONSUMER_OFFSET, fields)
        found.append((answer.code, answer.fields.get("offset")))
    return found


async def _settings(world: _World) -> str:
    request = admin_v1.GetConfigurationRequest(prefix="store.retention_hours")
    return str(await world.broker.administration.GetConfiguration(request, metadata=METADATA, timeout=_SECONDS))


async def _values(world: _World) -> object:
    answer = await world.client.call(Request.GET_KV_LIST_BY_NAMESPACE, {"namespace": "n"})
    return answer.code, answer.body


async def _permission(world: _World) -> object:
    answer = await world.client.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": "orders"})
    return [queues["perm"] for queues in json_body(answer)["queueDatas"]]


async def _letters(world: _World) -> object:
    request = admin_v1.ListDeadLettersRequest(group="g")
    answer = await world.broker.administration.ListDeadLetters(request, metadata=METADATA, timeout=_SECONDS)
    return [letter.offset for letter in answer.dead_letters]


async def _modes(world: _World) -> object:
    return json_body(await world.client.call(Request.GET_ALL_MESSAGE_REQUEST_MODE))


_RESET: Final = admin_v1.ResetOffsetsRequest(topic="orders", group="untouched", latest=True)
_CHANGES: Final = {
    "topic created": _Change(
        "topics",
        _administered("CreateTopic", admin_v1.CreateTopicRequest(topic=admin_v1.Topic(name="new"))),
        _World.topics,
    ),
    "topic of a first send": _Change("topics", _send_to_new_topic, _World.topics),
    "topic changed": _Change(
        "topics",
        _administered("UpdateTopic", admin_v1.UpdateTopicRequest(name="orders", read_queue_count=9)),
        _World.topics,
    ),
    "topic deleted": _Change(
        "topics", _administered("DeleteTopic", admin_v1.DeleteTopicRequest(name="spare")), _World.topics
    ),
    "topic by a tool": _Change(
        "topics",
        _told(
            Request.UPDATE_AND_CREATE_TOPIC,
            {"topic": "tool", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6},
        ),
        _World.topics,
    ),
    "group created": _Change(
        "subscriptionGroup",
        _administered("CreateGroup", admin_v1.CreateGroupRequest(group=admin_v1.Group(name="new"))),
        _World.groups,
    ),
    "group changed": _Change(
        "subscriptionGroup",
        _administered("UpdateGroup", admin_v1.UpdateGroupRequest(name="g", max_attempts=3)),
        _World.groups,
    ),
    "group deleted": _Change(
        "subscriptionGroup", _administered("DeleteGroup", admin_v1.DeleteGroupRequest(name="spare")), _World.groups
    ),
    "position reset": _Change("consumerOffset", _administered("ResetOffsets", _RESET), _offsets),
    "setting": _Change(
        "aerobeeSettings",
        _administered("UpdateConfiguration", admin_v1.UpdateConfigurationRequest(set={"store.retention_hours": "7"})),
        _settings,
    ),
    "value of the name server": _Change(
        "kvConfig", _told(Request.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}), _values
    ),
    "value deleted": _Change("kvConfig", _told(Request.DELETE_KV_CONFIG, {"namespace": "n", "key": "old"}), _values),
    "write permission wiped": _Change(
        "wipedBrokers", _told(Request.WIPE_WRITE_PERMISSION_OF_BROKER, {"brokerName": "aerobee"}), _permission
    ),
    "dead letter deleted": _Change(
        "aerobeeDeletedDeadLetters",
        _administered("DeleteDeadLetters", admin_v1.DeleteDeadLettersRequest(group="g", offsets=[0])),
        _letters,
    ),
    "group by a tool": _Change(
        "subscriptionGroup",
        _told(Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, {"groupName": "tool", "retryMaxTimes": 3}),
        _World.groups,
    ),
    "setting by a tool": _Change(
        "aerobeeSettings", _told(Request.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=8\n"), _settings
    ),
    "request mode": _Change(
        "messageRequestMode",
        _told(
            Request.SET_MESSAGE_REQUEST_MODE,
            {},
            {"topic": "orders", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0},
        ),
        _modes,
    ),
}


async def _prepare(world: _World) -> None:
    for name in ("orders", "spare"):
        assert await world.administer("CreateTopic", admin_v1.CreateTopicRequest(topic=admin_v1.Topic(name=name)))
    for name in ("g", "spare", "untouched"):
        assert await world.administer("CreateGroup", admin_v1.CreateGroupRequest(group=admin_v1.Group(name=name)))
    assert await world.tell(Request.SEND_MESSAGE_V2, send_fields("orders"), b"hello")
    assert await world.tell(Request.PUT_KV_CONFIG, {"namespace": "n", "key": "old", "value": "v"})
    await _bury(world)


async def _bury(world: _World) -> None:
    """Make a message a dead letter of the group."""
    group, topic = v2.Resource(name="g"), v2.Resource(name="orders")
    request = v2.ReceiveMessageRequest(group=group, message_queue=v2.MessageQueue(topic=topic, id=-1), batch_size=1)
    request.invisible_duration.FromSeconds(3600)
    async for answer in world.broker.messaging.ReceiveMessage(request, metadata=METADATA, timeout=_SECONDS):
        if answer.HasField("message"):
            found = answer.message.system_properties
            forward = v2.ForwardMessageToDeadLetterQueueRequest(
                group=group, topic=topic, receipt_handle=found.receipt_handle, message_id=found.message_id
            )
            assert await world.call(world.broker.messaging, "ForwardMessageToDeadLetterQueue", forward) == v2.Code.OK


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.__getitem__)
async def test_a_change_that_cannot_be_saved_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Each kind of change is refused and not visible, not even after the next save; with a good disk it is made."""
    disk = _Disk(monkeypatch)
    async with remoting_broker(tmp_path) as (broker, client):
        world = _World(broker, client)
        await _prepare(world)
        for name, change in _CHANGES.items():
            before = await change.shown(world)
            disk.table, disk.error, disk.failures = change.table, error, 0
            accepted = await change.make(world)
            disk.error = 0
            assert disk.failures, f"{name}: nothing was written"
            assert not accepted, name
            assert await change.shown(world) == before, name
        others = [
            admin_v1.CreateTopicRequest(topic=admin_v1.Topic(name="later")),
            admin_v1.CreateGroupRequest(group=admin_v1.Group(name="later")),
        ]
        for method, request in zip(("CreateTopic", "CreateGroup"), others, strict=True):
            assert await world.administer(method, request)
        assert set(await world.topics()) == {"orders", "spare", "later"}
        assert set(await world.groups()) == {"g", "spare", "untouched", "later"}
    made: dict[str, object] = {}
    async with remoting_broker(tmp_path) as (broker, client):
        world = _World(broker, client)
        assert set(await world.topics()) == {"orders", "spare", "later"}
        for name, change in _CHANGES.items():
            before = await change.shown(world)
            assert await change.make(world), name
            made[name] = await change.shown(world)
            assert made[name] != before, name
        last = {change.table: await change.shown(world) for change in _CHANGES.values()}
    async with remoting_broker(tmp_path) as (broker, client):
        world = _World(broker, client)
        for change in _CHANGES.values():
            assert await change.shown(world) == last[change.table], change.table


async def test_a_deletion_without_that_of_the_messages_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is gone from its table when the store fails; the next topic of the name would have its messages."""
    disk = _Disk(monkeypatch)
    delete = _administered("DeleteTopic", admin_v1.DeleteTopicRequest(name="orders"))

    async def fail() -> None:
        async with remoting_broker(tmp_path) as (broker, client):
            world = _World(broker, client)
            await _prepare(world)
            disk.table, disk.error = "deletedTopics", errno.EIO
            assert not await delete(world)

    with pytest.raises(BaseExceptionGroup) as ended:
        await fail()
    assert ended.group_contains(StoreFailedError)
    disk.error = 0
    async with remoting_broker(tmp_path) as (broker, client):
        world = _World(broker, client)
        assert "orders" not in await world.topics()
        assert await delete(world)
        assert not await delete(world), "nothing is left"
        assert await world.administer("CreateTopic", admin_v1.CreateTopicRequest(topic=admin_v1.Topic(name="orders")))
        ends = [
            (await client.call(code, {"topic": "orders", "queueId": 0})).fields["offset"]
            for code in (Request.GET_MIN_OFFSET, Request.GET_MAX_OFFSET)
        ]
        assert len(set(ends)) == 1, "it has messages of the deleted topic"
