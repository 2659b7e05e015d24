"""Modules that an idle broker has in memory, and those that it must not have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.front_under_test import needs_native

pytestmark = needs_native
_UNUSED: Final = (
    *("grpc", "grpc_tools", "prometheus_client", "cryptography", "aerobee_client", "pyspark"),
    *("http.server", "wsgiref", "email"),  # of the metrics port
    *("aerobee_broker.commands.group", "aerobee_broker.bench"),
    *("numpy", "aerobee_store.records.record_batch", "aerobee_broker.processors.sending.send_alike"),
)
_PROGRAM: Final = """
import argparse, asyncio, sys
from aerobee_broker.commands import serve

commands = argparse.ArgumentParser().add_subparsers()
serve.add_parser(commands)
arguments = commands.choices["serve"].parse_args(sys.argv[1:])
stop = asyncio.Event()

async def main() -> None:
    running = asyncio.create_task(serve.serve(serve.load_config(arguments), stop))
    await ready.wait()
    print("modules", *sys.modules, flush=True)
    _, writer = await asyncio.open_connection(listening.grpc.host, listening.grpc.port)
    while "aerobee_broker.processors.sending.send_alike" not in sys.modules:
        await asyncio.sleep(0.01)
    writer.close()
    print("imported for the first client", flush=True)
    stop.set()
    assert await running == 0

def announce(config, addresses, metrics) -> None:
    global listening
    listening = addresses
    ready.set()

ready = asyncio.Event()
serve._announce = announce
asyncio.run(main())
"""


def test_an_idle_broker_imports_only_needed_modules(tmp_path: Path) -> None:
    """Above all grpcio, which the native front does not need; nor modules for metrics and certificates.

    Numpy and the code for bulk requests are imported when the first client connects.
    """
    arguments = ["--store", str(tmp_path), "--dev", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    output = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, timeout=100, check=True
    ).stdout
    [modules] = [line.split()[1:] for line in output.splitlines() if line.startswith("modules")]
    assert "aerobee_broker" in modules
    assert not set(_UNUSED) & set(modules)
    assert "imported for the first client" in output.splitlines()
