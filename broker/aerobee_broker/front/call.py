"""One gRPC call: the coroutine of its handler, run without a task, and the context that the handler sees.

A call steps its coroutine itself, as `asyncio.Task` does. The first step runs as soon as the request is complete, so an
answer that needs no wait leaves in the same step of the loop. Further steps follow when the awaited future is done.
During a step the call is the loop's current task, so `asyncio.timeout` and `TaskGroup` work in handlers.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio.tasks import _enter_task, _leave_task
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol

from aerobee_broker.counters.front_counters import FrontCounters
from aerobee_broker.front.deadlines import Deadlines
from aerobee_broker.front.frames import ErrorCode
from aerobee_broker.front.grpc_wire import (
    HEADERS,
    OK_TRAILERS,
    CallHead,
    GzipMessage,
    MessageReader,
    MessageTooLargeError,
    message_prefix,
    metadata_headers,
    status_headers,
)
from aerobee_broker.front.header_blocks import encoded
from aerobee_broker.front.http2 import Http2Connection, Stream
from aerobee_broker.front.methods import (
    Admission,
    BidirectionalStream,
    CallAbortedError,
    ClientWentAwayError,
    Metadata,
    Method,
    ServerStream,
    StatusCode,
    Unary,
)
from aerobee_broker.front.unsent_answers import UnsentAnswers
from aerobee_broker.limits.input_turns import InputTurns
from aerobee_broker.limits.ledger import Holdings

_log = logging.getLogger(__name__)
MESSAGE_SIZE_MAX: Final = 4 << 20  # a request to a method without a limit of its own: health, reflection
_UNREAD_SIZE_MAX: Final = 1 << 20  # bytes of requests that a handler has not read; beyond it the client waits
_UNSENT_SIZE_MAX: Final = 256 << 10  # bytes of answers that the client has not read; beyond it the handler waits
_MESSAGE_OVERHEAD: Final = 64  # bytes of a message in memory
_PIECE_SECONDS: Final = 0.002  # of processor, for a piece of a compressed message
_TOO_MANY_BYTES: Final = "too many bytes of requests are in progress; try again later"
_COPIED_SIZE_MAX: Final = 64 << 10  # an answer up to this size is joined with its prefix; a larger one is not copied


class Carrier(Protocol):
    """What a call needs of its connection."""

    loop: asyncio.AbstractEventLoop
    core: Http2Connection
    counters: FrontCounters
    deadlines: Deadlines
    unsent: UnsentAnswers
    turns: InputTurns
    name: str
    holdings: Holdings
    running_count: int
    """Handlers that run or wait."""
    peer_address: tuple[str, int]
    is_secure: bool
    certificate_subject: str | None

    def flush_soon(self) -> None: ...

    def keep(self, change: int) -> bool: ...


_NO_STREAM: Final = Stream(0, 0, 0)
"""That of a call that is over."""


class Call:
    """A `Context`, created when the headers have arrived."""

    __slots__ = (
        "_admission",
        "_cancels",
        "_connection",
        "_coroutine",
        "_deadline",
        "_head",
        "_headers_sent",
        "_kept",
        "_loop",
        "_lost",
        "_method",
        "_must_cancel",
        "_over",
        "_read_waiter",
        "_reader",
        "_requests",
        "_requests_ended",
        "_stream",
        "_trailing",
        "_unread_size",
        "_waiting",
        "_write_waiter",
        "bucket",
        "caller",
    )

    def __init__(self, connection: Carrier, stream: Stream, head: CallHead, method: Method) -> None:
        self._connection = connection
        self._loop = connection.loop
        self._stream = stream
        self._head = head
        self._method = method
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._admission = method.admission
        size_max = MESSAGE_SIZE_MAX
        if self._admission is not None:
            size_max = self._admission.request_size_max
        self._reader = MessageReader(head.encoding, size_max)
        self._requests: deque[bytes | GzipMessage] = deque()
        self._requests_ended = False
        self._unread_size = 0
        self._kept = 0  # bytes counted as kept for this call
        self._waiting: asyncio.Future[Any] | None = None  # the awaited future
        self._read_waiter: asyncio.Future[None] | None = None
        self._write_waiter: asyncio.Future[None] | None = None
        self._cancels = 0
        self._must_cancel = False
        self._headers_sent = False
        self._trailing = b""  # a block of metadata for the trailers
        self._over = False  # the answer is complete, or the client has given it up
        self._lost: Callable[[], None] | None = None
        self._deadline: float | None = None
        self.bucket = 0  # of the deadlines
        if head.timeout is not None:
            self._deadline = monotonic() + head.timeout
            connection.deadlines.add(self, self._deadline)
        self.caller: Any = None
        connection.counters.open_calls += 1
        if self._admission is not None and (refusal := self._admission.refusal(self)) is not None:
            self._answer(refusal)
        elif isinstance(method, BidirectionalStream):
            self._start(method.call(_Messages(self), self))

    # --- From the connection --------------------------------------------------------------------------------

    def data(self, data: bytes | memoryview, ended: bool) -> None:
        """Bytes of the request have arrived; `ended`: they are the last ones."""
        if self._over:
            return
        if data:
            try:
                messages = self._reader.feed(data)
            except MessageTooLargeError as error:
                self._connection.counters.refused["message_size_max"] += 1
                if self._admission is None or isinstance(self._method, BidirectionalStream):
                    self._abort(error)
                else:
                    self._answer(self._admission.too_large(error.size))
                    self.cancel()
                return
            except CallAbortedError as error:
                self._abort(error)
                return
            if messages:
                self._requests.extend(messages)
                self._unread_size += sum(map(len, messages)) + _MESSAGE_OVERHEAD * len(messages)
        if ended:
            self._requests_ended = True
            if self._reader.size:
                self._abort(CallAbortedError(StatusCode.INTERNAL, "the request ends within a message"))
                return
        if isinstance(self._method, BidirectionalStream):
            if self._requests or ended:
                _resolve(self._read_waiter)
            if self._unread_size > _UNREAD_SIZE_MAX:
                self._connection.core.hold(self._stream)
        elif len(self._requests) > 1 or (ended and not self._requests):
            text = f"the method takes one request message, {len(self._requests) or 'none'} arrived"
            self._abort(CallAbortedError(StatusCode.UNIMPLEMENTED, text))
            return
        elif self._coroutine is not None:
            if ended:
                _resolve(self._read_waiter)
        elif ended:
            request = self._requests.pop()
            if isinstance(request, bytes):
                self._start(self._method.call(request, self))
            else:
                self._start(self._when_plain(self._method, request))
        elif self._admission is not None and self._reader.size:
            self._start(self._when_there_is_room(self._method, self._admission))
        if not self._count_kept():
            self._abort(CallAbortedError(StatusCode.RESOURCE_EXHAUSTED, _TOO_MANY_BYTES))

    async def _when_there_is_room(self, method: Unary | ServerStream, admission: Admission) -> Any:
        """The handler of a request that arrives in pieces. The rest is requested when the byte budget admits it."""
        core = self._connection.core
        core.hold(self._stream)
        refusal = await admission.wait_admitted(self)
        if refusal is not None:
            return _Refusal(refusal)
        core.release(self._stream)
        self._connection.flush_soon()
        while not self._requests_ended:
            await self._wait_for_requests()
        return await self._when_plain(method, self._requests.pop())

    async def _when_plain(self, method: Unary | ServerStream, request: bytes | GzipMessage) -> Any:
        """The handler of a request that is decompressed first."""
        try:
            plain = await self._plain(request)
        except MessageTooLargeError as error:
            if self._admission is None:
                raise
            return _Refusal(self._admission.too_large(error.size))
        return await method.call(plain, self)

    async def _plain(self, message: bytes | GzipMessage) -> bytes:
        """The message without compression. One message of all connections at a time is decompressed, piece by piece.
        Raises CallAbortedError."""
        if isinstance(message, bytes):
            return message
        turns = self._connection.turns
        pieces = []
        try:
            async with turns.long_work:
                for piece in message.pieces():
                    pieces.append(piece)
                    self._unread_size += len(piece)
                    if not self._count_kept():
                        raise CallAbortedError(StatusCode.RESOURCE_EXHAUSTED, _TOO_MANY_BYTES)
                    await turns.next(_PIECE_SECONDS)
                return b"".join(pieces)
        except MessageTooLargeError:
            self._connection.counters.refused["message_size_max"] += 1
            raise
        finally:
            self._unread_size -= len(message)

    def _count_kept(self) -> bool:
        """Count the bytes kept of this call's request. Returns whether they are within the bounds."""
        kept = self._reader.size + self._unread_size
        if kept == self._kept or self._over:
            return True
        change, self._kept = kept - self._kept, kept
        return self._connection.keep(change)

    def gone(self) -> None:
        """The client has cancelled the call, or its connection is gone; perhaps before it received the end of an
        answer."""
        if not self._over:
            self._end()
            self.cancel()
        if self._lost is not None:
            self._lost()
            self._lost = None

    def expire(self) -> None:
        """The deadline has passed."""
        if self._over:  # the client has not read the answer
            stream, self._stream = self._stream, _NO_STREAM
            self._connection.core.reset(stream, ErrorCode.CANCEL)
            self._connection.flush_soon()
            self.gone()
        else:
            self._abort(CallAbortedError(StatusCode.DEADLINE_EXCEEDED, "the deadline of the call has passed"))

    @property
    def takes_one_request(self) -> bool:
        """Whether the request ends before the answer begins."""
        return not isinstance(self._method, BidirectionalStream)

    def stall(self) -> None:
        """The request stopped arriving."""
        if not self._over:
            text = "the request did not arrive in time; send it again"
            self._abort(CallAbortedError(StatusCode.DEADLINE_EXCEEDED, text))

    def drained(self) -> None:
        """The client has read the pending output."""
        _resolve(self._write_waiter)

    # --- For the handler ------------------------------------------------------------------------------------

    def metadata(self) -> Metadata:
        return self._head.metadata

    def peer_address(self) -> tuple[str, int]:
        return self._connection.peer_address

    def connection(self) -> str:
        return self._connection.name

    def is_secure(self) -> bool:
        return self._connection.is_secure

    def certificate_subject(self) -> str | None:
        return self._connection.certificate_subject

    def note_account(self) -> None:
        self._connection.holdings.is_known = True

    def request_taken(self) -> None:
        self._unread_size = 0
        if self._kept:
            self._count_kept()

    def time_remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - monotonic())

    def if_lost(self, lost: Callable[[], None]) -> None:
        self._lost = lost

    async def send_initial_metadata(self, metadata: Metadata = ()) -> None:
        if not self._over and not self._headers_sent:
            self._headers_sent = True
            block = HEADERS + encoded(metadata_headers(metadata)) if metadata else HEADERS
            self._connection.core.send_headers(self._stream, block)
            self._connection.flush_soon()

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self._trailing = encoded(metadata_headers(metadata))

    async def write(self, response: bytes) -> None:
        await self.write_all((response,))

    async def write_all(self, responses: Sequence[bytes]) -> None:
        if self._over:
            raise ClientWentAwayError
        connection, stream = self._connection, self._stream
        if not self._headers_sent:
            self._headers_sent = True
            connection.core.send_headers(stream, HEADERS)
        if len(responses) == 1:
            self._send_message(responses[0])
        else:
            parts = [part for response in responses for part in (message_prefix(len(response)), response)]
            connection.core.send_data(stream, b"".join(parts))
        connection.flush_soon()
        if stream.pending_size > _UNSENT_SIZE_MAX:
            stream.watched = True
            self._write_waiter = self._loop.create_future()
            try:
                await self._write_waiter
            finally:
                self._write_waiter = None
                stream.watched = False
            if self._over:
                raise ClientWentAwayError

    async def next_request(self) -> bytes | None:
        """The next message of a stream of requests; None at its end."""
        while not self._requests:
            if self._requests_ended or self._over:
                return None
            await self._wait_for_requests()
        message = self._requests.popleft()
        try:
            request = await self._plain(message)
        except CallAbortedError as error:
            self._abort(error)
        if self._over:
            return None
        self._unread_size -= len(request) + _MESSAGE_OVERHEAD
        self._count_kept()
        if self._stream.held and self._unread_size <= _UNREAD_SIZE_MAX // 2:
            self._connection.core.release(self._stream)
            self._connection.flush_soon()
        return request

    async def _wait_for_requests(self) -> None:
        self._read_waiter = self._loop.create_future()
        try:
            await self._read_waiter
        finally:
            self._read_waiter = None

    def _send_message(self, message: bytes) -> None:
        if len(message) <= _COPIED_SIZE_MAX:
            self._connection.core.send_data(self._stream, message_prefix(len(message)) + message)
        else:
            self._connection.core.send_data(self._stream, message_prefix(len(message)), message)

    # --- The coroutine --------------------------------------------------------------------------------------

    def _start(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._connection.counters.calls += 1
        self._connection.running_count += 1
        self._step(None)

    def _step(self, error: BaseException | None) -> None:
        coroutine = self._coroutine
        assert coroutine is not None, "a coroutine that waits has not ended"
        if self._must_cancel:
            self._must_cancel = False
            error = asyncio.CancelledError()
        self._waiting = None
        loop = self._loop
        _enter_task(loop, self)  # type: ignore[arg-type]  # a task of another kind
        try:
            yielded = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            self._coroutine = None
            self._succeeded(stop.value)
        except CallAbortedError as aborted:
            self._coroutine = None
            self._abort(aborted)
        except (asyncio.CancelledError, ClientWentAwayError):
            self._coroutine = None
            if not self._over:  # the handler cancelled itself
                self._abort(CallAbortedError(StatusCode.CANCELLED, "the call was cancelled by the server"))
        except Exception as failure:
            self._coroutine = None
            _log.error("call failed path=%s", self._head.path, exc_info=failure)
            self._abort(
                CallAbortedError(StatusCode.INTERNAL, "the call failed in the server; see the error in its log")
            )
        else:
            if yielded is None:
                loop.call_soon(self._wake, None)
            else:
                assert yielded._asyncio_future_blocking, "handlers await futures of asyncio"
                yielded._asyncio_future_blocking = False
                yielded.add_done_callback(self._wake)
                self._waiting = yielded
                if self._must_cancel and yielded.cancel():
                    self._must_cancel = False
        finally:
            error = None  # its traceback refers to this frame, and the cycle would wait for a collection
            _leave_task(loop, self)  # type: ignore[arg-type]
        if self._coroutine is None:
            self._connection.counters.calls -= 1
            self._connection.running_count -= 1

    def _wake(self, future: asyncio.Future[Any] | None) -> None:
        """Go on, because the awaited future is done, or the pause is over: in a turn, if too many calls do."""
        turns = self._connection.turns
        if turns.is_full:
            turns.wait(partial(self._go_on, future))
        else:
            began = monotonic()
            self._go_on(future)
            turns.spent(began)

    def _go_on(self, future: asyncio.Future[Any] | None, _until: float = 0.0) -> bool:
        try:
            if future is not None:
                future.result()
        except BaseException as error:
            self._step(error)
        else:
            self._step(None)
        return False

    def cancel(self, msg: object = None) -> bool:
        """Like `asyncio.Task.cancel`."""
        if self._coroutine is None:
            return False
        self._cancels += 1
        if self._waiting is None or not self._waiting.cancel():
            self._must_cancel = True
        return True

    def cancelling(self) -> int:
        """Like `asyncio.Task.cancelling`."""
        return self._cancels

    def uncancel(self) -> int:
        """Like `asyncio.Task.uncancel`."""
        self._cancels = max(0, self._cancels - 1)
        return self._cancels

    # --- The end --------------------------------------------------------------------------------------------

    def _succeeded(self, response: Any) -> None:
        if self._over:
            return
        if response.__class__ is _Refusal:
            self._answer(response.answer)
            return
        if isinstance(self._method, Unary):
            self._answer(response)
            return
        if not self._headers_sent:
            self._connection.core.send_headers(self._stream, HEADERS)
        stream = self._stream
        if self._lost is not None:
            stream.reports_late_reset = True
            self._connection.unsent.add(self.gone)
        self._connection.core.send_trailers(stream, OK_TRAILERS + self._trailing)
        self._end()
        if self._lost is not None and self._deadline is not None and stream.pending_size > stream.send_window:
            self._stream = stream
            self._connection.deadlines.add(self, self._deadline)  # an unread answer expires as well
        self._connection.flush_soon()

    def _answer(self, response: bytes) -> None:
        """Send the only message of the answer, and end the answer."""
        core, stream = self._connection.core, self._stream
        if len(response) <= _COPIED_SIZE_MAX and not self._headers_sent:
            core.respond(stream, HEADERS, message_prefix(len(response)) + response, OK_TRAILERS + self._trailing)
        else:
            if not self._headers_sent:
                core.send_headers(stream, HEADERS)
            self._send_message(response)
            core.send_trailers(stream, OK_TRAILERS + self._trailing)
        self._end()
        self._connection.flush_soon()

    def _abort(self, error: CallAbortedError) -> None:
        if self._over:
            return
        block = encoded(status_headers(error.code, error.details)) + self._trailing
        core = self._connection.core
        if self._headers_sent:
            core.send_trailers(self._stream, block)
        else:
            core.send_headers(self._stream, HEADERS + block, ended=True)
        self._end()
        self._connection.flush_soon()
        self.cancel()

    def _end(self) -> None:
        self._over = True
        self._stream = _NO_STREAM  # which has the call, and a cycle would be freed by a collection only, an hour later
        self._connection.counters.open_calls -= 1
        if self._deadline is not None:
            self._connection.deadlines.discard(self)
        if self._kept:
            self._connection.keep(-self._kept)
            self._kept = 0
        self._requests.clear()
        _resolve(self._read_waiter)
        _resolve(self._write_waiter)


class _Refusal:
    """The answer to a call that is refused without calling its handler."""

    __slots__ = ("answer",)

    def __init__(self, answer: bytes) -> None:
        self.answer = answer


class _Messages:
    """The requests of a stream, in order of arrival."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        message = await self._call.next_request()
        if message is None:
            raise StopAsyncIteration
        return message


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
