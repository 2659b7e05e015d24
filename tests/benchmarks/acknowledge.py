"""A backlog received and acknowledged: 8 receives of 32 at once, acknowledged together or one message a call.

The acknowledgements are durable before they are answered (sync flush). The load is on grpc-go in a process of its own;
where Go is missing grpcio's client takes its place, which is the limit then.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import grpc

from aerobee_proto import v2
from tests.benchmarks.processes import Server, broker
from tests.benchmarks.report import microseconds, rate, table

BODY_SIZE: Final = 256
RECEIVERS: Final = 8
BATCH: Final = 32
_SENT_AT_ONCE: Final = 500
_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
_METADATA: Final = (("x-mq-client-id", "bench@1@0@0"), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"))
Drain = Callable[[Server, int, bool], int]
"""Receives and acknowledges so many messages, or one a call; how many were acknowledged."""
_TOPIC, _GROUP = v2.Resource(name="bench"), v2.Resource(name="bench-group")


def run(directory: Path, messages: int = 40_000, one_by_one: int = 12_000, *, with_go: bool = True) -> None:
    """Print the table. `with_go` False: with grpcio's client in any case."""
    rows: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory(dir=directory) as place:
        client = "grpcio (slower; with Go on the PATH by grpc-go)"
        drain: Drain = _drain
        if with_go and shutil.which("go") is not None:
            client, drain = "grpc-go", _go_drain(Path(place).resolve())
        for kind, count in (("together", messages), ("one a call", one_by_one)):
            with broker(directory, "sync", "native") as running:
                _prepare(running, count)
                cpu, began = running.cpu_seconds(), time.perf_counter()
                acknowledged = drain(running, count - 1, kind == "one a call")  # the first one is taken
                seconds = time.perf_counter() - began
                assert acknowledged >= count - 1, f"{acknowledged} of {count - 1} were acknowledged"
                cpu = (running.cpu_seconds() - cpu) / acknowledged
            rows.append((kind, rate(acknowledged, seconds), microseconds(cpu)))
    head = ("acknowledged", "messages", "server CPU a message")
    table(
        f"A backlog, {BODY_SIZE}-byte body, {RECEIVERS} receives of {BATCH} at once, sync flush, {client}", head, rows
    )


def _prepare(running: Server, count: int) -> None:
    """Create topic and group by their first use, and send the backlog."""
    with grpc.insecure_channel(running.endpoint) as channel:
        receive = channel.unary_stream(
            f"{_SERVICE}ReceiveMessage",
            request_serializer=v2.ReceiveMessageRequest.SerializeToString,
            response_deserializer=v2.ReceiveMessageResponse.FromString,
        )
        send = channel.unary_unary(
            f"{_SERVICE}SendMessage",
            request_serializer=v2.SendMessageRequest.SerializeToString,
            response_deserializer=v2.SendMessageResponse.FromString,
        )
        number = 0
        while number < count:
            request = v2.SendMessageRequest()
            for _ in range(min(_SENT_AT_ONCE if number else 1, count - number)):
                message = request.messages.add(topic=_TOPIC, body=bytes(BODY_SIZE))
                message.system_properties.message_id = f"0102FC0000000{number:021d}"
                message.system_properties.message_type = v2.MessageType.NORMAL
                number += 1
            answer = send(request, metadata=_METADATA)
            assert answer.status.code == v2.Code.OK, answer
            if number == 1:  # the group begins here
                taken = [item.message for item in receive(_receive(1), metadata=_METADATA) if item.HasField("message")]
                assert len(taken) == 1, "the first message was not delivered"


def _receive(batch: int) -> v2.ReceiveMessageRequest:
    request = v2.ReceiveMessageRequest(group=_GROUP, message_queue=v2.MessageQueue(topic=_TOPIC), batch_size=batch)
    request.filter_expression.expression = "*"
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.seconds = 1
    return request


def _go_drain(place: Path) -> Drain:
    """The load on grpc-go, built there."""
    program, receive, acknowledge = place / "acknowledge_load", place / "receive", place / "acknowledge"
    source = Path(__file__).with_name("acknowledge_load")
    subprocess.run(["go", "build", "-o", program, "."], cwd=source, check=True)
    receive.write_bytes(_receive(BATCH).SerializeToString())
    acknowledge.write_bytes(v2.AckMessageRequest(group=_GROUP, topic=_TOPIC).SerializeToString())

    def drain(running: Server, count: int, one_by_one: bool) -> int:
        command = [str(program), "-target", running.endpoint, "-receive", str(receive)]
        command += ["-acknowledge", str(acknowledge), "-receivers", str(RECEIVERS), "-count", str(count)]
        command += ["-one-by-one"] if one_by_one else []
        result = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        assert not result["failures"], result
        return int(result["acknowledged"])

    return drain


def _drain(running: Server, count: int, one_by_one: bool) -> int:
    """The same with grpcio's client."""
    acknowledged = 0
    with grpc.insecure_channel(running.endpoint) as channel, ThreadPoolExecutor(RECEIVERS) as threads:
        stub = v2.MessagingServiceStub(channel)

        def acknowledge(entries: Sequence[v2.AckMessageEntry]) -> int:
            request = v2.AckMessageRequest(group=_GROUP, topic=_TOPIC, entries=entries)
            answer = stub.AckMessage(request, metadata=_METADATA)
            assert answer.status.code == v2.Code.OK, answer
            return len(entries)

        def receive(_: int) -> int:
            entries = [
                v2.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
                for item in stub.ReceiveMessage(_receive(BATCH), metadata=_METADATA)
                if item.HasField("message") and (system := item.message.system_properties)
            ]
            parts = [[entry] for entry in entries] if one_by_one else [entries] * bool(entries)
            return sum(map(acknowledge, parts))

        while acknowledged < count:
            acknowledged += sum(threads.map(receive, range(RECEIVERS)))
    return acknowledged
