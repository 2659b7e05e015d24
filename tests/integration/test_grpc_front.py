"""A broker's ports as seen by unusual and hostile clients; tests/conformance covers the protocol's rules."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc.aio import EOF  # type: ignore[attr-defined]  # the stubs lack it
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from aerobee_broker import grpc_methods, server
from aerobee_broker.config import Address, BrokerConfig, ListenConfig
from aerobee_proto import admin_v1, v2
from aerobee_store import StoreFailedError
from aerobee_store.message_store import MessageStore
from tests.support.in_process_broker import METADATA, InProcessBroker, in_process_broker, message

TOPIC, GROUP = v2.Resource(name="orders"), v2.Resource(name="billing")
Code = v2.Code
FREE_PORTS = ("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[InProcessBroker]:
    async with in_process_broker(tmp_path / "store") as broker:
        yield broker


def settings(**fields: Any) -> v2.TelemetryCommand:
    return v2.TelemetryCommand(settings=v2.Settings(**fields))


def receive_request(**fields: Any) -> v2.ReceiveMessageRequest:
    request = v2.ReceiveMessageRequest(group=GROUP, batch_size=32, auto_renew=True, **fields)
    request.message_queue.topic.CopyFrom(TOPIC)
    return request


# --- Every method -------------------------------------------------------------------------------------------


async def test_every_method_answers_at_once(broker: InProcessBroker) -> None:
    """An empty request to each method of each service gets a status, without a hang or a gRPC error."""
    for stub, service in (
        (broker.messaging, v2.MessagingServiceStub),
        (broker.admin, v2.AdminStub),
        (broker.administration, admin_v1.AdminServiceStub),
    ):
        module = v2 if service is not admin_v1.AdminServiceStub else admin_v1
        for name in sorted(vars(stub)):
            if name == "Telemetry":
                continue
            request_name = {"QueryMessage": "ListMessage"}.get(name, name) + "Request"
            call = getattr(stub, name)(getattr(module, request_name)(), metadata=METADATA, timeout=60)
            if isinstance(call, grpc.aio.UnaryStreamCall):
                answers = [answer async for answer in call]
                assert answers, name
                assert answers[0].status.code != Code.CODE_UNSPECIFIED, name
            else:
                answer = await call
                if name != "ChangeLogLevel":
                    assert answer.status.code not in (Code.CODE_UNSPECIFIED, Code.INTERNAL_SERVER_ERROR), name
                    assert answer.status.message, name


async def test_an_internal_error_is_logged_and_not_revealed(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets INTERNAL_SERVER_ERROR without details, the log has the traceback, and the next call works."""

    def broken(self: MessageStore, *_: object, **__: object) -> None:
        raise ZeroDivisionError("a secret of the inside")

    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "places_of_key", broken)
        request = v2.ListMessageRequest(topic=TOPIC, message_key="k")
        await broker.messaging.QueryRoute(v2.QueryRouteRequest(topic=TOPIC), metadata=METADATA, timeout=60)
        response = await broker.admin.QueryMessage(request, timeout=60)
    assert response.status.code == Code.INTERNAL_SERVER_ERROR
    assert "secret" not in response.status.message
    assert "ZeroDivisionError: a secret of the inside" in caplog.text
    assert (await broker.admin.QueryMessage(request, timeout=60)).status.code == Code.OK


# --- Administration -----------------------------------------------------------------------------------------


