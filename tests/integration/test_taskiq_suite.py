"""taskiq's own tests of what a broker and its results do, from its source archive, on a real broker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee_client.testing import BrokerProcess
from tests.support.source_archives import ROOT, source_of

pytestmark = [
    pytest.mark.toolchain,
    pytest.mark.sdk("taskiq's own tests"),
    pytest.mark.skipif("AEROBEE_TOOLCHAINS" not in os.environ, reason="runs with `make test-sdks`"),
    pytest.mark.timeout(600),
]

FILES = (
    "test_acks.py",
    "test_exceptions_flow.py",
    "test_kicker.py",
    "test_requeue.py",
    "test_retry_task.py",
    "api/test_receiver_task.py",
    "depends/test_progress_tracker.py",
    "formatters/test_proxy_formatter.py",
    "middlewares/test_task_retry.py",
    "receiver/test_receiver.py",
    "receiver/test_receiver_listener.py",
    "scheduler/test_scheduler.py",
)
"""Those that send tasks, receive them or wait for their results. The others test taskiq itself, without a broker, or
need instruments of OpenTelemetry."""
_INSIDE = "looks into the broker in memory"
LEFT_OUT = {
    "middlewares/test_task_retry.py::test_wait_result_error": _INSIDE,
    "middlewares/test_task_retry.py::test_wait_result_no_result": _INSIDE,
    **{
        f"receiver/test_receiver.py::{name}": _INSIDE
        for name in (
            *("test_no_result_error", "test_result", "test_error_result"),
            "test_sync_decorator_on_async_function",
        )
    },
    "test_exceptions_flow.py::test_inmemory_broker_raises_unknown_task_error": "a rule of the broker in memory",
    "depends/test_progress_tracker.py::test_progress_tracker_validation_error": (
        "wants the object of an error, which results in JSON do not keep"
    ),
}


def test_taskiqs_own_tests(aerobee_broker: BrokerProcess, tmp_path: Path) -> None:
    """Tasks that are requeued, retried, delayed, that fail and that tell their progress; receivers and schedulers."""
    pytest.importorskip("taskiq", reason="needs taskiq: make setup")
    shutil.copytree(source_of("taskiq") / "tests", tmp_path / "tests")
    shutil.copy(ROOT / "tests" / "support" / "taskiq_suite.py", tmp_path / "tests" / "conftest.py")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\npythonpath = .\n"
    )
    left_out = " ".join(f"tests/{name}" for name in LEFT_OUT)
    environment = {**os.environ, "AEROBEE_ENDPOINT": aerobee_broker.endpoint, "LEFT_OUT": left_out}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:anyio", "--timeout=200"]
    command += [f"tests/{file}" for file in FILES]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-6000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 95
    assert "skipped" not in done.stdout
