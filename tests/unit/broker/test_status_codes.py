"""The status that a client gets for each error of the store."""

from __future__ import annotations

import pytest

from aerobee_broker.processors.statuses import status_of
from aerobee_proto import v2
from aerobee_store import StoreBusyError, StoreError, StoreFailedError, StoreFullError, SyncTimeoutError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SyncTimeoutError("late"), v2.Code.MASTER_PERSISTENCE_TIMEOUT),  # RocketMQ's FLUSH_DISK_TIMEOUT
        (StoreFullError("full"), v2.Code.INTERNAL_SERVER_ERROR),  # clients try the next broker
        (StoreBusyError("no buffer"), v2.Code.TOO_MANY_REQUESTS),  # clients wait and retry
        (StoreFailedError("failed"), v2.Code.INTERNAL_SERVER_ERROR),
    ],
)
def test_the_code_of_an_error(error: StoreError, code: v2.Code.ValueType) -> None:
    """Each error has its code, and the status has the error's message."""
    status = status_of(error, "SendMessage")
    assert (status.code, status.message) == (code, str(error))


def test_a_long_message_keeps_its_ends() -> None:
    """Long messages are cut in the middle, because the next step is at the end."""
    status = status_of(StoreFullError(f"no {'x' * 5000}; wait"), "SendMessage")
    assert len(status.message) < 1000
    assert status.message.startswith("no xxx")
    assert status.message.endswith("; wait")
