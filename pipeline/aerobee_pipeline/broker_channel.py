"""Connections to a broker from Spark's processes: blocking calls of its services, with retries.

Workers are forked, and a channel created before a fork is unusable. Channels are therefore created where they are used,
one per process and address.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc

from aerobee_client import Credentials, Tls
from aerobee_pipeline.errors import BrokerCallError
from aerobee_proto import admin_v1, records_v1, v2

# A frame has at most 4 MiB, or one record: a body of 4 MiB and its properties, or a batch.
_MESSAGE_SIZE_MAX: Final = 130 << 20
_PASSING: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
BUSY_CODES: Final = frozenset(
    {v2.Code.TOO_MANY_REQUESTS, v2.Code.INTERNAL_SERVER_ERROR, v2.Code.MASTER_PERSISTENCE_TIMEOUT}
)

_WAIT_SECONDS_MAX: Final = 1.0

AnswerT = TypeVar("AnswerT")
_channels: dict[tuple[int, str, str], grpc.Channel] = {}


def pause_seconds(interval_ms: int, failures: int) -> float:
    """The pause after so many failed attempts: each is twice as long as the one before."""
    return interval_ms / 1000 * 2 ** min(failures, 10)


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker and its options. `tls_ca`: "" for TLS with the default authorities, None for
    plaintext."""

    endpoint: str
    credentials_file: str | None = None
    tls_ca: str | None = None
    timeout_ms: int = 30_000
    retries: int = 3
    retry_interval_ms: int = 200


