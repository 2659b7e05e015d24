"""The HTTP server behind /metrics, /healthz and /readyz: the standard library's, with limits.

Imported with the first connection: it takes a tenth of a broker's start and 2 MiB.
"""

from __future__ import annotations

import errno
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http.client import HTTPException
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from aerobee_broker.metrics.reserved_descriptors import ReservedDescriptors

_log = logging.getLogger(__name__)
_CONNECTIONS_MAX: Final = 16  # at a time
_HEAD_SIZE_MAX: Final = 32 << 10  # bytes of the headers of a request; the standard library takes 6.5 MB
_ANSWER_SECONDS: Final = 30.0  # for the peer to read an answer; a text of metrics may have megabytes
_SCRAPES_MAX: Final = 2  # answers with metrics at a time; the others wait, ...
_SCRAPE_WAIT_SECONDS: Final = 5.0  # ... for so long


class HttpServer(ThreadingMixIn, WSGIServer):
    """Serves `application` to the connections of `listener`, each in a thread of its own."""

    daemon_threads = True  # a stuck reader must not keep the process alive

    def __init__(self, listener: socket.socket, application: WSGIApplication, reserved: ReservedDescriptors) -> None:
        self._free = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        # Connections that have not sent their request yet, oldest first. No Recent: `_free` limits them together with
        # those that are answered, and the oldest goes only if no thread is free.
        self._silent: dict[int, Any] = {}
        self._reserved = reserved
        self._application = application
        self._scrapes = threading.BoundedSemaphore(_SCRAPES_MAX)
        address = listener.getsockname()[:2]
        super().__init__(address, _QuietHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_address = address
        self.server_name, self.server_port = address  # what binding sets, but without asking a name server
        self.setup_environ()
        self.set_app(self._answer)

    def get_request(self) -> Any:
        """Accept, with a reserved descriptor if no other is left."""
        while True:
            try:
                return super().get_request()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                if not self._reserved.give_up_one():
                    time.sleep(0.1)  # the connection still waits: without a pause this would be called at once again
                    raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve the connection in a thread of its own. At the limit, the oldest connection without a request is
        closed."""
        if not self._free.acquire(blocking=False) and not (self._end_oldest_silent() and self._free.acquire(timeout=1)):
            self.shutdown_request(request)
            return
        self._silent[id(request)] = request
        super().process_request(request, client_address)

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """The application, whose large answers are made and kept for a few peers at a time."""
        if environ.get("PATH_INFO") != "/metrics":
            return self._application(environ, start_response)
        if not self._scrapes.acquire(timeout=_SCRAPE_WAIT_SECONDS):
            start_response("503 Service Unavailable", [("Content-Type", "text/plain; charset=utf-8")])
            return [b"others read the metrics, and do not end; try again later\n"]
        try:
            return _Scrape(self._application(environ, start_response), self._scrapes.release)
        except BaseException:
            self._scrapes.release()
            raise

    def _end_oldest_silent(self) -> bool:
        with suppress(StopIteration, KeyError, OSError, RuntimeError):
            self._silent.pop(next(iter(self._silent))).shutdown(socket.SHUT_RDWR)
            return True
        return False

    def request_received(self, request: Any) -> None:
        """Note that the connection has sent a whole request: it is no longer closed in favour of others."""
        self._silent.pop(id(request), None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._silent.pop(id(request), None)
            self._free.release()
            self._reserved.take()

    def handle_error(self, request: object, client_address: object) -> None:
        """A peer that disconnects early is not an error."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        _log.log(level, "connection failed peer=%s", client_address, exc_info=True)


class _Scrape:
    """The pieces of an answer, for a limited time."""

    def __init__(self, pieces: Iterable[bytes], close: Callable[[], object]) -> None:
        self._pieces = pieces
        self.close = close
        """Called by the server at the end of the answer, however it ends."""

    def __iter__(self) -> Iterator[bytes]:
        ends = time.monotonic() + _ANSWER_SECONDS
        for piece in self._pieces:
            if time.monotonic() > ends:
                raise ConnectionAbortedError("the peer reads too slowly")
            yield piece


class _Head:
    """The headers of a request."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left = _HEAD_SIZE_MAX

    def readline(self, size: int = -1) -> bytes:
        line: bytes = self._file.readline(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(line)
        if not self._left:
            raise HTTPException(f"the headers have more than {_HEAD_SIZE_MAX} bytes")
        return line


class _QuietHandler(WSGIRequestHandler):
    timeout = 10  # seconds for a peer that connects and sends nothing
    server_version, sys_version = "aerobee", ""
    error_message_format, error_content_type = "%(message)s\n", "text/plain; charset=utf-8"

    def parse_request(self) -> bool:
        whole, self.rfile = self.rfile, _Head(self.rfile)  # type: ignore[assignment]  # what reads headers of it
        try:
            parsed = super().parse_request()
        finally:
            self.rfile = whole
        self.server.request_received(self.request)  # type: ignore[attr-defined]  # an HttpServer
        return parsed

    def log_message(self, format: str, *args: object) -> None:
        _log.debug("request peer=%s %s", self.client_address[0], format % args)

    def address_string(self) -> str:
        return str(self.client_address[0])  # without asking a name server
