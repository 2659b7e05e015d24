"""Upper bounds for a broker on this machine: a server without storage, and the disk's fdatasync.

The server runs in its own process, as the broker does: `python -m aerobee_broker.bench.baselines`. It ignores the
contents of requests and sends prepared bytes, so its rate shows the cost of gRPC and of the client alone.
"""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from aerobee_broker.bench.histogram import Histogram
from aerobee_proto import records_v1, v2

_OK = v2.Status(code=v2.Code.OK, message="OK")
_FRAME_COUNT = 4000  # messages in a frame from memory
_RECEIVED_COUNT = 32  # messages in the answer to a receive
_START_SECONDS = 30.0


@contextmanager
def running(batch: int, size: int) -> Iterator[str]:
    """Run the server; yields its endpoint. Its answers fit requests of `batch` messages with bodies of `size` bytes."""
    command = [sys.executable, "-m", "aerobee_broker.bench.baselines", str(batch), str(size)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603  # our own module
    assert process.stdin is not None, "started with a pipe"
    assert process.stdout is not None, "started with a pipe"
    try:
        if not select.select([process.stdout], [], [], _START_SECONDS)[0]:
            raise RuntimeError(f"the baseline server did not start within {_START_SECONDS} s")
        yield process.stdout.readline().decode().strip()
    finally:
        process.stdin.close()
        process.stdout.close()
        process.kill()
        process.wait()


def fdatasync(directory: Path, size: int, seconds: float) -> Histogram:
    """The times to write and sync `size` bytes on the disk of `directory`, in blocks allocated before."""
    latencies = Histogram()
    with tempfile.TemporaryFile(dir=directory) as file:
        descriptor, data = file.fileno(), os.urandom(size)
        file_size = max(4 << 20, size)
        os.pwrite(descriptor, bytes(file_size), 0)
        os.fsync(descriptor)
        end, place = time.perf_counter() + seconds, 0
        while (began := time.perf_counter()) < end:
            os.pwrite(descriptor, data, place)
            os.fdatasync(descriptor)
            latencies.add(time.perf_counter() - began)
            place = place + size if place + 2 * size <= file_size else 0
    return latencies


def _handlers(batch: int, size: int) -> list[grpc.GenericRpcHandler[Any, Any]]:
    return [
        grpc.method_handlers_generic_handler("apache.rocketmq.v2.MessagingService", _messaging(batch, size)),
        grpc.method_handlers_generic_handler("aerobee.v1.RecordService", _records(batch, size)),
    ]


def _messaging(batch: int, size: int) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    entries = [v2.SendResultEntry(status=_OK, message_id="0" * 34)] * batch
    sent = v2.SendMessageResponse(status=_OK, entries=entries).SerializeToString()
    properties = v2.SystemProperties(message_id="0" * 34, receipt_handle="0" * 60, body_encoding=v2.Encoding.IDENTITY)
    message = v2.Message(topic=v2.Resource(name="t"), system_properties=properties, body=os.urandom(size))
    received = [v2.ReceiveMessageResponse(message=message).SerializeToString()] * _RECEIVED_COUNT
    received.append(v2.ReceiveMessageResponse(status=_OK).SerializeToString())
    done = [v2.AckMessageResultEntry(status=_OK, message_id="0" * 34)] * _RECEIVED_COUNT
    acknowledged = v2.AckMessageResponse(status=_OK, entries=done).SerializeToString()

    async def send(request: bytes, context: Any) -> bytes:
        return sent

    async def receive(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for item in received:
            yield item

    async def acknowledge(request: bytes, context: Any) -> bytes:
        return acknowledged

    return {
        "QueryRoute": grpc.unary_unary_rpc_method_handler(_route),
        "ReceiveMessage": grpc.unary_stream_rpc_method_handler(receive),
        "AckMessage": grpc.unary_unary_rpc_method_handler(acknowledge),
        "SendMessage": grpc.unary_unary_rpc_method_handler(send),
        "Telemetry": grpc.stream_stream_rpc_method_handler(_telemetry),
        "NotifyClientTermination": grpc.unary_unary_rpc_method_handler(_goodbye),
    }


async def _route(request: bytes, context: Any) -> bytes:
    topic = v2.QueryRouteRequest.FromString(request).topic
    broker, permission = v2.Broker(name="baseline"), v2.Permission.READ_WRITE
    queue = v2.MessageQueue(topic=topic, broker=broker, permission=permission)
    return v2.QueryRouteResponse(status=_OK, message_queues=[queue]).SerializeToString()


async def _telemetry(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for data in requests:
        settings = v2.TelemetryCommand.FromString(data).settings
        yield v2.TelemetryCommand(status=_OK, settings=settings).SerializeToString()


async def _goodbye(request: bytes, context: Any) -> bytes:
    return v2.NotifyClientTerminationResponse(status=_OK).SerializeToString()


def _records(batch: int, size: int) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
    appended = records_v1.AppendRecordsResponse(status=_OK, message_count=batch).SerializeToString()
    frame = records_v1.ReadRecordsResponse(
        records=os.urandom(_FRAME_COUNT * (size + 150)), next_queue_offset=_FRAME_COUNT
    ).SerializeToString()
    end = records_v1.ReadRecordsResponse(status=_OK).SerializeToString()

    async def append(request: bytes, context: Any) -> bytes:
        return appended

    async def append_stream(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield appended

    async def read(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for _ in range(100):
            yield frame
        yield end

    return {
        "AppendRecords": grpc.unary_unary_rpc_method_handler(append),
        "StreamAppendRecords": grpc.stream_stream_rpc_method_handler(append_stream),
        "ReadRecords": grpc.unary_stream_rpc_method_handler(read),
    }


async def _serve(batch: int, size: int) -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers(_handlers(batch, size))
    print(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)  # until the parent is gone
    await server.stop(None)


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
