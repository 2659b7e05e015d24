"""A test run in several processes, as in `make test`, reports the same as one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.items import COUNT

ROOT = Path(__file__).parents[2]

# Every outcome occurs, in files that go to different processes.
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
    plugins = (
        "-p",
        "tests.conformance.table",
        "-p",
        "tests.support.sdk_summary",
        "-p",
        "tests.support.seeds",
        "-p",
        "tests.support.processes",
    )
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


def test_processes_give_the_results_of_one(project: Path) -> None:
    """The same tables and failures; warnings and coroutines never awaited also fail there."""
    alone, shared = run(project), run(project, "--processes", "2")
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


_COUNTED = """
import os, pytest
from pathlib import Path

@pytest.fixture(scope="module")
def made():
    with Path({made!r}).open("a") as file:
        file.write(f"{{os.getpid()}}\\n")
    yield
    with Path({made!r}).open("a") as file:
        file.write("ended\\n")

@pytest.mark.parametrize("number", range(6))
def test_uses(made, number, tmp_path):
    (tmp_path / "file").touch()
    with Path({run!r}).open("a") as file:
        file.write(f"{module} {{number}}\\n")
    print("said in", number)
    {then}
"""


def modules(folder: Path, count: int, then: str = "pass") -> Path:
    """A project of modules of six tests each, which note what they make and run."""
    (folder / "tests").mkdir()
    for module in range(count):
        source = _COUNTED.format(made=str(folder / "made"), run=str(folder / "run"), module=module, then=then)
        (folder / "tests" / f"test_number_{module}.py").write_text(source)
    return folder


def run_modules(folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit code and the output of a run."""
    settings = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), f"--basetemp={folder / 'temporary'}")
    plugins = ("-p", "tests.support.processes")
    command = [sys.executable, "-m", "pytest", "-q", *settings, *plugins, *arguments, str(folder / "tests")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize(("share", "made_min", "made_max"), [("modules", 5, 5), ("tests", 5, 30)])
def test_each_test_runs_once(tmp_path: Path, share: str, made_min: int, made_max: int) -> None:
    """A module's fixture is made once if its tests stay together. What was made has ended."""
    code, output = run_modules(modules(tmp_path, 5), "--processes", "3", "--share", share)
    assert code == 0, output
    assert "30 passed" in output
    assert sorted((tmp_path / "run").read_text().splitlines()) == [f"{m} {n}" for m in range(5) for n in range(6)]
    made = (tmp_path / "made").read_text().splitlines()
    assert made_min <= made.count("ended") <= made_max
    assert made.count("ended") == len(made) / 2


def test_a_process_that_dies_is_told_and_fails_the_run(tmp_path: Path) -> None:
    """The output names the exit code and the test."""
    code, output = run_modules(modules(tmp_path, 3, "number == 4 and os._exit(7)"), "--processes", "2")
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert "the process ended with 7, without the rest of its tests" in output
    assert "::test_uses[4]" in output


def test_a_process_that_ends_too_early_fails_the_run(tmp_path: Path) -> None:
    """An exit code of 0 is no proof that the tests were run."""
    code, output = run_modules(modules(tmp_path, 3, "number == 4 and os._exit(0)"), "--processes", "2")
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert "the process ended with 0, without the rest of its tests" in output


def test_the_first_failure_may_end_the_run(tmp_path: Path) -> None:
    """With `-x`, processes end after their current test; what a failed test printed is shown."""
    code, output = run_modules(modules(tmp_path, 40, "assert number < 0"), "--processes", "2", "-x")
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert "said in 0" in output
    assert len((tmp_path / "run").read_text().splitlines()) < 40
    made = (tmp_path / "made").read_text().splitlines()
    assert made.count("ended") == len(made) / 2  # fixtures have ended