async def test_a_topics_life(broker: InProcessBroker) -> None:
    """Created, created again unchanged, refused with another definition, changed, described, deleted."""
    admin = broker.administration
    topic = admin_v1.Topic(name="t", read_queue_count=2)
    created = await admin.CreateTopic(admin_v1.CreateTopicRequest(topic=topic))
    assert (created.status.code, created.topic.write_queue_count) == (Code.OK, 2)
    assert (await admin.CreateTopic(admin_v1.CreateTopicRequest(topic=topic))).status.code == Code.OK
    other = admin_v1.Topic(name="t", read_queue_count=3)
    assert (await admin.CreateTopic(admin_v1.CreateTopicRequest(topic=other))).status.code == Code.BAD_REQUEST
    update = admin_v1.UpdateTopicRequest(name="t", write_queue_count=1, permission=v2.Permission.READ)
    updated = (await admin.UpdateTopic(update)).topic
    assert (updated.read_queue_count, updated.write_queue_count) == (2, 1)
    assert updated.permission == v2.Permission.READ
    request = v2.SendMessageRequest(messages=[message("t")])
    assert (await broker.messaging.SendMessage(request, metadata=METADATA)).status.code == Code.FORBIDDEN
    await admin.UpdateTopic(admin_v1.UpdateTopicRequest(name="t", permission=v2.Permission.READ_WRITE))
    assert (await broker.messaging.SendMessage(request, metadata=METADATA)).status.code == Code.OK
    described = await admin.DescribeTopic(admin_v1.DescribeTopicRequest(name="t"))
    assert [(queue.queue_id, queue.max_offset) for queue in described.queues] == [(0, 1), (1, 0)]
    assert described.queues[0].last_store_timestamp.seconds > 1_700_000_000
    assert [t.name for t in (await admin.ListTopics(admin_v1.ListTopicsRequest())).topics] == ["t"]
    assert (await admin.DeleteTopic(admin_v1.DeleteTopicRequest(name="t"))).status.code == Code.OK
    missing = await admin.DescribeTopic(admin_v1.DescribeTopicRequest(name="t"))
    assert missing.status.code == Code.TOPIC_NOT_FOUND


async def test_a_groups_life(broker: InProcessBroker) -> None:
    """Created with defaults, changed, described with client and progress, kept while connected, deleted."""
    admin = broker.administration
    created = await admin.CreateGroup(admin_v1.CreateGroupRequest(group=admin_v1.Group(name="billing")))
    assert (created.status.code, created.group.max_attempts, created.group.consume_enabled) == (Code.OK, 17, True)
    updated = await admin.UpdateGroup(admin_v1.UpdateGroupRequest(name="billing", max_attempts=3))
    assert updated.group.max_attempts == 3
    await broker.messaging.SendMessage(v2.SendMessageRequest(messages=[message()]), metadata=METADATA)
    received = [a async for a in broker.messaging.ReceiveMessage(receive_request(), metadata=METADATA, timeout=30)]
    assert received[0].status.code == Code.OK
    beat = v2.HeartbeatRequest(group=GROUP, client_type=v2.ClientType.PUSH_CONSUMER)
    await broker.messaging.Heartbeat(beat, metadata=METADATA)
    described = await admin.DescribeGroup(admin_v1.DescribeGroupRequest(name="billing"))
    assert sum(queue.inflight for queue in described.queues) == sum(queue.lag for queue in described.queues) == 1
    (client,) = described.clients
    assert (client.client_id, client.language, client.version) == (METADATA[0][1], v2.Language.JAVA, "5.2.1")
    assert client.remote_address.startswith("127.0.0.1:")
    delete = admin_v1.DeleteGroupRequest(name="billing")
    assert (await admin.DeleteGroup(delete)).status.code == Code.FORBIDDEN
    await broker.messaging.NotifyClientTermination(v2.NotifyClientTerminationRequest(), metadata=METADATA)
    assert (await admin.DeleteGroup(delete)).status.code == Code.OK
    assert (await admin.DeleteGroup(delete)).status.code == Code.CONSUMER_GROUP_NOT_FOUND


async def test_the_state_of_broker_and_store(broker: InProcessBroker, tmp_path: Path) -> None:
    """Identity, whether it accepts messages, and resource use."""
    await broker.messaging.SendMessage(v2.SendMessageRequest(messages=[message()]), metadata=METADATA)
    status = await broker.administration.GetBrokerStatus(admin_v1.GetBrokerStatusRequest())
    assert status.status.code == Code.OK
    assert list(status.listen_addresses) == [broker.endpoint]
    assert status.store_state.writable
    assert (status.topic_count, status.client_count) == (1, 1)
    assert status.flush_mode == admin_v1.FlushMode.FLUSH_MODE_SYNC
    store = await broker.administration.GetStoreStatus(admin_v1.GetStoreStatusRequest())
    assert store.directory == str(tmp_path / "store")
    assert store.flushed_physical_offset == store.max_physical_offset > 0
    assert store.fsync_count >= 1
    assert store.last_fsync_seconds > 0
    assert store.segment_count >= 1


