"""Serves the console with uvicorn, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn

from aerobee_broker.console.app import open_console
from aerobee_broker.console.connections import make_ledger, protocols
from aerobee_broker.console.settings import ConsoleError, ConsoleSettings

_DRAIN_SECONDS: Final = 2


class _Server(uvicorn.Server):
    """Without signal handlers: the process decides when it stops."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    settings: ConsoleSettings, host: str, port: int, stop: asyncio.Event, announce: Callable[[str], None]
) -> None:
    """Serve on this address, 0 for any free port. `announce` gets the address for browsers.

    ConsoleError if the address is taken, or the certificate cannot be used.
    """
    context = _context(settings)
    with _listening(host, port) as listener:
        ledger = make_ledger()
        async with open_console(settings, ledger.requests) as app:
            server = _Server(
                uvicorn.Config(
                    app,
                    lifespan="off",
                    log_config=None,
                    access_log=False,  # addresses of pages contain keys of messages
                    server_header=False,
                    proxy_headers=False,
                    http=protocols(ledger, context),  # type: ignore[arg-type]  # called as a class is
                    ws="none",
                    timeout_graceful_shutdown=_DRAIN_SECONDS,
                )
            )
            bound = listener.getsockname()
            name = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
            announce(f"{'https' if settings.certificate else 'http'}://{name}:{bound[1]}{settings.base_path}/")
            serving = asyncio.create_task(server.serve([listener]), name="console")
            stopping = asyncio.create_task(stop.wait(), name="stop of the console")
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            stopping.cancel()
            await serving


def _context(settings: ConsoleSettings) -> ssl.SSLContext | None:
    """For HTTPS; None: it is not served. ConsoleError if it cannot be."""
    if settings.certificate is None or settings.key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as error:
        raise ConsoleError(
            f"cannot serve HTTPS with {settings.certificate} and {settings.key}: {error.strerror or error}; "
            "give a certificate and its key as PEM files"
        ) from None
    return context


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(256)
    except OSError as error:
        listener.close()
        raise ConsoleError(
            f"cannot listen on {host}:{port}: {error.strerror}; give another address with --listen"
        ) from None
    return listener
