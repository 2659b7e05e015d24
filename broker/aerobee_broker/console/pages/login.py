"""Signing in with an account of the broker, and out."""

from __future__ import annotations

from starlette.responses import Response

from aerobee_broker.console import failures
from aerobee_broker.console.forms import FormError
from aerobee_broker.console.visit import Visit
from aerobee_client import ConfigurationError, Credentials, ForbiddenError


async def show(visit: Visit) -> Response:
    """The form."""
    return visit.page("login.html", next=visit.fields.text("next") or visit.query.text("next"))


async def sign_in(visit: Visit) -> Response:
    """Begin a session with the keys of the form, if the broker accepts them."""
    console = visit.console
    address = visit.request.client.host if visit.request.client is not None else ""
    if not console.sessions.may_try(address):
        raise FormError("too many logins have failed; wait a minute", 429)
    account = visit.fields.needed("access_key", "Access key")
    try:
        credentials = Credentials(account, visit.fields.needed("secret_key", "Secret key"))
    except ConfigurationError as error:
        raise FormError(str(error)) from None
    client = console.sessions.dial(credentials)
    try:
        await client.admin.who_am_i()
    except BaseException as error:
        await client.close()
        if isinstance(error, ForbiddenError) and failures.needs_login(error):
            console.sessions.failed(address)
            raise FormError("the broker does not know this access key, or the secret key is another") from None
        raise
    if visit.session is not None:
        await console.sessions.end(visit.session.token)
    session = await console.sessions.begin(account, client)
    response = visit.go(_own(visit, visit.fields.text("next")))
    visit.remember(response, session.token)
    return response


async def sign_out(visit: Visit) -> Response:
    """End the session."""
    if visit.session is not None:
        await visit.console.sessions.end(visit.session.token)
    return visit.go(visit.url("/login"))


def _own(visit: Visit, wanted: str) -> str:
    """An address of this console: what was asked for before the login, or the first page."""
    base = visit.console.settings.base_path
    rest = wanted.removeprefix(base)
    is_own = wanted.startswith(base) and rest.startswith("/") and rest[1:2] not in ("/", "\\")
    return wanted if is_own and wanted.isprintable() else visit.url("/")
