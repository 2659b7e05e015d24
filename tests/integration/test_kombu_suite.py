"""kombu's own tests for transports, from its source archive, on a real broker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("kombu", reason="needs Celery: make setup")

from aerobee_client.testing import BrokerProcess
from tests.support.source_archives import source_of

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.toolchain,
    pytest.mark.sdk("kombu's own tests"),
    pytest.mark.skipif("AEROBEE_TOOLCHAINS" not in os.environ, reason="runs with `make test-sdks`"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def common() -> Path:
    """The file `t/integration/common.py` of the installed release."""
    return source_of("kombu") / "t" / "integration" / "common.py"


def test_kombus_own_tests(common: Path, aerobee_broker: BrokerProcess, tmp_path: Path) -> None:
    """All tests for connections, exchanges, messages, priorities, expiry and failover pass; none is left out."""
    shutil.copy(common, tmp_path / "common.py")
    shutil.copy(ROOT / "tests" / "support" / "kombu_suite.py", tmp_path / "test_suite.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    environment = {**os.environ, "AEROBEE_ENDPOINT": aerobee_broker.endpoint}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "--timeout=100", "test_suite.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-6000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 45
    assert "skipped" not in done.stdout
