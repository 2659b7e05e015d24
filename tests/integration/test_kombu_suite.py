"""kombu's own tests for transports, from its source archive, on a real broker."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("kombu", reason="needs Celery: make setup")

from aerobee_client.testing import BrokerProcess

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.toolchain,
    pytest.mark.sdk("kombu's own tests"),
    pytest.mark.skipif("AEROBEE_TOOLCHAINS" not in os.environ, reason="runs with `make test-sdks`"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def common() -> Path:
    """The file `t/integration/common.py` of the installed release, from the index once."""
    version = importlib.metadata.version("kombu")
    folder = ROOT / "build" / f"kombu-{version}"
    file = folder / f"kombu-{version}" / "t" / "integration" / "common.py"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        done = subprocess.run([*command, "--dest", str(folder), f"kombu=={version}"], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"the source archive of kombu {version} cannot be had: {done.stderr.strip()[-200:]}")
        (archive,) = folder.glob("kombu-*.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
    return file


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
