"""Streaming queries on a busy machine.

Spark gives the Python process of a stream's source or sink ten seconds to start, and has no setting for it. A query
that fails for this reason continues at its checkpoint when it is restarted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

_log = logging.getLogger(__name__)

_GIVEN_UP: Final = "Python worker failed to connect back"
_ATTEMPTS: Final = 10

T = TypeVar("T")


def retry_worker_start(work: Callable[[], T]) -> T:
    """The result of `work`, which starts a query with a checkpoint and waits for it.

    It is repeated, up to ten times in all, while a Python process starts later than Spark's limit.
    """
    for attempt in range(1, _ATTEMPTS):
        try:
            return work()
        except Exception as error:
            if _GIVEN_UP not in str(error):
                raise
            _log.warning("a Python process of a query did not start within Spark's 10 s: attempt %d", attempt)
    return work()
