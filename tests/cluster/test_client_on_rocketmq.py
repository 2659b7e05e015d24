"""Our client's portable tests, run against Apache RocketMQ 5."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.rocketmq_proxy import prepare, rocketmq
from tests.cluster.test_java_servers import free_port

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1500),  # the first test downloads; every wait has its own timeout
    pytest.mark.skipif("AEROBEE_ROCKETMQ" not in os.environ, reason="run by `make test-client-rocketmq`"),
]
_STORIES = Path(__file__).parents[1] / "integration" / "test_client_anywhere.py"


def test_scenarios_of_the_client(tmp_path: Path) -> None:
    """All of `test_client_anywhere.py` passes with the published name server, broker and proxy."""
    with rocketmq(prepare(), tmp_path / "rocketmq", free_port()) as running:
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(_STORIES)]
        environment = {**os.environ, "AEROBEE_TEST_ENDPOINT": running.endpoint}
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
