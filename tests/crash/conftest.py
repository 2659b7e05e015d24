"""What several crash tests need."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def silent_log() -> Iterator[None]:
    """Silences the log: recovery reports thousands of damaged ranges."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