# --- Health and reflection ----------------------------------------------------------------------------------


async def test_health(broker: InProcessBroker) -> None:
    """grpc.health.v1 says SERVING for the broker and each service."""
    health = health_pb2_grpc.HealthStub(broker.channel)
    for service in ("", *grpc_methods.SERVICES):
        response = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
        assert response.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_stop_does_not_wait_for_health_watches(tmp_path: Path) -> None:
    """A Watch gets NOT_SERVING and ends, a reflection stream ends: neither waits for the drain, here a minute."""
    answer = health_pb2.HealthCheckResponse
    listen = ListenConfig(grpc=Address("127.0.0.1", 0), metrics=Address("127.0.0.1", 0), drain_seconds=60)
    broker = in_process_broker(tmp_path, listen=listen)
    endpoint = (await broker.__aenter__()).endpoint
    async with grpc.aio.insecure_channel(endpoint) as channel:  # this channel outlives the broker's own
        try:
            health = health_pb2_grpc.HealthStub(channel)
            watches = [
                health.Watch(health_pb2.HealthCheckRequest(service=name), timeout=30)
                for name in ("", "apache.rocketmq.v2.MessagingService", "unheard.of")
            ]
            first = [(await watch.read()).status for watch in watches]
            assert first == [answer.SERVING, answer.SERVING, answer.SERVICE_UNKNOWN]
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(timeout=30)
            await reflection.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            assert (await reflection.read()).list_services_response.service
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await health.Check(health_pb2.HealthCheckRequest(service="unheard.of"), timeout=60)
            assert refused.value.code() == grpc.StatusCode.NOT_FOUND
        finally:
            await broker.__aexit__(None, None, None)  # must take 10 s at most
        assert [(await watch.read()).status for watch in watches[:2]] == [answer.NOT_SERVING] * 2
        calls = (*watches, reflection)
        assert not any([await call.read() for call in calls])  # each has ended
        assert [await call.code() for call in calls] == [grpc.StatusCode.OK] * 4


_REFLECTION = """
import json, sys, grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

with grpc.insecure_channel(sys.argv[1]) as channel:
    database = ProtoReflectionDescriptorDatabase(channel)
    pool = DescriptorPool(database)
    method = pool.FindServiceByName("apache.rocketmq.v2.MessagingService").FindMethodByName("SendMessage")
    call = channel.unary_unary(
        "/apache.rocketmq.v2.MessagingService/SendMessage",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    request = json_format.Parse(sys.argv[2], GetMessageClass(method.input_type)())
    response = call(request, metadata=(("x-mq-client-id", "reflected"),), timeout=60)
    files = [pool.FindServiceByName(name).file.name for name in database.get_services()]
    print(json.dumps({"services": sorted(database.get_services()), "files": files,
                      "response": json_format.MessageToDict(response)}))
"""


