"""/metrics, /healthz and /readyz over HTTP.

Served by threads, so that they answer even if the event loop does not: data of the broker is read on the loop, and a
loop that does not answer in time makes the answer 503. The first connection loads the server (http_server.py).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any, Final, Protocol

from aerobee_broker.config import Address
from aerobee_broker.metrics.reserved_descriptors import ReservedDescriptors

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from aerobee_broker.metrics.http_server import HttpServer

_log = logging.getLogger(__name__)
LOOP_TIMEOUT_SECONDS: Final = 2.0  # Kubernetes' probes give up after 1 s, Prometheus' scrapes after 10 s
METRICS_TIMEOUT_SECONDS: Final = 8.0  # it is made in many steps
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class MetricsText(Protocol):
    """Makes the text of /metrics."""

    async def render(self) -> list[bytes]:
        """Its pieces."""
        ...


class Readiness(Protocol):
    """The state of readiness for /readyz."""

    def unreadiness(self) -> str | None:
        """The reason why the broker is not ready; None if it is ready."""
        ...

    def note(self) -> str:
        """Restrictions of a ready broker."""
        ...


class HttpEndpoint:
    """The server. Create it in the event loop's thread; `start` binds, `stop` ends it.

    `metrics` and `readiness` are called on the loop.
    """

    def __init__(self, address: Address, metrics: MetricsText, readiness: Readiness) -> None:
        self._address = address
        self._metrics_text = metrics
        self._ready = readiness
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None
        self._end: socket.socket | None = None  # closing it ends the thread

    def start(self) -> Address:
        """Bind and serve; return the address with the real port. OSError if it cannot be bound."""
        family = socket.AF_INET6 if ":" in self._address.host else socket.AF_INET
        listener = socket.create_server((self._address.host, self._address.port), family=family)
        self._end, ended = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, args=(listener, ended), name="aerobee-http", daemon=True)
        self._thread.start()
        return Address(self._address.host, listener.getsockname()[1])

    async def stop(self) -> None:
        """Stop serving and free the port."""
        end, thread = self._end, self._thread
        if end is None or thread is None:
            return
        self._end = None
        end.close()
        await asyncio.to_thread(thread.join)

    def _serve(self, listener: socket.socket, ended: socket.socket) -> None:
        """Accept connections until the other end of `ended` is closed."""
        reserved = ReservedDescriptors()
        server: HttpServer | None = None
        waiting = select.poll()
        waiting.register(listener, select.POLLIN)
        waiting.register(ended, select.POLLIN)
        with listener, ended:
            while ended.fileno() not in dict(waiting.poll()):
                if server is None:
                    server = self._load_server(listener, reserved)
                if server is not None:
                    server.handle_request()
        reserved.close()

    def _load_server(self, listener: socket.socket, reserved: ReservedDescriptors) -> HttpServer | None:
        """The server; None if there are no descriptors for its modules' files at the moment."""
        try:
            from aerobee_broker.metrics import http_server

            return http_server.HttpServer(listener, self._answer, reserved)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            if not reserved.give_up_one():
                time.sleep(0.1)
            return None

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        kind = "text/plain; charset=utf-8"
        pieces: list[bytes] = []
        body = b""
        path, method = environ.get("PATH_INFO", ""), environ.get("REQUEST_METHOD", "")
        if method not in ("GET", "HEAD"):
            status, body = "405 Method Not Allowed", b"only GET and HEAD\n"
        elif path == "/metrics":
            status, pieces, kind = self._metrics()
        elif path == "/healthz":
            status, body = self._health()
        elif path == "/readyz":
            status, body = self._readiness()
        else:
            status, body = "404 Not Found", b"there are /metrics, /healthz and /readyz\n"
        pieces = pieces or [body]
        start_response(status, [("Content-Type", kind), ("Content-Length", str(sum(map(len, pieces))))])
        return [b""] if method == "HEAD" else pieces

    def _metrics(self) -> tuple[str, list[bytes], str]:
        try:
            return "200 OK", self._on_loop(self._metrics_text.render, METRICS_TIMEOUT_SECONDS), METRICS_TYPE
        except FutureTimeoutError:
            return "503 Service Unavailable", [_HUNG], "text/plain; charset=utf-8"
        except Exception:
            _log.exception("metrics could not be read")
            return "500 Internal Server Error", [_UNREADABLE], "text/plain; charset=utf-8"

    def _health(self) -> tuple[str, bytes]:
        """Healthy means that the event loop runs; everything else is readiness."""
        try:
            self._on_loop(_nothing)
        except FutureTimeoutError:
            return "503 Service Unavailable", _HUNG
        return "200 OK", b"ok\n"

    def _readiness(self) -> tuple[str, bytes]:
        try:
            reason, note = self._on_loop(self._readiness_now)
        except FutureTimeoutError:
            return "503 Service Unavailable", _HUNG
        if reason is None:
            return "200 OK", f"ready; {note}\n".encode() if note else b"ready\n"
        return "503 Service Unavailable", f"{reason}\n".encode()

    async def _readiness_now(self) -> tuple[str | None, str]:
        return self._ready.unreadiness(), self._ready.note()

    def _on_loop(self, function: Callable[[], Awaitable[Any]], seconds: float | None = None) -> Any:
        """Call `function` on the loop and return its result. FutureTimeoutError if it takes longer; it is cancelled
        then."""

        async def call() -> Any:
            return await function()

        waiting = call()
        try:
            future = asyncio.run_coroutine_threadsafe(waiting, self._loop)
        except RuntimeError:  # the loop is closed: the process ends
            waiting.close()
            raise FutureTimeoutError from None
        try:
            return future.result(LOOP_TIMEOUT_SECONDS if seconds is None else seconds)
        except FutureTimeoutError:
            future.cancel()
            raise
        except CancelledError:  # the process ends
            raise FutureTimeoutError from None


async def _nothing() -> None:
    pass


_UNREADABLE: Final = b"the metrics could not be read; the log of the broker has the cause\n"
_HUNG: Final = b"the event loop does not answer\n"
