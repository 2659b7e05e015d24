"""The application: its pages by path, and what happens around each of them."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from aerobee_broker.console import failures
from aerobee_broker.console.forms import SIZE_MAX, SMALL_SIZE_MAX, FormError, read_form, read_query, room_for_form
from aerobee_broker.console.pages import login
from aerobee_broker.console.protection import Gate, is_form_token, is_same_site
from aerobee_broker.console.rendering import STATIC, make_environment, static_version
from aerobee_broker.console.routes import ACTIONS, PAGES
from aerobee_broker.console.sessions import Sessions
from aerobee_broker.console.settings import ConsoleSettings
from aerobee_broker.console.visit import Console, Page, Visit
from aerobee_broker.limits.byte_budget import ByteBudget
from aerobee_client import Client, Credentials, ForbiddenError, connect
from aerobee_proto import admin_v1, v2

_log = logging.getLogger(__name__)

_TOKEN_LENGTH_MAX: Final = 64


@asynccontextmanager
async def open_console(settings: ConsoleSettings, forms: ByteBudget) -> AsyncIterator[Starlette]:
    """The application, and its connections to the broker while it is in use. Large forms need room in `forms`."""

    def dial(credentials: Credentials | None = None) -> Client:
        return connect(
            settings.endpoint,
            request_timeout_seconds=settings.timeout_seconds,
            retry_seconds=0.0,  # a page says at once that no broker answers, and asks again by itself
            credentials=credentials,
            tls=settings.tls,
        )

    async with dial() as nobody:
        sessions = Sessions(dial)
        console = Console(
            settings=settings,
            sessions=sessions,
            environment=make_environment(settings),
            nobody=nobody,
            key=secrets.token_bytes(32),
            # Browsers send cookies to every port of a host: consoles of two brokers must not sign each other out.
            cookie=f"aerobee_{hashlib.sha256(f'{settings.endpoint} {settings.url}'.encode()).hexdigest()[:8]}",
            version=static_version(),
            forms=forms,
        )
        try:
            yield Starlette(routes=_routes(console), middleware=[Middleware(Gate, settings=settings)])
        finally:
            await sessions.close()


def _routes(console: Console) -> Sequence[BaseRoute]:
    def page(path: str, shown: Page) -> Route:
        return Route(path, _Endpoint(console, shown).look, methods=["GET"])

    def action(path: str, done: Page, shown: Page) -> Route:
        return Route(path, _Endpoint(console, shown, done).act, methods=["POST"])

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def missing(visit: Visit) -> Response:
        visit.status = 404
        return visit.page("missing.html")

    return [
        Route("/healthz", health),
        Mount(f"/static/{console.version}", _Static(directory=STATIC)),
        Route("/login", _Endpoint(console, login.show, login=False).look, methods=["GET"]),
        Route("/login", _Endpoint(console, login.show, login.sign_in, login=False).act, methods=["POST"]),
        Route("/logout", _Endpoint(console, login.show, login.sign_out, login=False).act, methods=["POST"]),
        *(page(path, shown) for path, shown in PAGES),
        *(action(path, done, shown) for path, done, shown in ACTIONS),
        Route("/{rest:path}", _Endpoint(console, missing).look, methods=["GET"]),
    ]


class _Static(StaticFiles):
    """Files that never change under one address, which has the version of all of them."""

    def file_response(self, full_path: object, stat_result: object, scope: Scope, status_code: int = 200) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)  # type: ignore[arg-type]
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


class _Endpoint:
    """One page, or one action and the page that has its form. Without `login` anybody may use it."""

    def __init__(self, console: Console, shown: Page, done: Page | None = None, *, login: bool = True) -> None:
        self._console = console
        self._shown = shown
        self._done = done
        self._login = login

    async def look(self, request: Request) -> Response:
        """Show the page."""
        return await self._answer(request, self._look)

    async def act(self, request: Request) -> Response:
        """Do what a form asks for; if that is refused, show the form again, with what was typed and why."""
        return await self._answer(request, self._act)

    async def _answer(self, request: Request, work: Page) -> Response:
        visit = await self._visit(request)
        try:
            return await work(visit)
        except failures.KNOWN as error:
            return await self._failed(visit, error)
        except Exception:  # the boundary to the browser: a defect of ours becomes a page
            _log.exception("a page failed path=%s", request.scope["path"][:200])
            return failures.defect_page(visit)

    async def _look(self, visit: Visit) -> Response:
        if self._login:
            visit.identity = await self._identity(visit)
        return await self._shown(visit)

    async def _act(self, visit: Visit) -> Response:
        assert self._done is not None
        if self._login:
            visit.identity = await self._identity(visit)
        try:
            await self._read(visit)
            if self._login and self._console.settings.read_only:
                raise FormError("this console was started with --read-only; nothing was changed")
            return await self._done(visit)
        except failures.KNOWN as error:
            if self._login and failures.needs_login(error):
                raise
            visit.error, visit.status = failures.text_of(error), max(visit.status, failures.status_of(error))
            try:
                return await self._shown(visit)
            except failures.KNOWN:
                raise error from None  # it says more than that of the page

    async def _visit(self, request: Request) -> Visit:
        token = request.cookies.get(self._console.cookie, "")
        session = await self._console.sessions.find(token)
        visitor = token if session is not None or _is_token(token) else secrets.token_urlsafe(32)
        return Visit(self._console, request, visitor, session, read_query(request), admin_v1.WhoAmIResponse())

    async def _read(self, visit: Visit) -> None:
        """Read the form, and refuse one that did not come from our pages."""
        if not is_same_site(visit.request):
            raise FormError("the form came from another site; open the console and repeat it there")
        owner = visit.account or (visit.request.client.host if visit.request.client is not None else "")
        size_max = SIZE_MAX if self._login else SMALL_SIZE_MAX
        room = room_for_form(visit.request, self._console.forms, owner, size_max=size_max)
        visit.request.scope["answered"].enter_context(room)
        visit.fields = await read_form(visit.request)
        if not is_form_token(self._console.key, visit.visitor, visit.fields.text("form_token")):
            raise FormError("the form is of an earlier session; it is up to date now, so send it again")

    async def _identity(self, visit: Visit) -> admin_v1.WhoAmIResponse:
        if visit.session is None and self._console.settings.has_own_certificate:
            raise ForbiddenError(v2.Code.UNAUTHORIZED, "sign in")  # unsigned calls would be the console's own
        identity = await visit.admin.who_am_i()
        if identity.accounts_required and (peer := getattr(visit.request.state, "peer", None)) is not None:
            peer.is_known = True
        return identity

    async def _failed(self, visit: Visit, error: Exception) -> Response:
        if not self._login or not failures.needs_login(error):
            return failures.failure_page(visit, error)
        note = ""
        if visit.session is not None:
            await self._console.sessions.end(visit.session.token)
            note = "The broker no longer accepts this account. Sign in again."
        wanted = visit.here() if visit.request.method == "GET" else ""
        return visit.go(visit.url("/login", next=wanted), note, "failed")


def _is_token(text: str) -> bool:
    return 32 <= len(text) <= _TOKEN_LENGTH_MAX and text.isascii() and text.replace("-", "").replace("_", "").isalnum()
