"""A program that was forked ends as one of its own process does: its output, its exit code, its threads."""

from __future__ import annotations

import pytest

from tests.support.warm_program import run_warm

_ONCE = ["-n", "1", "-r", "1"]
_THREAD = "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()"
_AT_EXIT = "import atexit; atexit.register(print, 'bye')"


@pytest.mark.parametrize(
    ("module", "arguments", "code", "output", "errors"),
    [
        ("timeit", [*_ONCE, "print('hello')"], 0, "hello", ""),
        ("timeit", [*_ONCE, _THREAD], 0, "late", ""),
        ("timeit", [*_ONCE, _AT_EXIT], 0, "bye", ""),
        ("json.tool", ["--nonsense"], 2, "", "unrecognized arguments"),
        ("json.tool", [], 1, "", "Expecting value"),
        ("zipfile", ["-t", "/missing"], 1, "", "FileNotFoundError"),
        ("timeit", [*_ONCE, "import os; os.kill(os.getpid(), 9)"], -9, "", ""),
    ],
)
async def test_a_forked_program_ends_as_one_of_its_own(
    module: str, arguments: list[str], code: int, output: str, errors: str
) -> None:
    found = await run_warm(module, arguments, seconds=60)
    assert found.returncode == code
    assert output in found.stdout
    assert errors in found.stderr
