"""A remoting client for tests: one connection, requests by code, and the broker's own requests."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aerobee_broker.config import Address, ListenConfig
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.frame import FLAG_ONE_WAY, FLAG_RESPONSE, Command, FrameReader, encode
from aerobee_store.clock import Clock
from aerobee_store.records.record import Record, decode
from aerobee_store.tables import java_json
from tests.support.in_process_broker import InProcessBroker, in_process_broker

_SECONDS = 20.0


class RemotingClient:
    """One connection. `asked` holds the broker's requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._opaques = itertools.count(100)
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self.asked: asyncio.Queue[Command] = asyncio.Queue()
        self.sign: Callable[[Command], None] | None = None  # signs requests, except those with a signature
        self._task = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, address: Address | None, tls: ssl.SSLContext | None = None) -> RemotingClient:
        assert address is not None, "the broker was started without listen.remoting"
        return cls(*await asyncio.open_connection(address.host, address.port, ssl=tls))

    async def call(
        self,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes | Mapping[str, object] = b"",
        *,
        version: int = 479,
    ) -> Command:
        """Send a request and return its answer."""
        return await self.begin(code, fields, body, version=version)

    def begin(
        self,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes | Mapping[str, object] = b"",
        *,
        version: int = 479,
    ) -> asyncio.Task[Command]:
        """Send a request and return the future of its answer."""
        opaque = next(self._opaques)
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._waiting[opaque] = future
        request = Command(code, opaque=opaque, version=version, fields=_texts(fields), body=_bytes(body))
        if self.sign is not None and "Signature" not in request.fields:
            self.sign(request)
        self._write(request)

        async def answered() -> Command:
            async with asyncio.timeout(_SECONDS):
                return await future

        return asyncio.create_task(answered())

    def one_way(
        self, code: int, fields: Mapping[str, object] | None = None, body: bytes | Mapping[str, object] = b""
    ) -> None:
        """Send a request that gets no answer."""
        opaque = next(self._opaques)
        self._write(Command(code, opaque=opaque, flag=FLAG_ONE_WAY, fields=_texts(fields), body=_bytes(body)))

    def reply(self, request: Command, body: bytes = b"", code: int = 0) -> None:
        """Answer a request from the broker."""
        self._write(Command(code, opaque=request.opaque, flag=FLAG_RESPONSE, body=body))

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def next_asked(self) -> Command:
        """The broker's next request."""
        async with asyncio.timeout(_SECONDS):
            return await self.asked.get()

    async def closed(self) -> None:
        """Return when the broker has closed the connection."""
        async with asyncio.timeout(_SECONDS):
            await asyncio.shield(self._task)

    async def close(self) -> None:
        self._writer.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _write(self, command: Command) -> None:
        self._writer.write(encode(command))

    async def _read(self) -> None:
        frames = FrameReader()
        try:
            while data := await self._reader.read(1 << 16):
                for command in frames.feed(data):
                    if command.is_response:
                        waiting = self._waiting.pop(command.opaque)
                        if not waiting.done():
                            waiting.set_result(command)
                    else:
                        self.asked.put_nowait(command)
        except (ConnectionError, ssl.SSLError):
            pass
        finally:  # also when this client closes the connection
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionResetError("the connection was closed before its answer"))


@asynccontextmanager
async def remoting_broker(
    directory: Path,
    *,
    clock: Clock | None = None,
    tls: ssl.SSLContext | None = None,
    remoting_port: int = 0,
    **changes: Any,
) -> AsyncIterator[tuple[InProcessBroker, RemotingClient]]:
    """A broker with a remoting port, and a connection to it, with `tls` as a broker's."""
    loopback = Address("127.0.0.1", 0)
    remoting = Address("127.0.0.1", remoting_port)
    listen = ListenConfig(grpc=loopback, metrics=loopback, remoting=remoting, drain_seconds=0.5)
    async with in_process_broker(directory, clock=clock, **{"listen": listen, **changes}) as broker:
        client = await RemotingClient.connect(broker.remoting, tls)
        try:
            yield broker, client
        finally:
            await client.close()


def signed(account: str, fields: dict[str, object], body: bytes = b"", *, leave_out: str = "") -> dict[str, object]:
    """The fields with the signature of an account whose secret key is `ACCOUNT-secret`."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()}
    texts["AccessKey"] = account
    content = "".join(texts[name] for name in sorted(texts) if name != leave_out).encode() + body
    digest = hmac.new(f"{account}-secret".encode(), content, hashlib.sha1).digest()
    return {**texts, "Signature": base64.b64encode(digest).decode()}


def send_fields(topic: str, *, queue_id: int = 0, properties: str = "", **others: object) -> dict[str, object]:
    """The fields of SEND_MESSAGE_V2."""
    fields: dict[str, object] = {
        "a": "PG",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue_id,
        "f": 0,
        "g": 1_700_000_000_000,
        "h": 0,
        "i": properties,
        "j": 0,
        "k": False,
        "m": False,
    }
    return {**fields, **others}


def pull_fields(
    topic: str, *, queue_id: int = 0, offset: int = 0, group: str = "CG", sys_flag: int = 4, **others: object
) -> dict[str, object]:
    """The fields of PULL_MESSAGE, with the subscription inside the request."""
    fields: dict[str, object] = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": sys_flag,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15_000,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }
    return {**fields, **others}


def heartbeat_body(
    client_id: str, group: str, topic: str, *, version: int = 1, expression: str = "*"
) -> dict[str, object]:
    """The body of a consumer's heartbeat."""
    subscription = {
        "topic": topic,
        "subString": expression,
        "subVersion": version,
        "expressionType": "TAG",
        "classFilterMode": False,
        "codeSet": list[object](),
        "tagsSet": list[object](),
    }
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "unitMode": False,
        "subscriptionDataSet": list[object]([subscription]),
    }
    return {
        "clientID": client_id,
        "consumerDataSet": list[object]([consumer]),
        "producerDataSet": list[object]([{"groupName": f"{group}_producer"}]),
    }


def records(body: bytes) -> list[Record]:
    """The records in a pull answer's body."""
    found: list[Record] = []
    at = 0
    while at < len(body):
        record = decode(body, at)
        assert isinstance(record, Record), record
        found.append(record)
        at += record.size
    return found


def json_body(answer: Command) -> Any:
    """The body of an answer, parsed as JSON."""
    return java_json.loads(answer.body, object_keys=True)


async def send(client: RemotingClient, topic: str, body: bytes = b"hello", **others: Any) -> Command:
    """Send one message."""
    return await client.call(Request.SEND_MESSAGE_V2, send_fields(topic, **others), body)


async def bodies_of(address: Address, topic: str) -> list[bytes]:
    """The bodies of the messages in queue 0 of the topic, in order."""
    client = await RemotingClient.connect(address)
    found = await client.call(Request.GET_MIN_OFFSET, {"topic": topic, "queueId": 0})
    first = int(found.fields.get("offset", 0))
    bodies: list[bytes] = []
    while True:
        fields = pull_fields(topic, offset=first + len(bodies), sys_flag=4, suspendTimeoutMillis=0)
        pulled = await client.call(Request.PULL_MESSAGE, fields)
        if pulled.code != Answer.SUCCESS:
            break
        bodies += [record.body for record in records(pulled.body)]
    await client.close()
    return bodies


def _texts(fields: Mapping[str, object] | None) -> dict[str, str]:
    values = {name: value for name, value in (fields or {}).items() if value is not None}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


def _bytes(body: bytes | Mapping[str, object]) -> bytes:
    return body if isinstance(body, bytes) else java_json.dumps(dict(body), pretty=False)
