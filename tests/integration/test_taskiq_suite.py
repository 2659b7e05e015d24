"""taskiq's own tests of what a broker and its results do, from its source archive, on a real broker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("taskiq", reason="needs taskiq: make setup")

from aerobee_client.testing import BrokerProcess
from tests.support.source_archives import ROOT, source_of

pytestmark = [
    pytest.mark.toolchain,
    pytest.mark.sdk("taskiq's own tests"),
    pytest.mark.skipif("AEROBEE_TOOLCHAINS" not in os.environ, reason="runs with `make test-sdks`"),
    pytest.mark.timeout(600),
]

FILES = (
    "test_requeue.py",
    "test_retry_task.py",
    "test_kicker.py",
    "depends/test_progress_tracker.py",
    "middlewares/test_task_retry.py",
)
"""Those that send tasks and wait for their results. The others test taskiq itself, without a broker."""
LEFT_OUT = {
    "test_wait_result_error": "looks into the results of the broker in memory",
    "test_wait_result_no_result": "looks into the results of the broker in memory",
    "test_progress_tracker_validation_error": "wants the object of an error, which results in JSON do not keep",
}


def test_taskiqs_own_tests(aerobee_broker: BrokerProcess, tmp_path: Path) -> None:
    """Tasks that are requeued, retried, delayed, that fail and that tell their progress."""
    for file in FILES:
        shutil.copy(source_of("taskiq") / "tests" / file, tmp_path)
    shutil.copy(ROOT / "tests" / "support" / "taskiq_suite.py", tmp_path / "conftest.py")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    environment = {**os.environ, "AEROBEE_ENDPOINT": aerobee_broker.endpoint}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:anyio", "--timeout=200"]
    command += ["-k", " and ".join(f"not {name}" for name in LEFT_OUT)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-6000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 27
    assert "skipped" not in done.stdout