class Broker:
    """Calls of one broker."""

    def __init__(self, address: Address) -> None:
        self._address = address
        channel = _channel(address)
        self.records = records_v1.RecordServiceStub(channel)
        self._admin = admin_v1.AdminServiceStub(channel)
        self._messaging = v2.MessagingServiceStub(channel)
        self._client_id = f"spark@{os.getpid()}"

    @property
    def timeout_seconds(self) -> float:
        """The timeout of one attempt."""
        return self._address.timeout_ms / 1000

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The headers of a call made now."""
        file = self._address.credentials_file
        credentials = Credentials.load(Path(file)) if file else Credentials.from_environment()
        common = (("x-mq-client-id", self._client_id), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"))
        return (*common, *credentials.headers()) if credentials is not None else common

    def tried(self, what: str, attempt: Callable[[], AnswerT]) -> AnswerT:
        """The result of `attempt`, repeated while its error is temporary. Raises BrokerCallError after the last
        attempt."""
        deadline = time.monotonic() + self.timeout_seconds
        number = 0
        while True:
            try:
                return attempt()
            except grpc.RpcError as error:
                last: Exception = error
                if error.code() not in _PASSING:
                    break
                # A restarting broker is back within seconds, however many attempts that takes.
                waits = error.code() is grpc.StatusCode.UNAVAILABLE and time.monotonic() < deadline
            except _BusyError as error:
                last, waits = error, False
            number += 1
            if number > self._address.retries and not waits:
                break
            time.sleep(min(pause_seconds(self._address.retry_interval_ms, number), _WAIT_SECONDS_MAX))
        detail = f"{last.code().name}: {last.details()}" if isinstance(last, grpc.RpcError) else str(last)
        raise BrokerCallError(f"{self._address.endpoint}: {what}: {detail}") from last

    def checked(self, what: str, status: v2.Status, *also_good: v2.Code.ValueType) -> None:
        """Raises BrokerCallError if a status is not OK, or for a temporary one an error on which `tried` retries."""
        if status.code in (v2.Code.OK, *also_good):
            return
        text = f"{v2.Code.Name(status.code)}: {status.message}"
        if status.code in BUSY_CODES:
            raise _BusyError(text)
        raise BrokerCallError(f"{self._address.endpoint}: {what}: {text}")

    def name(self, topic: str) -> str:
        """The broker's own name. An account that may not ask for it learns it from the route of its topic."""
        found = self._status().name
        if found:
            return found
        names = {queue.broker.name for queue in self._route(topic)}
        if len(names) == 1:
            return names.pop()
        raise BrokerCallError(
            f"{self._address.endpoint}: this account cannot learn the broker's name without view; "
            'name the broker in the option endpoint: {"broker-a": "HOST:PORT"}'
        )

    def wait(self) -> None:
        """Return when the broker answers. Raises BrokerCallError if it does not."""
        self._status()

    def _status(self) -> admin_v1.GetBrokerStatusResponse:
        """Empty for an account that may not see it."""

        def ask() -> admin_v1.GetBrokerStatusResponse:
            answer = self._admin.GetBrokerStatus(
                admin_v1.GetBrokerStatusRequest(), metadata=self.metadata(), timeout=self.timeout_seconds
            )
            self.checked("broker status", answer.status, v2.Code.FORBIDDEN)
            return answer

        return self.tried("broker status", ask)

    def topics(self) -> list[str]:
        """The names of all topics except the broker's own."""
        names: list[str] = []
        token = ""
        while True:

            def ask(token: str = token) -> admin_v1.ListTopicsResponse:
                request = admin_v1.ListTopicsRequest(page_token=token)
                answer = self._admin.ListTopics(request, metadata=self.metadata(), timeout=self.timeout_seconds)
                self.checked("list of topics", answer.status)
                return answer

            page = self.tried("list of topics", ask)
            names += [topic.name for topic in page.topics]
            token = page.next_page_token
            if not token:
                return names

    def queue_offsets(self, request: records_v1.QueueOffsetsRequest) -> records_v1.QueueOffsetsResponse:
        """The first and next offsets of queues."""

        def ask() -> records_v1.QueueOffsetsResponse:
            answer = self.records.QueueOffsets(request, metadata=self.metadata(), timeout=self.timeout_seconds)
            self.checked("offsets of queues", answer.status)
            return answer

        return self.tried("offsets of queues", ask)

    def writable_queues(self, topic: str) -> list[int]:
        """The queues of a topic that accept messages. A broker that creates topics on first use creates this one."""
        writable = (v2.Permission.WRITE, v2.Permission.READ_WRITE)
        found = [queue.id for queue in self._route(topic) if queue.permission in writable]
        if not found:
            raise BrokerCallError(f"{self._address.endpoint}: topic {topic!r} has no writable queue")
        return found

    def _route(self, topic: str) -> list[v2.MessageQueue]:
        what = f"topic {topic!r}"

        def ask() -> list[v2.MessageQueue]:
            request = v2.QueryRouteRequest(topic=v2.Resource(name=topic))
            answer = self._messaging.QueryRoute(request, metadata=self.metadata(), timeout=self.timeout_seconds)
            self.checked(what, answer.status)
            return list(answer.message_queues)

        return self.tried(what, ask)

    def body_size_max(self) -> int:
        """The limit of a body in bytes, which the broker tells its producers."""
        settings = v2.Settings(client_type=v2.ClientType.PRODUCER, publishing=v2.Publishing())

        def ask() -> int:
            call: Any = self._messaging.Telemetry(
                iter((v2.TelemetryCommand(settings=settings),)), metadata=self.metadata(), timeout=self.timeout_seconds
            )
            for command in call:
                if command.HasField("settings"):
                    call.cancel()
                    return int(command.settings.publishing.max_body_size)
            raise _BusyError("the broker sent no settings")

        return self.tried("settings of producers", ask)

    def report(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit the progress of a group to the broker, for its lag metrics."""
        request: Any = v2.UpdateOffsetRequest(
            group=v2.Resource(name=group),
            message_queue=v2.MessageQueue(topic=v2.Resource(name=topic), id=queue_id),
            offset=offset,
        )

        def ask() -> None:
            answer = self._messaging.UpdateOffset(request, metadata=self.metadata(), timeout=self.timeout_seconds)
            self.checked(f"offset of group {group!r}", answer.status)

        self.tried(f"offset of group {group!r}", ask)


class _BusyError(Exception):
    """The broker is overloaded."""


def _channel(address: Address) -> grpc.Channel:
    key = os.getpid(), address.endpoint, "" if address.tls_ca is None else f"tls:{address.tls_ca}"
    channel = _channels.get(key)
    if channel is None:
        options = [("grpc.max_receive_message_length", _MESSAGE_SIZE_MAX), ("grpc.max_send_message_length", -1)]
        if address.tls_ca is None:
            channel = grpc.insecure_channel(address.endpoint, options=options)
        else:
            tls = Tls(Path(address.tls_ca) if address.tls_ca else None)
            channel = grpc.secure_channel(address.endpoint, tls.channel_credentials(), options=options)
        _channels[key] = channel
    return channel
