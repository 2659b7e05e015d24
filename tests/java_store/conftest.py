"""The releases of RocketMQ that the tests of this folder run with, and how they open a store with one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.java_store.contents import SIZES
from tests.java_store.java_program import JavaStore, Release, prepare, settings_of

# The newest releases of Maven's registry at the time of writing, of either line.
VERSIONS: Final = os.environ.get("AEROBEE_ROCKETMQ", "5.5.1 4.9.8").split()

MARKS: Final = [
    pytest.mark.java_store,
    pytest.mark.timeout(900),  # the first one downloads; every wait in it has its own limit
    pytest.mark.skipif("AEROBEE_JAVA_STORE" not in os.environ, reason="run by `make test-java-store`"),
]

Open = Callable[..., JavaStore]


@pytest.fixture(scope="module", params=VERSIONS)
def release(request: pytest.FixtureRequest) -> Release:
    return prepare(request.param)


@pytest.fixture
def java(release: Release, tmp_path: Path) -> Open:
    """Opens a directory with RocketMQ: `with java(directory, setting=value) as store`."""

    def begin(directory: Path, **settings: object) -> JavaStore:
        fixed = {"timerWheelEnable": False} if release.major >= 5 else {}
        return JavaStore(release, directory, tmp_path / "home", {**settings_of(SIZES), **fixed, **settings})

    return begin
