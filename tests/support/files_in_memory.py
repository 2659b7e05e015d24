"""Where the files of tests are: in memory with AEROBEE_TEST_FILES=memory, as in `make test`; syncs are free there.

Waiting for a disk, and freeing space on it, takes a third of the time of the tests. Tests of what a disk does, and of
what processes leave on it that are killed, have the mark `on_disk`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_MEMORY: Final = Path("/dev/shm")  # a file system in memory, where Linux has one
_ROOM: Final = 8 << 30  # bytes; a run of six processes needs a third of it at once
_OF_ALL_TESTS: Final = "aerobee-session"  # the directory of the one broker that several modules share

_kept: set[Path] = set()  # of modules with a failure
_failures = 0


def choose() -> None:
    """Let pytest make its temporary directories in memory, if that is asked for and enough of it is free."""
    if os.environ.get("AEROBEE_TEST_FILES") == "memory" and _free() >= _ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


def _free() -> int:
    """Bytes that files in memory may take."""
    if not os.access(_MEMORY, os.W_OK):
        return 0
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    (available,) = (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    text = limit.read_text(encoding="ascii").strip() if limit.exists() else "max"
    return min(shutil.disk_usage(_MEMORY).free, available, *([] if text == "max" else [int(text) // 2]))


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """pytest's own, except for tests with the mark `on_disk`, whose directory is on a disk."""
    if request.node.get_closest_marker("on_disk") is None or not tmp_path.is_relative_to(_MEMORY):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="aerobee-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Iterator[None] | object:  # a generator, although the hook's type does not say so
    """After a module, remove all that it left in memory; pytest removes only each test's `tmp_path`."""
    global _failures
    result = yield  # type: ignore[misc]
    if nextitem is None or nextitem.path != item.path:
        base: Path = item.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        if base.is_relative_to(_MEMORY):
            left = {path for path in base.iterdir() if not path.name.startswith(_OF_ALL_TESTS)} - _kept
            if item.session.testsfailed > _failures:
                _failures = item.session.testsfailed
                _kept.update(left)
            else:
                for path in left:
                    shutil.rmtree(path, ignore_errors=True)
    return result
