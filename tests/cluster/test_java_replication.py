"""Replication with RocketMQ brokers in both directions: the log byte for byte, and the tables."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Request
from aerobee_client import Message, connect
from tests.cluster.conftest import MARKS, serve
from tests.cluster.java_program import Release, java_server, prepare_servers
from tests.cluster.test_java_servers import free_port
from tests.support.name_server import our_name_server
from tests.support.remoting_client import RemotingClient, heartbeat_body, json_body, pull_fields, send

pytestmark = MARKS

BROKER: Final = "org.apache.rocketmq.broker.BrokerStartup"
_SEGMENT: Final = 1 << 20
_COUNT: Final = 2500  # messages of 1000 bytes: three files
_SECONDS: Final = 120.0
CONFIG: Final = f"""
[broker]
name = "broker-a"
cluster = "JavaCluster"
[store]
segment_size = {_SEGMENT}
queue_file_size = 20000
index_slot_count = 1000
index_entry_count = 4000
"""


@pytest.fixture(scope="module", params=("4.9.7", "5.3.3"))
def servers(request: pytest.FixtureRequest) -> Release:
    return prepare_servers(request.param)


def java_settings(directory: Path, namesrv: str, port: int, broker_id: int) -> dict[str, object]:
    return {
        "brokerClusterName": "JavaCluster",
        "brokerName": "broker-a",
        "brokerId": broker_id,
        "brokerRole": "SLAVE" if broker_id else "ASYNC_MASTER",
        "listenPort": port,
        "haListenPort": port + 1,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "namesrvAddr": namesrv,
        "storePathRootDir": directory,
        "storePathCommitLog": directory / "commitlog",
        "mappedFileSizeCommitLog": _SEGMENT,
        "mappedFileSizeConsumeQueue": 20_000,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
        "timerWheelEnable": "false",
        "registerNameServerPeriod": 10_000,  # the minimum; a replica gets its master's address by registering
    }


def our_settings(directory: Path) -> tuple[str, str]:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "aerobee.toml"
    file.write_text(CONFIG)
    return "--config", str(file)


async def _fill(address: str, count: int = _COUNT) -> None:
    client = await RemotingClient.connect(Address.parse(address))
    for begin in range(0, count, 100):
        await asyncio.gather(*(_send(client, number % 4) for number in range(begin, begin + 100)))
    await client.close()


async def _send(client: RemotingClient, queue_id: int) -> None:
    """Retry: RocketMQ refuses a request that waited 200 ms in its queue, and stores nothing."""
    async with asyncio.timeout(_SECONDS):
        while (code := (await send(client, "Copied", b"x" * 1000, queue_id=queue_id)).code) == 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert code == 0


async def _consume_some(address: str) -> None:
    """Create a group by consuming, and commit an offset."""
    client = await RemotingClient.connect(Address.parse(address))
    await client.call(Request.HEART_BEAT, {}, heartbeat_body("c@1", "CG", "Copied"))
    await client.call(Request.PULL_MESSAGE, pull_fields("Copied", group="CG"))
    place = {"consumerGroup": "CG", "topic": "Copied", "queueId": 1, "commitOffset": 77}
    assert (await client.call(Request.UPDATE_CONSUMER_OFFSET, place)).code == 0
    await client.close()


def _has_no_tables(address: str) -> bool:
    """Whether the replica lacks tables of its master, without which it is not promoted."""
    return bool(asyncio.run(_status(address))["haClientRuntimeInfo"]["tablesMissing"])


async def _status(address: str) -> Any:
    client = await RemotingClient.connect(Address.parse(address))
    try:
        return json_body(await client.call(Request.GET_BROKER_HA_STATUS))
    finally:
        await client.close()


def log_of(directory: Path) -> bytes:
    files = sorted((directory / "commitlog").glob("0*"))
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


def until(reached: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _SECONDS
    while not reached():
        assert time.monotonic() < until, what
        time.sleep(0.2)


def test_our_replica_of_a_java_master_is_promoted(servers: Release, tmp_path: Path) -> None:
    """We copy its whole log of several files, its topics, groups and offsets; after promotion we serve."""
    port = free_port()
    address = f"127.0.0.1:{port + 4}"
    with our_name_server(tmp_path / "ns") as namesrv, ExitStack() as java:
        ours = ("--role", "replica", "--listen-replicas", "127.0.0.1:0", "--namesrv", namesrv)
        java.enter_context(
            java_server(servers, tmp_path / "java", BROKER, java_settings(tmp_path / "a", namesrv, port, 0))
        )
        asyncio.run(_fill(f"127.0.0.1:{port}"))
        asyncio.run(_consume_some(f"127.0.0.1:{port}"))
        with serve(tmp_path / "b", *ours, "--listen-remoting", address, *our_settings(tmp_path / "ours")):
            until(lambda: len(log_of(tmp_path / "b")) >= _COUNT * 1000, "the first messages did not come")
            asyncio.run(_fill(f"127.0.0.1:{port}", 500))
            expected = log_of(tmp_path / "a")
            until(lambda: log_of(tmp_path / "b") == expected, "the logs differ")

            def copied() -> bool:
                table = tmp_path / "b" / "config" / "consumerOffset.json"
                return table.exists() and '"Copied@CG":{' in table.read_text().replace(" ", "").replace("\n", "")

            until(copied, "the offsets were not copied")
            until(lambda: not _has_no_tables(address), "a table was not copied")
            topics = json.loads((tmp_path / "b" / "config" / "topics.json").read_text())["topicConfigTable"]
            assert topics["Copied"]["readQueueNums"] == 4
            java.close()
            asyncio.run(_promote(address))
            until(lambda: asyncio.run(_is_master(address)), "it is not master")
            asyncio.run(_goes_on(address))
            until(lambda: asyncio.run(_route(namesrv)) == {"0": address}, "clients are not sent to it")


async def _is_master(address: str) -> bool:
    try:
        return bool((await _status(address))["master"])
    except ConnectionError:  # the broker is reopening its store
        return False


async def _route(namesrv: str) -> Any:
    client = await RemotingClient.connect(Address.parse(namesrv))
    try:
        answered = await client.call(Request.GET_ROUTE_INFO_BY_TOPIC, {"topic": "Copied"})
        return json_body(answered)["brokerDatas"][0]["brokerAddrs"] if answered.code == 0 else None
    finally:
        await client.close()


async def _promote(address: str) -> None:
    client = await RemotingClient.connect(Address.parse(address))
    assert (await client.call(Request.NOTIFY_BROKER_ROLE_CHANGED, {"masterBrokerId": 1})).code == 0
    await client.close()


async def _goes_on(address: str) -> None:
    client = await RemotingClient.connect(Address.parse(address))
    place = {"consumerGroup": "CG", "topic": "Copied", "queueId": 1}
    assert (await client.call(Request.QUERY_CONSUMER_OFFSET, place)).fields["offset"] == "77"
    sent = await send(client, "Copied", b"new", queue_id=1)
    assert (sent.code, sent.fields["queueOffset"]) == (0, str((_COUNT + 500) // 4))
    pulled = await client.call(Request.PULL_MESSAGE, pull_fields("Copied", queue_id=1, group="CG", offset=700))
    assert pulled.code == 0
    await client.close()


def test_a_java_replica_of_our_master(servers: Release, tmp_path: Path) -> None:
    """It copies 100,000 messages across files, after restarts of both sides, and our topics."""
    port, java_port = free_port(), free_port() + 100
    address = f"127.0.0.1:{port}"
    with our_name_server(tmp_path / "ns") as namesrv, ExitStack() as java:
        ours = ("--role", "master", "--listen-replicas", f"127.0.0.1:{port + 1}", "--namesrv", namesrv, "--dev")
        arguments = (tmp_path / "a", *ours, "--listen-remoting", address, *our_settings(tmp_path / "ours"))
        settings = java_settings(tmp_path / "b", namesrv, java_port, 1)
        with serve(*arguments) as line:
            asyncio.run(_fill_fast(line["grpc"], 40_000))
            java.enter_context(java_server(servers, tmp_path / "java1", BROKER, settings))
            _copies_all(tmp_path, address)
            until(lambda: _has_topic(tmp_path / "b"), "the topics were not copied")
            java.close()
            asyncio.run(_fill_fast(line["grpc"], 30_000))
            java.enter_context(java_server(servers, tmp_path / "java2", BROKER, settings))
            _copies_all(tmp_path, address)
        with serve(*arguments) as line:
            asyncio.run(_fill_fast(line["grpc"], 30_000))
            _copies_all(tmp_path, address)


def _copies_all(directory: Path, address: str) -> None:
    """Return once the replica has every byte of our log."""
    expected = log_of(directory / "a")
    assert len(expected) > 2 * _SEGMENT
    until(lambda: log_of(directory / "b").startswith(expected), "the logs differ")
    status = asyncio.run(_status(address))
    assert [item["counts"] for item in status["haConnectionInfo"]] == [False]


def _has_topic(store: Path) -> bool:
    table = store / "config" / "topics.json"
    return table.exists() and '"Copied"' in table.read_text()


async def _fill_fast(endpoint: str, count: int) -> None:
    """Send small messages with our client."""
    async with connect(endpoint) as client:
        producer = client.producer()
        for _ in range(0, count, 1000):
            await asyncio.gather(*(producer.send(Message(topic="Copied", body=b"x" * 50)) for _ in range(1000)))
