"""/metrics, /healthz and /readyz over HTTP.

Served by a thread, so that they answer even if the event loop does not: data of the broker is read on the loop, and a
loop that does not answer in time makes the answer 503.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any, Final, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from aerobee_broker.config import Address

_log = logging.getLogger(__name__)
LOOP_TIMEOUT_SECONDS: Final = 2.0  # Kubernetes' probes give up after 1 s, Prometheus' scrapes after 10 s
_CONNECTIONS_MAX: Final = 16  # at a time
_DESCRIPTORS_KEPT: Final = 4
METRICS_TIMEOUT_SECONDS: Final = 8.0  # it is made in many steps
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True  # a stuck reader must not keep the process alive
    allow_reuse_address = True

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self._silent: dict[int, Any] = {}  # connections that have not sent their request yet, oldest first
        self._kept: list[int] = []  # descriptors for probes when clients use all others
        super().__init__(*arguments)
        self._keep()

    def _keep(self) -> None:
        with suppress(OSError):
            while len(self._kept) < _DESCRIPTORS_KEPT:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def server_close(self) -> None:
        super().server_close()
        while self._kept:
            os.close(self._kept.pop())

    def get_request(self) -> Any:
        """Accept, with a reserved descriptor if no other is left."""
        while True:
            try:
                return super().get_request()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                if not self._kept:
                    time.sleep(0.1)  # the connection still waits: without a pause this would be called at once again
                    raise
                os.close(self._kept.pop())

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve the connection in a thread of its own. At the limit, the oldest connection without a request is
        closed."""
        if not self._free.acquire(blocking=False) and not (self._end_oldest_silent() and self._free.acquire(timeout=1)):
            self.shutdown_request(request)
            return
        self._silent[id(request)] = request
        super().process_request(request, client_address)

    def _end_oldest_silent(self) -> bool:
        with suppress(StopIteration, KeyError, OSError, RuntimeError):
            self._silent.pop(next(iter(self._silent))).shutdown(socket.SHUT_RDWR)
            return True
        return False

    def request_received(self, request: Any) -> None:
        """The connection has sent a whole request: it is no longer closed in favour of others."""
        self._silent.pop(id(request), None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._silent.pop(id(request), None)
            self._free.release()
            self._keep()

    def handle_error(self, request: object, client_address: object) -> None:
        """A peer that disconnects early is not an error."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        _log.log(level, "connection failed peer=%s", client_address, exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = 10  # seconds for a peer that connects and sends nothing
    server_version, sys_version = "aerobee", ""
    error_message_format, error_content_type = "%(message)s\n", "text/plain; charset=utf-8"

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        self.server.request_received(self.request)  # type: ignore[attr-defined]  # a _Server
        return parsed

    def log_message(self, format: str, *args: object) -> None:
        _log.debug("request peer=%s %s", self.client_address[0], format % args)

    def address_string(self) -> str:
        return str(self.client_address[0])  # without asking a name server


class MetricsText(Protocol):
    """Makes the text of /metrics."""

    async def render(self) -> list[bytes]:
        """Its pieces."""
        ...


class Readiness(Protocol):
    """The state of readiness for /readyz."""

    def unreadiness(self) -> str | None:
        """Why the broker is not ready; None if it is."""
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
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Address:
        """Bind and serve; return the address with the real port. OSError if it cannot be bound."""
        kind = _Server6 if ":" in self._address.host else _Server
        self._server = kind((self._address.host, self._address.port), _QuietHandler)
        self._server.set_app(self._answer)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="aerobee-http", daemon=True
        )
        self._thread.start()
        return Address(self._address.host, self._server.server_address[1])

    async def stop(self) -> None:
        """Stop serving and free the port."""
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return
        self._server = None
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        await asyncio.to_thread(thread.join)

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


async def _nothing() -> None:
    pass


_HUNG: Final = b"the event loop does not answer\n"
