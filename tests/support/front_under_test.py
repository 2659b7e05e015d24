"""The front of the tests' brokers: AEROBEE_TEST_FRONT, or the default. `make test-front` tests the other one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, cast

from aerobee_client.testing import BrokerProcess

FRONT: Final = cast(Literal["native", "grpcio"] | None, os.environ.get("AEROBEE_TEST_FRONT"))


def choose() -> None:
    """Set it for every broker process that does not name its own."""
    if FRONT is None:
        return
    before = BrokerProcess.__init__

    def with_front(self: BrokerProcess, store: Path, log: Path, arguments: Sequence[str], **options: Any) -> None:
        chosen = () if "--front" in arguments else ("--front", FRONT)
        before(self, store, log, [*arguments, *chosen], **options)

    BrokerProcess.__init__ = with_front  # type: ignore[method-assign]
