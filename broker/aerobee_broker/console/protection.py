"""What every request passes before a page: the name it was sent to, the base path, and headers that protect answers.

A page on another site cannot use the console of its reader: it is refused under names that are not its own (which stops
a name that an attacker lets point here), forms carry a token that only our pages know, and the cookie is not sent along
with requests of other sites.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from contextlib import ExitStack
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aerobee_broker.console.settings import ConsoleSettings

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


_PIECE_SIZE: Final = 64 << 10  # bytes of an answer that the server gets at a time: it waits for a browser between them


class Gate:
    """The outermost part of the application. What `scope["answered"]` is given ends when the request is answered."""

    def __init__(self, app: ASGIApp, settings: ConsoleSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the console serves HTTP and no {scope['type']}")

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            elif message["type"] == "http.response.body":
                body = memoryview(message.get("body", b""))
                while len(body) > _PIECE_SIZE:
                    await send({**message, "body": bytes(body[:_PIECE_SIZE]), "more_body": True})
                    body = body[_PIECE_SIZE:]
                message = {**message, "body": bytes(body)}
            await send(message)

        host = Headers(scope=scope).get("host", "")
        if not self._is_own(host):
            text = f"this console is not known as {host[:200]!r}; start it with --url and the address browsers use\n"
            await PlainTextResponse(text, 421)(scope, receive, send_protected)
            return
        base = self._settings.base_path
        if base:
            path = scope["path"]
            if path != base and not path.startswith(f"{base}/"):  # the proxy has removed it
                path = base + path
            scope = {**scope, "root_path": base, "path": path}
        with ExitStack() as answered:
            await self._app({**scope, "answered": answered}, receive, send_protected)

    def _is_own(self, host: str) -> bool:
        """Whether a Host header names an address, `localhost` or the name in `--url`."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name == "localhost" or name == self._settings.host:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def is_same_site(connection: HTTPConnection) -> bool:
    """Whether a request comes from our own pages, as far as the browser says; older ones do not."""
    site = connection.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = connection.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == connection.headers.get("host")


def form_token(key: bytes, visitor: str) -> str:
    """The token that forms of this visitor carry. `key` is known to this process alone."""
    return hmac.new(key, f"form {visitor}".encode(), hashlib.sha256).hexdigest()


def is_form_token(key: bytes, visitor: str, given: str) -> bool:
    """Whether `given` is that token."""
    return hmac.compare_digest(form_token(key, visitor).encode(), given.encode())
