"""What a gRPC method is, whichever front carries its calls: bytes in, bytes out, and a `Context` for all else.

A front is given a table of these by path (`/package.Service/Method`). Messages are bytes here, so a handler decides
what a call may cost by its headers and its size before it parses anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Protocol


class StatusCode(IntEnum):
    """gRPC's status codes, by their numbers on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallAbortedError(Exception):
    """Raised by a handler to end its call with a status other than OK. The client sees code and details."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code: Final = code
        self.details: Final = details


class ClientWentAwayError(Exception):
    """What `Context.write` raises on a call whose connection is gone, or that its client has cancelled."""


Metadata = Sequence[tuple[str, str | bytes]]
"""Names in lower case with their values; those of names that end with `-bin` are bytes."""


class Context(Protocol):
    """One call, as its handler sees it."""

    caller: Any
    """What `Admission.refusal` has found out about the caller; None before."""

    def metadata(self) -> Metadata:
        """The headers that the client sent, without those of HTTP/2 and gRPC itself."""

    def peer_address(self) -> tuple[str, int]:
        """IP address and port of the client; `("127.0.0.1", 1)` on a Unix socket."""

    def connection(self) -> str:
        """A name of the connection, different from those of all others that are open."""

    def is_secure(self) -> bool:
        """Whether the connection has TLS."""

    def certificate_subject(self) -> str | None:
        """The subject of the client's certificate, which TLS has verified, in RFC 2253's form; None without one."""

    def time_remaining(self) -> float | None:
        """Seconds until the client's deadline; None without one. At its deadline a call is cancelled."""

    async def send_initial_metadata(self, metadata: Metadata = ()) -> None:
        """Send the headers of the answer now, before there is a message."""

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """What to send with the status when the call ends."""

    async def write(self, response: bytes) -> None:
        """Send one message of a stream of answers. Waits while the client does not take what was written before.

        Raises ClientWentAwayError.
        """


class Admission(Protocol):
    """Decides about a call of one method before its request is read. A front asks in the order of these methods."""

    request_size_max: int
    """Bytes. Of a larger request nothing is kept, and `too_large` is the answer."""

    def refusal(self, context: Context) -> bytes | None:
        """The answer to a call that is refused by its headers, and whose request is not read; else None.

        Of the context only `metadata` and `caller` are used: a front may know no more at this time.
        """

    def admits_at_once(self) -> bool:
        """Whether `wait_admitted` would return None at once for every caller."""

    async def wait_admitted(self, context: Context) -> bytes | None:
        """Wait until a request of this caller may be read. The answer if that takes too long; else None.

        The bytes of a request count from when the handler is called until it returns.
        """

    def too_large(self, size: int) -> bytes:
        """The answer to a request of so many bytes."""


@dataclass(frozen=True, slots=True)
class Unary:
    """One request, one answer."""

    call: CallUnary
    admission: Admission | None = None


@dataclass(frozen=True, slots=True)
class ServerStream:
    """One request; the handler writes answers to the context and returns."""

    call: CallServerStream
    admission: Admission | None = None


@dataclass(frozen=True, slots=True)
class BidirectionalStream:
    """Any number of requests and answers, in any order. Also for one answer to many requests."""

    call: CallBidirectionalStream
    admission: Admission | None = None
    """Its refusal ends the call before the handler is called; the size is that of one request."""


class CallUnary(Protocol):
    def __call__(self, request: bytes, context: Context, /) -> Coroutine[Any, Any, bytes]: ...


class CallServerStream(Protocol):
    def __call__(self, request: bytes, context: Context, /) -> Coroutine[Any, Any, None]: ...


class CallBidirectionalStream(Protocol):
    def __call__(self, requests: AsyncIterator[bytes], context: Context, /) -> Coroutine[Any, Any, None]: ...


Method = Unary | ServerStream | BidirectionalStream
Methods = Mapping[str, Method]
"""By path: `/package.Service/Method`."""
