"""A gRPC method, independent of the front that carries its calls: bytes in, bytes out, and a `Context` for the rest.

A front gets a table of methods by path (`/package.Service/Method`). Messages are bytes here, so a handler can limit the
cost of a call by its headers and its size before it parses anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, Protocol

from msgspec import Struct


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
    """Raised by `Context.write` when the connection is gone or the client has cancelled the call."""


Metadata = Sequence[tuple[str, str | bytes]]
"""Names in lower case with their values. Names that end with `-bin` have bytes as values."""


class Context(Protocol):
    """One call, as its handler sees it."""

    caller: Any
    """What `Admission.refusal` has learned about the caller; None before."""

    def metadata(self) -> Metadata:
        """The headers that the client sent, without those of HTTP/2 and gRPC itself."""

    def peer_address(self) -> tuple[str, int]:
        """IP address and port of the client; `("127.0.0.1", 1)` on a Unix socket."""

    def connection(self) -> str:
        """A name of the connection, unique among all open connections."""

    def is_secure(self) -> bool:
        """Whether the connection uses TLS."""

    def certificate_subject(self) -> str | None:
        """The subject of the client's certificate in RFC 2253's form, verified by TLS; None without a certificate."""

    def note_account(self) -> None:
        """The caller has proved an account: other connections are closed first when clients hold too much memory."""

    def request_taken(self) -> None:
        """The handler counts the bytes of the request itself from now on. Until then the front does."""

    def time_remaining(self) -> float | None:
        """Seconds until the client's deadline, at which the call is cancelled; None without a deadline."""

    def if_lost(self, lost: Callable[[], None]) -> None:
        """Call `lost` if the front learns that the client did not receive the whole answer, even after the handler has
        returned. It may be called more than once, and is not called for a handler that has failed."""

    async def send_initial_metadata(self, metadata: Metadata = ()) -> None:
        """Send the headers of the answer now, before its first message."""

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Metadata to send with the status when the call ends."""

    async def write(self, response: bytes) -> None:
        """Send one message of a stream of answers. Waits while the client has not read earlier ones.

        Raises ClientWentAwayError.
        """

    async def write_all(self, responses: Sequence[bytes]) -> None:
        """Like `write`, with several messages at once: up to some 64 KiB together, or a single larger one."""


class Admission(Protocol):
    """Decides about a call of one method before its request is read. A front calls these methods in this order."""

    request_size_max: int
    """Bytes. A larger request is discarded and answered with `too_large`."""

    def refusal(self, context: Context) -> bytes | None:
        """The answer to a call that is refused by its headers, before its request is read; otherwise None.

        Only `metadata` and `caller` of the context may be used, because a front may know no more at this time.
        """

    def admits_at_once(self) -> bool:
        """Whether `wait_admitted` would return None at once for every caller."""

    async def wait_admitted(self, context: Context) -> bytes | None:
        """Wait until a request of this caller may be read. Returns the refusal if that takes too long; otherwise None.

        The bytes of a request count from the call of the handler until its return.
        """

    def too_large(self, size: int) -> bytes:
        """The answer to a request of this size."""


class Unary(Struct, frozen=True):
    """One request, one answer."""

    call: CallUnary
    admission: Admission | None = None


class ServerStream(Struct, frozen=True):
    """One request; the handler writes answers to the context and returns."""

    call: CallServerStream
    admission: Admission | None = None


class BidirectionalStream(Struct, frozen=True):
    """Any number of requests and answers, in any order. Also used for one answer to many requests."""

    call: CallBidirectionalStream
    admission: Admission | None = None
    """A refusal ends the call before the handler is called. The size limit applies to each request message."""


class CallUnary(Protocol):
    def __call__(self, request: bytes, context: Context, /) -> Coroutine[Any, Any, bytes]: ...


class CallServerStream(Protocol):
    def __call__(self, request: bytes, context: Context, /) -> Coroutine[Any, Any, None]: ...


class CallBidirectionalStream(Protocol):
    def __call__(self, requests: AsyncIterator[bytes], context: Context, /) -> Coroutine[Any, Any, None]: ...


Method = Unary | ServerStream | BidirectionalStream
Methods = Mapping[str, Method]
"""By path: `/package.Service/Method`."""
