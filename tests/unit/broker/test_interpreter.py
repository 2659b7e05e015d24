"""The minimum Python version of the broker."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
START = """
import runpy, sys
sys.version_info = ({version}, 9, "final", 0)
sys.argv = ["aerobee", "--version"]
runpy.run_module("aerobee_broker", run_name="__main__")
"""


@pytest.mark.parametrize(("version", "starts"), [("3, 10", False), ("3, 11", True), ("3, 13", True)])
def test_an_old_interpreter_is_refused_with_a_sentence(version: str, starts: bool) -> None:
    """An older interpreter gets one error line instead of a traceback."""
    source = START.format(version=version)
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode == 0) == starts, ended.stderr
    if not starts:
        assert ended.stderr == "aerobee: Python 3.10 is too old; run it with Python 3.11 or newer\n"


def test_the_minimum_is_that_of_the_package() -> None:
    """pyproject.toml has the same minimum, so pip refuses older versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
