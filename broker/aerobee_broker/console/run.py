"""Serves the console with uvicorn, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import uvicorn

from aerobee_broker.console.app import open_console
from aerobee_broker.console.connections import Connection, make_ledger
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
    _check_certificate(settings)
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
                    http=partial(Connection, ledger=ledger),  # type: ignore[arg-type]  # called as a class is
                    ws="none",
                    timeout_graceful_shutdown=_DRAIN_SECONDS,
                    ssl_certfile=None if settings.certificate is None else str(settings.certificate),
                    ssl_keyfile=None if settings.key is None else str(settings.key),
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


def _check_certificate(settings: ConsoleSettings) -> None:
    """ConsoleError if HTTPS cannot be served; uvicorn would say it without the names of the files."""
    if settings.certificate is None or settings.key is None:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as error:
        raise ConsoleError(
            f"cannot serve HTTPS with {settings.certificate} and {settings.key}: {error.strerror or error}; "
            "give a certificate and its key as PEM files"
        ) from None


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
