"""A test run with several workers, as in `make test`, reports the same as one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.items import COUNT

ROOT = Path(__file__).parents[2]

# Every outcome occurs, in files that go to different workers.
_ITEMS = """
import pytest

def item(number):
    def test():
        if number % 7 == 0:
            pytest.skip("odd")
        assert number != {wrong}
    return test

for number in range({first}, {last} + 1):
    globals()[f"test_{{number:03d}}_x"] = item(number)
"""
_SDKS = """
import asyncio, warnings
import pytest

SEED = 4711

@pytest.mark.sdk("Python 1")
@pytest.mark.parametrize("number", range(3))
def test_runs(number):
    pass

@pytest.mark.sdk("Python 1")
def test_skips():
    pytest.skip("not there")

@pytest.mark.sdk("Java 2")
def test_left_out():
    pytest.skip("needs java")

@pytest.mark.sdk("Go 3")
def test_fails():
    left, right = 40, 2
    assert left + right == 43

def test_warns():
    warnings.warn("old", DeprecationWarning)

def test_forgets():
    async def forgotten(): pass
    forgotten()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A test project beside this one, with a folder of the same name."""
    folder = tmp_path / "tests" / "conformance"
    folder.mkdir(parents=True)
    half = COUNT // 2
    for first, last in ((1, half), (half + 1, COUNT)):
        (folder / f"test_from_{first}.py").write_text(_ITEMS.format(first=first, last=last, wrong=half + 2))
    (tmp_path / "tests" / "test_sdks.py").write_text(_SDKS)
    return tmp_path


def run(project: Path, *arguments: str) -> str:
    """The output of a run with failures."""
    settings = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(project))
    temporary = f"--basetemp={project / 'temporary'}"  # else pytest removes files of earlier runs, which takes long
    plugins = ("-p", "tests.conformance.table", "-p", "tests.support.sdk_summary", "-p", "tests.support.seeds")
    command = [sys.executable, "-m", "pytest", "-q", temporary, *settings, *plugins, *arguments, str(project / "tests")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout + ended.stderr
    return ended.stdout


def section(output: str, title: str) -> list[str]:
    """The lines between a headline and the next one."""
    lines = output.splitlines()
    first = next(place for place, line in enumerate(lines) if line.strip("= ") == title) + 1
    ends = (place for place, line in enumerate(lines) if place >= first and line.startswith("==="))
    return lines[first : next(ends, len(lines))]


def test_workers_give_the_results_of_one_process(project: Path) -> None:
    """The same tables and failures; warnings and coroutines never awaited also fail with workers."""
    alone, shared = run(project), run(project, "-n", "2", "--dist", "loadfile")
    table = section(shared, "conformance")
    assert table == section(alone, "conformance")
    assert sum(line.startswith(f"failed: {COUNT // 2 + 2} ") for line in table) == 1
    assert section(shared, "official SDKs") == section(alone, "official SDKs")
    assert section(shared, "official SDKs")[:3] == [
        "Go 3                 1 failed",
        "Java 2               left out, 1 skipped: needs java",
        "Python 1             3 passed, 1 skipped: not there",
    ]
    for said in (
        "assert (40 + 2) == 43",
        "test_sdks.SEED = 4711",
        "DeprecationWarning: old",
        "coroutine 'test_forgets.<locals>.forgotten'",
    ):
        assert said in alone
        assert said in shared
    passed = COUNT - COUNT // 7 - 1 + 3
    assert f"4 failed, {passed} passed, {COUNT // 7 + 2} skipped" in shared
