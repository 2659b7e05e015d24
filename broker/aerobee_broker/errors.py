"""Errors of the broker, one class for each answer that a caller can act on.

A message names the cause and the next step; the client's user sees it unchanged. One table in `services/` maps the
classes to protocol codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aerobee_proto import v2


class BrokerError(Exception):
    """Root of all errors that the broker raises on purpose."""


class IllegalTopicError(BrokerError):
    """The topic's name, or the operation on the topic, is not allowed."""


class SystemTopicError(IllegalTopicError):
    """Clients may neither create the topic nor send to it, because it belongs to the broker."""


class IllegalGroupError(BrokerError):
    """The consumer group's name, or the operation on the group, is not allowed."""


class IllegalNamespaceError(BrokerError):
    """The namespace of a topic or group is not allowed."""


class IllegalAttributeError(BrokerError):
    """An attribute of a topic or group is unknown, or has a wrong or unsupported value."""


class TopicNotFoundError(BrokerError):
    """The topic does not exist."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} does not exist; create it with: aerobee topic create {topic}")
        self.topic = topic


class TopicExistsError(BrokerError):
    """A topic of this name exists."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} exists already; change it with: aerobee topic update {topic}")
        self.topic = topic


class GroupNotFoundError(BrokerError):
    """The consumer group does not exist."""

    def __init__(self, group: str) -> None:
        super().__init__(f"consumer group {group!r} does not exist; create it with: aerobee group create {group}")
        self.group = group


class GroupExistsError(BrokerError):
    """A consumer group of this name exists."""

    def __init__(self, group: str) -> None:
        super().__init__(f"consumer group {group!r} exists already; change it with: aerobee group update {group}")
        self.group = group


class ClientNotConnectedError(BrokerError):
    """A client that should run a command has no Telemetry stream, or the stream has ended."""

    def __init__(self, client_id: str) -> None:
        super().__init__(
            f"client {client_id!r} has no Telemetry stream: it is gone, or does not read commands; "
            "see who is connected with: aerobee client list"
        )
        self.client_id = client_id


class ClientSilentError(BrokerError):
    """A client did not answer a command in time."""

    def __init__(self, client_id: str, seconds: float) -> None:
        super().__init__(
            f"client {client_id!r} did not answer within {seconds:g} s; some clients ignore such commands, "
            "so look at that process itself"
        )
        self.client_id = client_id


class TableFormatError(BrokerError):
    """A configuration file is valid JSON but has wrong content; `field` tells where."""

    def __init__(self, field: str, cause: str) -> None:
        super().__init__(f"{field}: {cause}; correct the file or put its .bak copy in its place, then start again")
        self.field = field


class TableMissingError(BrokerError):
    """A store has queues, but no table says which topics they belong to: their messages would be out of reach."""

    def __init__(self, directory: Path, topics: Sequence[str]) -> None:
        shown = ", ".join(topics[:3]) + (", ..." if len(topics) > 3 else "")
        super().__init__(
            f"{directory / 'config' / 'topics.json'}: missing, but there are queues of {len(topics)} topics ({shown}); "
            f"restore it from a backup, or build it again with `aerobee store rebuild {directory} --tables --apply`"
        )


class InvalidRequestError(BrokerError):
    """A request, or a message in it, breaks a rule of the protocol; `code` is the v2 code that names the rule."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class QueueNotFoundError(InvalidRequestError):
    """The topic does not have this queue."""

    def __init__(self, topic: str, kind: str, queue_count: int, queue_id: int) -> None:
        text = f"topic {topic!r} has {queue_count} {kind} queues, numbered from 0, but no queue {queue_id}"
        super().__init__(v2.Code.BAD_REQUEST, f"{text}; QueryRoute lists them")


class ClosedError(InvalidRequestError):
    """The topic may not be read or written, or the group may not consume, whoever asks."""

    def __init__(self, text: str) -> None:
        super().__init__(v2.Code.FORBIDDEN, text)


class InvalidFilterError(BrokerError):
    """A filter expression is invalid or too long."""


class LiteQuotaError(BrokerError):
    """A client would subscribe to more lite topics than allowed."""


class UnauthorizedError(BrokerError):
    """The caller is unknown: missing or wrong credentials."""


class ForbiddenError(BrokerError):
    """The account of the caller may not do this."""


class InvalidReceiptHandleError(BrokerError):
    """The receipt handle is malformed, unknown, of another group or topic, expired, or replaced by a newer one."""


class InvalidTransactionError(BrokerError):
    """The transaction is unknown, or has another outcome."""


class TooManyRequestsError(BrokerError):
    """A limit of the broker is reached; the same request may succeed later."""


class TableSpaceError(TooManyRequestsError):
    """The topics, groups and positions of the broker take all the memory that they may; what exists can be used."""


class JournalFormatError(BrokerError):
    """The delivery journal contains data that this release cannot read, at `queue_offset` of the journal."""

    def __init__(self, cause: str, *, queue_offset: int = -1) -> None:
        super().__init__(
            f"delivery journal, queue offset {queue_offset}: {cause}; "
            "it was written by a newer release: start that one, or open the store with a copy of it"
        )
        self.cause = cause
        self.queue_offset = queue_offset


class ListenError(BrokerError):
    """The broker cannot listen on an address; `setting` is the full name of the setting."""

    def __init__(self, setting: str, address: object, cause: str) -> None:
        super().__init__(f"{setting}: cannot listen on {address}: {cause}; stop what uses it, or choose another")
        self.setting = setting


class BadRecordError(InvalidRequestError):
    """One of the records that a client wants to append is invalid."""

    def __init__(self, code: int, index: int, reason: str) -> None:
        """`index`: number of the record in its request, from 0."""
        super().__init__(code, f"record {index} of the request: {reason}; nothing of the request was stored")
        self.index = index
