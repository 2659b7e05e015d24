"""The protocol code that a sender gets for each refusal of the store."""

from __future__ import annotations

import pytest

from aerobee_broker.processors.statuses import status_of
from aerobee_proto import v2
from aerobee_store import LightQueuesFullError, StoreBusyError, StoreFullError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreFullError("no room"), v2.Code.INTERNAL_SERVER_ERROR),
        (StoreBusyError("too much waits"), v2.Code.TOO_MANY_REQUESTS),
        (LightQueuesFullError("too many"), v2.Code.LITE_TOPIC_QUOTA_EXCEEDED),
    ],
)
def test_codes_of_refusals_of_the_store(error: Exception, code: v2.Code.ValueType) -> None:
    """The code tells the client whether to retry, and the message has the cause."""
    assert status_of(error, "SendMessage") == v2.Status(code=code, message=str(error))
