"""A RecordService that stores nothing: appends are discarded, and reads return the same bytes from memory.

The baseline for the cost of transferring the bytes: the broker's front with a minimal handler.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import uvloop

from aerobee_broker.config.front import FrontConfig
from aerobee_broker.counters.front_counters import FrontCounters
from aerobee_broker.front.grpcio_front import GrpcioServer
from aerobee_broker.front.methods import BidirectionalStream, Context, Methods, ServerStream
from aerobee_broker.front.sockets import Front
from aerobee_proto import records_v1, v2
from tests.benchmarks.bulk_load import FRAME_SIZE, READ, STREAM_APPEND, plain_requests

_OK = v2.Status(code=v2.Code.OK, message="OK")


async def append(requests: AsyncIterator[bytes], context: Context) -> None:
    """Answer each request without reading it."""
    answer = records_v1.AppendRecordsResponse(status=_OK, message_count=1).SerializeToString()
    async for _ in requests:
        await context.write(answer)


async def read(request: bytes, context: Context) -> None:
    """Send frames until the requested number of bytes is reached."""
    left = records_v1.ReadRecordsRequest.FromString(request).bytes_max
    records = records_v1.AppendRecordsRequest.FromString(plain_requests(1, 4000)[0]).records[:FRAME_SIZE]
    while left > 0:
        await context.write(records_v1.ReadRecordsResponse(records=records).SerializeToString())
        left -= len(records)
    await context.write(records_v1.ReadRecordsResponse(status=_OK).SerializeToString())


async def main(front: str) -> None:
    methods: Methods = {STREAM_APPEND: BidirectionalStream(append), READ: ServerStream(read)}
    server: Front | GrpcioServer
    if front == "native":
        server = Front(methods, FrontConfig(), FrontCounters())
        port = server.listen("127.0.0.1", 0, "plain", None)
    else:
        options = (("grpc.max_receive_message_length", 130 << 20), ("grpc.max_send_message_length", -1))
        server = GrpcioServer(methods, options)
        port = server.server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"ready grpc=127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
