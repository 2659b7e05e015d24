"""One visit of a page: who asks, the calls to the broker in that account's name, and the answers to a browser."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import quote, urlencode
from weakref import WeakKeyDictionary

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from aerobee_broker.console import notes
from aerobee_broker.console.forms import Fields
from aerobee_broker.console.navigation import Links, navigation
from aerobee_broker.console.protection import form_token
from aerobee_broker.console.sessions import Session, Sessions
from aerobee_broker.console.settings import ConsoleSettings
from aerobee_broker.limits.byte_budget import ByteBudget
from aerobee_client import Admin, Client, Producer
from aerobee_proto import admin_v1


@dataclass(frozen=True, slots=True)
class Console:
    """What all visits share."""

    settings: ConsoleSettings
    sessions: Sessions
    environment: Environment
    nobody: Client
    """Calls without a signature: enough for a broker without accounts."""
    key: bytes = field(repr=False)
    cookie: str
    version: str
    forms: ByteBudget
    """For large forms, until they are answered."""
    producers: WeakKeyDictionary[Client, Producer] = field(default_factory=WeakKeyDictionary)


@dataclass(slots=True)
class Visit:
    """One request."""

    console: Console
    request: Request
    visitor: str
    """What the cookie says: the token of a session, or a random number of somebody who is not signed in."""
    session: Session | None
    query: Fields
    identity: admin_v1.WhoAmIResponse
    fields: Fields = field(default_factory=Fields)
    """What a form has posted; empty for a page that is only looked at."""
    error: str = ""
    """Why an action was refused, to be shown above its form."""
    status: int = 200

    @property
    def client(self) -> Client:
        """Calls in the name of the visitor."""
        return self.session.client if self.session is not None else self.console.nobody

    def producer(self) -> Producer:
        """Sends in the name of the visitor; one for each client, which closes it."""
        producers = self.console.producers
        if self.client not in producers:
            producers[self.client] = self.client.producer()
        return producers[self.client]

    @property
    def admin(self) -> Admin:
        """The administration calls of the same."""
        return self.client.admin

    @property
    def account(self) -> str:
        """The account that is signed in; empty for a broker without accounts."""
        return self.identity.account.access_key

    @property
    def _is_operator(self) -> bool:
        return not self.identity.accounts_required or self.identity.account.admin

    @property
    def may_change(self) -> bool:
        """Whether forms of operators are shown. The broker decides about each call nevertheless."""
        return not self.console.settings.read_only and self._is_operator

    @property
    def may_look(self) -> bool:
        """Whether the account may look at everything."""
        return self._is_operator or self.identity.account.view

    @property
    def navigation(self) -> list[tuple[str, Links]]:
        """The pages that the account can open."""
        return navigation(looks=self.may_look, operates=self._is_operator)

    def may_send(self, topic: str) -> bool:
        """Whether the form for a message is shown."""
        account = self.identity.account
        return not self.console.settings.read_only and (
            not self.identity.accounts_required
            or account.admin
            or any(fnmatchcase(topic, pattern.replace("[", "[[]")) for pattern in account.publish)
        )

    def name(self, parameter: str = "name") -> str:
        """A name in the path of the page."""
        return str(self.request.path_params[parameter])

    def url(self, path: str, /, **query: object) -> str:
        """The address of a page, under the base path, without the fields that are empty."""
        return address(self.console.settings.base_path, path, query)

    def here(self, /, **query: object) -> str:
        """The address of this page with other fields; the rest stays."""
        path = quote(self.request.scope["path"], safe=_KEPT)
        return address("", path, {**dict(self.query), **query})

    def page(self, template: str, /, **values: Any) -> Response:
        """A page for people."""
        note = self._note()
        text = self.console.environment.get_template(template).render(
            visit=self,
            url=self.url,
            note=note,
            error=self.error,
            fields=self.fields,
            query=self.query,
            form_token=form_token(self.console.key, self.visitor),
            **values,
        )
        response = HTMLResponse(text, self.status)
        if note is not None:
            response.delete_cookie(self._note_cookie, path=self._path)
        self.remember(response, self.visitor)
        return response

    def go(self, address: str, note: str = "", kind: notes.Kind = "done") -> Response:
        """Send the browser on to an address of `url`, with a note for the page there."""
        response = RedirectResponse(address, 303)
        if note:
            sealed = notes.Note(note, kind).sealed(self.console.key)
            self._set(response, self._note_cookie, sealed, seconds=notes.SECONDS)
        return response

    def remember(self, response: Response, visitor: str) -> None:
        """Let the browser come back as this visitor."""
        if self.request.cookies.get(self.console.cookie) != visitor:
            self._set(response, self.console.cookie, visitor)

    @property
    def _path(self) -> str:
        return self.console.settings.base_path or "/"

    @property
    def _note_cookie(self) -> str:
        return f"{self.console.cookie}_note"

    def _note(self) -> notes.Note | None:
        sealed = self.request.cookies.get(self._note_cookie)
        return None if sealed is None else notes.opened(self.console.key, sealed)

    def _set(self, response: Response, name: str, value: str, seconds: int | None = None) -> None:
        secure = self.console.settings.is_https
        response.set_cookie(name, value, max_age=seconds, path=self._path, secure=secure, httponly=True, samesite="lax")


Page = Callable[[Visit], Awaitable[Response]]
"""What answers a visit. Raises errors of the client, and FormError."""

_KEPT: Final = "/-._~"


def address(base: str, path: str, query: Mapping[str, object]) -> str:
    """A path and the fields of a query that are not empty."""
    given = {name: 1 if value is True else value for name, value in query.items() if value not in (None, "", False)}
    return f"{base}{path}{'?' if given else ''}{urlencode(given)}"


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="-._~")
