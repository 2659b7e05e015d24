"""The fronts alone, `make bench-front`: a handler that returns its request, called by a load generator on grpc-go.

Processor time is the server's, a call. Needs Go; where it is missing this says so and measures nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import uvloop

from aerobee_broker.front.calls import Context, Unary
from aerobee_broker.front.config import FrontConfig
from aerobee_broker.front.counters import FrontCounters
from aerobee_broker.front.front import Front
from aerobee_broker.front.grpcio_front import GrpcioServer

_LOAD: Final = Path(__file__).with_name("front_load")
_PATH: Final = "/bench.Service/Echo"
_IN_FLIGHT: Final = (1, 16, 64, 256)
_SECONDS: Final = 3


async def _echo(request: bytes, context: Context) -> bytes:
    return request


async def serve(kind: str) -> None:
    """Serve until killed; the first line of the output is the port."""
    methods = {_PATH: Unary(_echo)}
    if kind == "native":
        port = Front(methods, FrontConfig(), FrontCounters()).listen("127.0.0.1", 0, "plain", None)
    else:
        grpcio = GrpcioServer(methods, ())
        port = grpcio.server.add_insecure_port("127.0.0.1:0")
        await grpcio.start()
    print(port, flush=True)
    await asyncio.Event().wait()


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _measure(kind: str, load: Path, request: Path, in_flight: int) -> str:
    """One line of the table."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.front", kind], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            target = f"127.0.0.1:{server.stdout.readline().strip()}"
            options = {
                "-target": target,
                "-method": _PATH,
                "-request": str(request),
                "-in-flight": str(in_flight),
                "-connections": str(min(in_flight, 4)),
                "-seconds": str(_SECONDS),
            }
            arguments = [part for pair in options.items() for part in pair]
            with subprocess.Popen([load, *arguments], stdout=subprocess.PIPE, text=True) as client:
                assert client.stdout is not None
                client.stdout.readline()
                before = _processor_seconds(server.pid)
                client.stdout.readline()
                used = _processor_seconds(server.pid) - before
                result = json.loads(client.stdout.readline())
        finally:
            server.kill()
    calls = max(result["calls"], 1)
    return (
        f"| {kind} | {in_flight} | {calls / result['seconds']:,.0f} | {used / calls * 1e6:.0f} | "
        f"{result['p50_us']:,.0f} | {result['p99_us']:,.0f} |"
    )


def main() -> None:
    """Print the table."""
    if shutil.which("go") is None:
        print("the load generator needs Go, which is not on the PATH; nothing was measured")
        return
    with tempfile.TemporaryDirectory() as directory:
        load, request = Path(directory, "front_load"), Path(directory, "request")
        request.write_bytes(bytes(256))
        subprocess.run(["go", "build", "-o", load, "."], cwd=_LOAD, check=True)
        print("| Front | In flight | Calls/s | Server CPU, us a call | p50, us | p99, us |")
        print("| --- | --- | --- | --- | --- | --- |")
        for in_flight in _IN_FLIGHT:
            for kind in ("native", "grpcio"):
                print(_measure(kind, load, request, in_flight), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        uvloop.run(serve(sys.argv[1]))
    else:
        main()
