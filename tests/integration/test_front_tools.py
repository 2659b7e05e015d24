"""The native front against third-party tools: h2spec for HTTP/2, gRPC's interoperability client for gRPC.

Both are Go programs, built once. `make test-front` runs this.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from aerobee_broker.config.front import FrontConfig
from aerobee_broker.counters.front_counters import FrontCounters
from aerobee_broker.front.http2 import FRAME_SIZE_MAX
from aerobee_broker.front.sockets import Front
from aerobee_client.testing import BrokerProcess
from tests.benchmarks.unary_send import request_bytes
from tests.support import interop_service
from tests.support.http2_pages import serving_pages
from tests.support.programs import go_program

pytestmark = [
    pytest.mark.toolchain,
    pytest.mark.skipif("AEROBEE_TOOLCHAINS" not in os.environ, reason="runs with `make test-front`"),
    pytest.mark.skipif(shutil.which("go") is None, reason="needs Go"),
    pytest.mark.timeout(600),
]
LOAD = Path(__file__).parents[1] / "benchmarks" / "front_load"
SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
FRAME_SIZE_CASE = "http2/4.2/3"
INTEROP = "google.golang.org/grpc/interop/client@v1.85.0"
CASES = (
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
)


async def output_of(*command: str | Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(*map(str, command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode is not None
    return process.returncode, output.decode(errors="replace")


async def test_h2spec() -> None:
    """Every case in strict mode.

    One case sends headers in a frame of 20,000 bytes, whatever frame size the server has announced, and expects an
    error. We accept up to 256 KiB, so this case runs again with larger headers.
    """
    async with serving_pages() as port:
        command = (go_program(H2SPEC), "-h", "127.0.0.1", "-p", str(port), "--strict", "--timeout", "5")
        _, output = await output_of(*command)
        code, larger = await output_of(*command, "--max-header-length", str(FRAME_SIZE_MAX // 4), FRAME_SIZE_CASE)
    assert re.search(r"146 tests, 145 passed, 0 skipped, 1 failed", output), output
    failed = output[output.index("Failures:") :]
    assert "3: Sends a large size HEADERS frame that exceeds the SETTINGS_MAX_FRAME_SIZE" in failed, output
    assert code == 0, larger
    assert re.search(r"1 tests, 1 passed, 0 skipped, 0 failed", larger), larger


async def test_go_on_a_unix_socket(tmp_path: Path) -> None:
    """grpc-go sends "localhost" as the host there, and otherwise behaves as over TCP."""
    load, path, request = tmp_path / "load", tmp_path / "broker.sock", tmp_path / "request"
    request.write_bytes(request_bytes())
    code, output = await output_of("go", "build", "-C", LOAD, "-o", load, ".")
    assert code == 0, output
    broker = BrokerProcess(tmp_path / "store", tmp_path / "broker.log", ["--dev", "--front", "native"])
    broker.endpoint = f"unix:{path}"
    try:
        broker.start()
        command = (load, "-target", broker.endpoint, "-method", SEND, "-request", request, "-seconds", "0.5")
        code, output = await output_of(*command, "-in-flight", "8", "-connections", "2")
    finally:
        broker.close()
    assert code == 0, output
    measured = json.loads(output.splitlines()[-1])
    assert measured["calls"] > 0
    assert measured["failures"] == 0


@pytest.mark.parametrize("case", CASES)
async def test_interoperability(case: str) -> None:
    """gRPC's own cases, except those that need a cloud, an account, or compression requested by the client."""
    front = Front(interop_service.methods(), FrontConfig(), FrontCounters())
    port = front.listen("127.0.0.1", 0, "plain", None)
    try:
        code, output = await output_of(
            go_program(INTEROP), "--server_host=127.0.0.1", f"--server_port={port}", f"--test_case={case}"
        )
    finally:
        await front.stop(1)
    assert code == 0, output