async def test_reflection_is_enough_to_send(broker: InProcessBroker) -> None:
    """A program without our .proto files lists services, gets each one's file, and sends a message from JSON."""
    request = {"messages": [{"topic": {"name": "orders"}, "body": "aGVsbG8=", "systemProperties": {"messageId": "01"}}]}
    result = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _REFLECTION, broker.endpoint, json.dumps(request)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert set(found["services"]) == {
        "aerobee.v1.AdminService",
        "aerobee.v1.RecordService",
        "apache.rocketmq.v2.Admin",
        "apache.rocketmq.v2.MessagingService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    assert len(found["files"]) == 7
    assert found["response"]["status"]["code"] == "OK"
    assert found["response"]["entries"][0]["messageId"] == "01"


# --- Start and stop -----------------------------------------------------------------------------------------


async def test_a_stop_ends_waiting_calls(tmp_path: Path) -> None:
    """A long poll is answered, a stream ends, and no part of the stop runs into its timeout."""
    async with asyncio.timeout(60):
        async with in_process_broker(
            tmp_path,
            listen=ListenConfig(grpc=Address("127.0.0.1", 0), metrics=Address("127.0.0.1", 0), drain_seconds=60),
        ) as broker:
            await broker.messaging.QueryRoute(v2.QueryRouteRequest(topic=TOPIC), metadata=METADATA)
            poll = receive_request(long_polling_timeout=v2.Duration(seconds=30))
            waiting = broker.messaging.ReceiveMessage(poll, metadata=METADATA, timeout=40)
            reading = asyncio.ensure_future(waiting.read())
            stream = broker.messaging.Telemetry(metadata=METADATA)
            await stream.write(settings(publishing=v2.Publishing()))
            await stream.read()
            await asyncio.sleep(0.1)
            ended = asyncio.ensure_future(stream.read())
        assert (await reading).status.code == Code.MESSAGE_NOT_FOUND
        with suppress(grpc.aio.AioRpcError):
            assert await ended is EOF


async def test_a_failed_disk_ends_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The send fails, readiness turns false, and the broker ends with the reason instead of continuing."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    config = BrokerConfig.tiny(tmp_path)

    def broken(*_: object) -> float:
        raise OSError(5, "Input/output error")

    async def send() -> int:
        async with grpc.aio.insecure_channel(await ready) as channel:
            stub: Any = v2.MessagingServiceStub(channel)
            await stub.QueryRoute(v2.QueryRouteRequest(topic=TOPIC), metadata=METADATA)
            monkeypatch.setattr("aerobee_store.durability.log_flush._sync_all", broken)
            try:
                answer = await stub.SendMessage(
                    v2.SendMessageRequest(messages=[message()]), metadata=METADATA, timeout=5
                )
            except grpc.aio.AioRpcError:
                return 0  # the broker ended before it answered
            return int(answer.status.code)

    sending = asyncio.ensure_future(send())
    async with asyncio.timeout(60):
        with pytest.raises(StoreFailedError, match="Input/output error"):
            await server.run(config, asyncio.Event(), lambda listening, _: ready.set_result(str(listening.grpc)))
        assert await sending in (0, Code.INTERNAL_SERVER_ERROR)
    assert "a service failed" in caplog.text


async def test_the_http_port(broker: InProcessBroker) -> None:
    """Its pages answer as soon as the broker is announced as ready."""

    def fetch(path: str) -> int:
        with urllib.request.urlopen(f"http://{broker.metrics}{path}", timeout=60) as response:
            return int(response.status)

    for path in ("/readyz", "/healthz", "/metrics"):
        assert await asyncio.to_thread(fetch, path) == 200


async def test_thousands_of_calls_at_once_are_all_answered(broker: InProcessBroker) -> None:
    """All clients return together after a restart: gRPC by default would cancel calls above a thousand."""
    request = v2.HeartbeatRequest(group=GROUP, client_type=v2.ClientType.SIMPLE_CONSUMER)
    calls = [broker.messaging.Heartbeat(request, metadata=METADATA, timeout=30) for _ in range(3500)]
    answers = await asyncio.gather(*calls)
    assert {answer.status.code for answer in answers} == {Code.OK}


async def test_thousands_of_streams_on_one_connection(broker: InProcessBroker) -> None:
    """1,000 clients of one connection each open a receive and a Telemetry stream: none is cancelled."""

    async def greeting() -> AsyncIterator[v2.TelemetryCommand]:
        yield settings(client_type=v2.ClientType.SIMPLE_CONSUMER, subscription=v2.Subscription(group=GROUP))

    async def run(number: int) -> tuple[v2.Code.ValueType, int]:
        metadata = (("x-mq-client-id", f"test@{number}"), ("x-mq-language", "JAVA"))
        request = receive_request()
        request.long_polling_timeout.FromSeconds(1)
        receiving = broker.messaging.ReceiveMessage(request, metadata=metadata, timeout=30)
        telling = broker.messaging.Telemetry(greeting(), metadata=metadata, timeout=30)
        answers = [answer async for answer in receiving]
        return answers[0].status.code, len([answer async for answer in telling])

    outcomes = await asyncio.gather(*(run(number) for number in range(1000)))
    assert set(outcomes) == {(Code.MESSAGE_NOT_FOUND, 1)}


async def test_listening_on_all_addresses_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning, because there is no authentication."""
    listen = ListenConfig(grpc=Address("0.0.0.0", 0), metrics=Address("127.0.0.1", 0), drain_seconds=0.5)
    async with in_process_broker(tmp_path, listen=listen):
        pass
    assert sum("without authentication" in line.getMessage() for line in caplog.records) == 1
