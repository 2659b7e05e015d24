"""Maps errors to the status for the client, of a call or of one entry of its answer: the only table."""

from __future__ import annotations

import logging
from typing import Final

from aerobee_broker import errors as broker
from aerobee_proto import v2
from aerobee_store import errors as store

_log = logging.getLogger(__name__)
_Code = v2.Code
_TEXT_MAX: Final = 900  # characters

# The first class of an error's bases in this table decides.
CODES: Final[dict[type[BaseException], v2.Code.ValueType]] = {
    broker.IllegalTopicError: _Code.ILLEGAL_TOPIC,
    broker.IllegalGroupError: _Code.ILLEGAL_CONSUMER_GROUP,
    broker.IllegalNamespaceError: _Code.ILLEGAL_TOPIC,
    broker.IllegalAttributeError: _Code.BAD_REQUEST,
    broker.TopicNotFoundError: _Code.TOPIC_NOT_FOUND,
    broker.TopicExistsError: _Code.BAD_REQUEST,
    broker.GroupNotFoundError: _Code.CONSUMER_GROUP_NOT_FOUND,
    broker.GroupExistsError: _Code.BAD_REQUEST,
    broker.InvalidFilterError: _Code.ILLEGAL_FILTER_EXPRESSION,
    broker.LiteQuotaError: _Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
    broker.UnauthorizedError: _Code.UNAUTHORIZED,
    broker.ForbiddenError: _Code.FORBIDDEN,
    broker.InvalidReceiptHandleError: _Code.INVALID_RECEIPT_HANDLE,
    broker.InvalidTransactionError: _Code.INVALID_TRANSACTION_ID,
    broker.TooManyRequestsError: _Code.TOO_MANY_REQUESTS,
    broker.ClientNotConnectedError: _Code.NOT_FOUND,
    broker.ClientSilentError: _Code.PROXY_TIMEOUT,
    MemoryError: _Code.TOO_MANY_REQUESTS,  # a temporary failure for clients, never an error of theirs
    store.InvalidMessageError: _Code.BAD_REQUEST,
    store.RecordNotFoundError: _Code.MESSAGE_NOT_FOUND,
    # Every SDK repeats a send that failed with another code than 4xxxx at once, on the next broker. After
    # TOO_MANY_REQUESTS some wait, for the same broker too, and the one of Python gives up.
    store.StoreFullError: _Code.INTERNAL_SERVER_ERROR,
    store.StoreBusyError: _Code.TOO_MANY_REQUESTS,
    store.LightQueuesFullError: _Code.LITE_TOPIC_QUOTA_EXCEEDED,
    store.StoreAccessError: _Code.INTERNAL_SERVER_ERROR,
    store.TooFewReplicasError: _Code.HA_NOT_AVAILABLE,
    store.ReplicaMissingError: _Code.HA_NOT_AVAILABLE,
    store.ReplicaTimeoutError: _Code.SLAVE_PERSISTENCE_TIMEOUT,
    store.SyncTimeoutError: _Code.MASTER_PERSISTENCE_TIMEOUT,
    store.StoreFailedError: _Code.INTERNAL_SERVER_ERROR,
    store.StoreClosedError: _Code.INTERNAL_SERVER_ERROR,
    store.TimerLogDamagedError: _Code.INTERNAL_SERVER_ERROR,
}


def _shortened(text: str) -> str:
    """Shorten a message in its middle: a refused name may be megabytes long, and the next step is at the end."""
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX // 2]} ... {text[-_TEXT_MAX // 2 :]}"


def status_of(error: Exception, method: str) -> v2.Status:
    """The status for `error`. Unexpected errors are logged with a traceback, without details for the client."""
    if isinstance(error, broker.InvalidRequestError):
        return v2.Status(code=v2.Code.ValueType(error.code), message=_shortened(str(error)))
    if isinstance(error, MemoryError):
        _log.error("out of memory method=%s", method)
        return v2.Status(code=CODES[MemoryError], message="the broker is out of memory; send the same again later")
    for kind in type(error).__mro__:
        code = CODES.get(kind)
        if code is not None:
            return v2.Status(code=code, message=_shortened(str(error)))
    _log.error("call failed method=%s", method, exc_info=error)
    return v2.Status(code=_Code.INTERNAL_SERVER_ERROR, message="the broker failed at this call; its log has the reason")
