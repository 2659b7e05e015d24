"""Clients through an automatic fail-over: they are not restarted, and get every confirmed message."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from pathlib import Path

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_client import Message, ReceivedMessage, connect
from tests.cluster.conftest import MARKS
from tests.support.etcd import running_etcd
from tests.support.lease_group import Member, running
from tests.support.name_server import our_name_server
from tests.support.remoting_client import RemotingClient, json_body, pull_fields, records, send

_SECONDS = 120.0
pytestmark = MARKS


class RouteFollower:
    """A client that, like RocketMQ 4's, asks the name server for the master, and asks again after a failure."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self._namesrv = Address.parse(namesrv)
        self._topic = topic
        self._client: RemotingClient | None = None
        self.answered: list[bytes] = []
        self.consumed: set[bytes] = set()
        self._offset = 0

    async def send(self, body: bytes) -> None:
        """Retry until the send succeeds."""
        while not await self._sent(body):
            await self.leave()
            await asyncio.sleep(0.1)
        self.answered.append(body)

    async def _sent(self, body: bytes) -> bool:
        try:
            async with asyncio.timeout(3):
                return (await send(await self._master(), self._topic, body, queue_id=0)).code == Answer.SUCCESS
        except (OSError, EOFError, TimeoutError, LookupError):
            return False

    async def consume(self) -> None:
        """Consume until cancelled."""
        while True:
            try:
                async with asyncio.timeout(3):
                    fields = pull_fields(self._topic, offset=self._offset, sys_flag=4, suspendTimeoutMillis=0)
                    pulled = await (await self._master()).call(Request.PULL_MESSAGE, fields)
                if pulled.code == Answer.SUCCESS:
                    self.consumed |= {record.body for record in records(pulled.body)}
                    self._offset = int(pulled.fields["nextBeginOffset"])
                    continue
            except (OSError, EOFError, TimeoutError, LookupError):
                await self.leave()
            await asyncio.sleep(0.1)

    async def _master(self) -> RemotingClient:
        if self._client is None:
            namesrv = await RemotingClient.connect(self._namesrv)
            try:
                answered = await namesrv.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": self._topic})
            finally:
                await namesrv.close()
            if answered.code != Answer.SUCCESS:
                raise LookupError(self._topic)
            master = json_body(answered)["brokerDatas"][0]["brokerAddrs"]["0"]
            self._client = await RemotingClient.connect(Address.parse(master))
        return self._client

    async def leave(self) -> None:
        """Disconnect, so that the next call looks for the master again."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(OSError):  # the broker was killed
                await client.close()


async def test_clients_continue_after_a_fail_over(tmp_path: Path) -> None:
    """One client knows both brokers' addresses, one asks the name server; the master is killed."""
    with running_etcd(tmp_path) as etcd, our_name_server(tmp_path / "ns") as namesrv:
        first, second = (Member(tmp_path, number, etcd, namesrv=namesrv) for number in (1, 2))
        async with running(first, second):
            await first.becomes_master(in_sync=2)
            consumed: set[bytes] = set()
            answered: list[bytes] = []
            numbers = itertools.count()

            async def handle(message: ReceivedMessage) -> None:
                consumed.add(message.body)

            async with connect([str(first.grpc), str(second.grpc)], retry_seconds=_SECONDS) as client:
                producer = client.producer()

                async def produce() -> None:
                    while True:
                        body = b"grpc %d" % next(numbers)
                        await producer.send(Message(topic="G", body=body))
                        answered.append(body)

                async with client.push_consumer("group", "G", handle):
                    sender, reader = RouteFollower(namesrv, "R"), RouteFollower(namesrv, "R")
                    await first.send(b"0", topic="R")  # creates the topic

                    async def produce_by_remoting() -> None:
                        while True:
                            await sender.send(b"remoting %d" % next(numbers))

                    tasks = [asyncio.create_task(each) for each in (produce(), produce_by_remoting(), reader.consume())]
                    try:
                        await _more(answered, sender.answered)
                        await _has_topics(second, {"G", "R"})
                        first.kill()
                        await second.becomes_master()
                        await _more(answered, sender.answered)
                    finally:
                        for task in tasks[:2]:
                            task.cancel()
                        ended = await asyncio.gather(*tasks[:2], return_exceptions=True)
                    assert [type(each) for each in ended] == [asyncio.CancelledError] * 2
                    async with asyncio.timeout(_SECONDS):
                        while not (consumed >= set(answered) and reader.consumed >= set(sender.answered)):
                            assert not tasks[2].done(), tasks[2]
                            await asyncio.sleep(0.1)
                    tasks[2].cancel()
                    await asyncio.gather(tasks[2], sender.leave(), reader.leave(), return_exceptions=True)


async def _more(*answered: list[bytes]) -> None:
    """Wait until every sender has 20 more answers. Answers from before the call may be from the other broker."""
    wanted = [len(each) + 20 for each in answered]
    async with asyncio.timeout(_SECONDS):
        while any(len(each) < count for each, count in zip(answered, wanted, strict=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _has_topics(replica: Member, names: set[str]) -> None:
    """Wait until the replica has copied these topics, which it does every three seconds."""
    async with asyncio.timeout(_SECONDS):
        while True:
            client = await RemotingClient.connect(replica.remoting)
            try:
                if names <= json_body(await client.call(Request.GET_ALL_TOPIC_CONFIG))["topicConfigTable"].keys():
                    return
            finally:
                await client.close()
            await asyncio.sleep(0.1)
