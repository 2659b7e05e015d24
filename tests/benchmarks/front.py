"""Both fronts, with an empty handler and with the broker's durable and asynchronous SendMessage.

CPU time is the server's, per call. The load generator is grpc-go in a separate process. Without Go, grpcio's slower
client replaces it, and the table says so.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
import uvloop

from aerobee_broker.config.front import FrontConfig
from aerobee_broker.counters.front_counters import FrontCounters
from aerobee_broker.front.grpcio_front import GrpcioServer
from aerobee_broker.front.methods import Context, Unary
from aerobee_broker.front.sockets import Front
from aerobee_proto import v2
from tests.benchmarks import unary_send
from tests.benchmarks.processes import FLUSH_MODES, Server, broker, server
from tests.benchmarks.report import table
from tests.benchmarks.unary_send import Measured
from tests.cluster import rocketmq_proxy
from tests.cluster.test_java_servers import free_port

_LOAD: Final = Path(__file__).with_name("front_load")
_PATH: Final = "/apache.rocketmq.v2.MessagingService/SendMessage"
FRONTS: Final = ("native", "grpcio")
IN_FLIGHT: Final = (1, 16, 64, 256)
_JAVA_OPTIONS: Final = ("-Xmx512m", "-XX:MaxDirectMemorySize=512m")
_WARM_UP_SECONDS: Final = 15.0  # for the JVM's compiler
Load = Callable[[Server, int, float], Measured]


async def _serve(kind: str) -> None:
    """Give every send the same answer, until killed."""
    answer = v2.SendMessageResponse(status=v2.Status(code=v2.Code.OK, message="OK")).SerializeToString()

    async def empty(request: bytes, context: Context) -> bytes:
        return answer

    methods = {_PATH: Unary(empty)}
    if kind == "native":
        port = Front(methods, FrontConfig(), FrontCounters()).listen("127.0.0.1", 0, "plain", None)
    else:
        grpcio = GrpcioServer(methods, ())
        port = grpcio.server.add_insecure_port("127.0.0.1:0")
        await grpcio.start()
    print(f"ready grpc=127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


def go_load(directory: Path) -> Load:
    """The grpc-go load generator, built in `directory`."""
    program, request = directory.resolve() / "front_load", directory.resolve() / "request"
    request.write_bytes(unary_send.request_bytes())
    subprocess.run(["go", "build", "-o", program, "."], cwd=_LOAD, check=True)

    def load(target: Server, in_flight: int, seconds: float) -> Measured:
        options = {
            "-target": target.endpoint,
            "-method": _PATH,
            "-request": str(request),
            "-in-flight": str(in_flight),
            "-connections": str(min(in_flight, 4)),
            "-seconds": str(seconds),
            "-warm-up": str(min(seconds, 1.0)),
        }
        arguments = [part for pair in options.items() for part in pair]
        with subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            client.stdout.readline()
            before = target.cpu_seconds()
            client.stdout.readline()
            used = target.cpu_seconds() - before
            result = json.loads(client.stdout.readline())
        assert not result["failures"], result
        calls = max(result["calls"], 1)
        return Measured(calls / result["seconds"], result["p50_us"] / 1e6, result["p99_us"] / 1e6, used / calls)

    return load


def _rocketmq_rows(load: Load, directory: Path, seconds: float, levels: Sequence[int]) -> list[tuple[object, ...]]:
    """Durable sends to Apache RocketMQ: name server, broker and proxy with small heaps.

    Without rows, and with the reason printed, if it cannot be started.
    """
    try:
        release = rocketmq_proxy.prepare()
    except pytest.skip.Exception as missing:
        print(f"RocketMQ's proxy is left out: {missing}")
        return []
    rows: list[tuple[object, ...]] = []
    settings = {"flushDiskType": "SYNC_FLUSH", "mappedFileSizeCommitLog": 1 << 28}
    with (
        tempfile.TemporaryDirectory(dir=directory) as home,
        rocketmq_proxy.rocketmq(
            release,
            Path(home).resolve() / "rocketmq",
            free_port(),
            topics={"bench": "NORMAL"},
            groups={},
            broker_settings=settings,
            java_options=_JAVA_OPTIONS,
        ) as running,
    ):
        target = Server(running.endpoint, "", running.process)
        load(target, max(levels), _WARM_UP_SECONDS)
        for in_flight in levels:
            measured = load(target, in_flight, seconds)
            rows.append(("send, sync flush", "RocketMQ's proxy", *unary_send.row(in_flight, measured)))
    return rows


def run(
    directory: Path,
    seconds: float = 3.0,
    levels: Sequence[int] = IN_FLIGHT,
    flush_modes: Sequence[str] = FLUSH_MODES,
    fronts: Sequence[str] = FRONTS,
    *,
    with_go: bool = True,
    with_rocketmq: bool = True,
) -> None:
    """Print the table.

    `with_go` False: always use grpcio's client. `with_rocketmq`: also measure durable sends to RocketMQ's proxy, if
    Java and Maven are installed.
    """
    rows: list[tuple[object, ...]] = []
    with ExitStack() as stack:
        if with_go and shutil.which("go") is not None:
            client, load = "grpc-go", go_load(Path(stack.enter_context(tempfile.TemporaryDirectory(dir=directory))))
        else:
            client, load = "grpcio (slower; with Go on the PATH by grpc-go)", unary_send.measure
        for work in ("empty handler", *flush_modes):
            for front in fronts:
                if work in FLUSH_MODES:
                    running = broker(directory, work, front)
                else:
                    running = server(["-m", "tests.benchmarks.front", front])
                with running as target:
                    for in_flight in levels:
                        measured = load(target, in_flight, seconds)
                        handler = f"send, {work} flush" if work in FLUSH_MODES else work
                        rows.append((handler, front, *unary_send.row(in_flight, measured)))
        if with_rocketmq:
            rows += _rocketmq_rows(load, directory, seconds, levels)
    head = ("handler", "front", "in flight", "calls", "p50", "p99", "server CPU a call")
    table(f"Both fronts, {unary_send.BODY_SIZE}-byte body, load by {client}", head, rows)


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
