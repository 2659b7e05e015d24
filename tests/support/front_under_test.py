"""The front of the tests' brokers: AEROBEE_TEST_FRONT, or the default. `make test-front` tests the other one."""

from __future__ import annotations

import os
from typing import Final, Literal, cast

import pytest

FRONT: Final = cast(Literal["native", "grpcio"] | None, os.environ.get("AEROBEE_TEST_FRONT"))
needs_native: Final = pytest.mark.skipif(FRONT == "grpcio", reason="only the native front does this")


def choose() -> None:
    """Set it, as `listen.front`, for every broker process that does not name its own."""
    if FRONT is not None:
        os.environ["AEROBEE_LISTEN_FRONT"] = FRONT
