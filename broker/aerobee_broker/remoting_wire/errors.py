"""Maps errors to response codes of the remoting protocol: the only table."""

from __future__ import annotations

import logging
from typing import Final

from aerobee_broker import errors as broker
from aerobee_broker.remoting_wire.codes import Answer
from aerobee_broker.remoting_wire.frame import FLAG_RESPONSE, Command
from aerobee_store import errors as store
from aerobee_store.tables.java_json import JsonFormatError

_log = logging.getLogger(__name__)
_TEXT_MAX: Final = 900  # characters

# The first class of an error's bases in this table decides.
_CODES: Final[dict[type[BaseException], Answer]] = {
    broker.SystemTopicError: Answer.NO_PERMISSION,
    broker.IllegalTopicError: Answer.INVALID_PARAMETER,
    broker.IllegalGroupError: Answer.INVALID_PARAMETER,
    broker.IllegalAttributeError: Answer.SYSTEM_ERROR,  # as in RocketMQ
    broker.TopicNotFoundError: Answer.TOPIC_NOT_EXIST,
    broker.ClosedError: Answer.NO_PERMISSION,
    broker.InvalidRequestError: Answer.INVALID_PARAMETER,
    broker.GroupNotFoundError: Answer.SUBSCRIPTION_GROUP_NOT_EXIST,
    broker.InvalidFilterError: Answer.SUBSCRIPTION_PARSE_FAILED,
    broker.UnauthorizedError: Answer.NO_PERMISSION,
    broker.ForbiddenError: Answer.NO_PERMISSION,
    broker.TooManyRequestsError: Answer.SYSTEM_BUSY,
    broker.ClientNotConnectedError: Answer.CONSUMER_NOT_ONLINE,
    broker.ClientSilentError: Answer.CONSUME_MESSAGE_TIMEOUT,
    broker.BrokerError: Answer.SYSTEM_ERROR,
    JsonFormatError: Answer.INVALID_PARAMETER,
    store.InvalidMessageError: Answer.MESSAGE_ILLEGAL,
    store.TooFewReplicasError: Answer.SYSTEM_ERROR,  # likewise
    store.ReplicaTimeoutError: Answer.FLUSH_SLAVE_TIMEOUT,
    store.ReplicaMissingError: Answer.SLAVE_NOT_AVAILABLE,
    store.StoreFullError: Answer.SERVICE_NOT_AVAILABLE,  # as in RocketMQ: producers try another broker
    store.StoreBusyError: Answer.SYSTEM_BUSY,
    store.StoreAccessError: Answer.SERVICE_NOT_AVAILABLE,
    store.StoreFailedError: Answer.SERVICE_NOT_AVAILABLE,
    store.StoreClosedError: Answer.SERVICE_NOT_AVAILABLE,
    store.SyncTimeoutError: Answer.FLUSH_DISK_TIMEOUT,
    store.StoreError: Answer.SYSTEM_ERROR,
}


class RemotingError(broker.BrokerError):
    """A request that is refused with a code of this protocol."""

    def __init__(self, code: Answer, message: str) -> None:
        super().__init__(message)
        self.code = code


def code_of_stored(error: store.SyncTimeoutError | store.ReplicaError) -> Answer:
    """The code for a message that is stored, but not as safely as promised."""
    return _CODES[type(error)]


def refusal(error: Exception, code: int) -> Command:
    """The answer to a request of this code that failed. Unexpected errors are logged with a traceback."""
    return Command(_code_of(error, code), flag=FLAG_RESPONSE, remark=_text_of(error))


def _code_of(error: Exception, request_code: int) -> Answer:
    if isinstance(error, RemotingError):
        return error.code
    for kind in type(error).__mro__:
        if (found := _CODES.get(kind)) is not None:
            return found
    _log.error("request failed code=%d", request_code, exc_info=error)
    return Answer.SYSTEM_ERROR


def _text_of(error: Exception) -> str:
    if not isinstance(error, broker.BrokerError | store.StoreError):
        return "the broker failed at this request; its log has the reason"
    text = str(error)
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX // 2]} ... {text[-_TEXT_MAX // 2 :]}"
