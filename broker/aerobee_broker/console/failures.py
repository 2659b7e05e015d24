"""Errors as pages: what went wrong, in the words of the broker, and what to do next."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from aerobee_broker.console.forms import FormError
from aerobee_broker.console.visit import Visit
from aerobee_client import (
    BadRequestError,
    ClientError,
    DeadlineError,
    ForbiddenError,
    InvalidEndpointError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    UnavailableError,
    UnsupportedError,
)

RETRY_SECONDS: Final = 3
"""After which a page that could not be made is asked for again."""
_UNAUTHORIZED: Final = 40100  # to 40199

# The first that fits: status, heading, and whether another try may help by itself.
_TABLE: Final[tuple[tuple[type[Exception], int, str, bool], ...]] = (
    (FormError, 400, "That input cannot be used", False),
    (NotFoundError, 404, "Not found", False),
    (ForbiddenError, 403, "Not permitted", False),
    (BadRequestError, 400, "The broker refused that", False),
    (TooManyRequestsError, 429, "The broker is busy", True),
    (UnsupportedError, 501, "This broker does not have that yet", False),
    (UnavailableError, 503, "The broker does not answer", True),
    (DeadlineError, 504, "The broker did not answer in time", True),
    (InvalidEndpointError, 500, "The console is set up wrongly", False),
    (ClientError, 502, "The broker failed", True),
)
KNOWN: Final = (FormError, ClientError)
"""What pages and actions may raise."""


def needs_login(error: Exception) -> bool:
    """Whether the broker did not accept the signature, or misses one."""
    return isinstance(error, ForbiddenError) and _UNAUTHORIZED <= error.code < _UNAUTHORIZED + 100


def status_of(error: Exception) -> int:
    """The code of HTTP for an error of KNOWN."""
    return error.status if isinstance(error, FormError) else _row(error)[1]


def text_of(error: Exception) -> str:
    """Cause and next step, for people: the broker's own words without the number of its code."""
    return error.server_message if isinstance(error, ServerError) and error.server_message else str(error)


def failure_page(visit: Visit, error: Exception) -> Response:
    """The page for an error of KNOWN."""
    _, _, heading, again = _row(error)
    visit.status = status_of(error)
    return visit.page("failure.html", heading=heading, text=text_of(error), retry_seconds=RETRY_SECONDS if again else 0)


def defect_page(visit: Visit) -> Response:
    """The page for an error that is not in KNOWN: a defect, which is in the log."""
    visit.status = 500
    text = "This is a defect. The log of the console has the details; please report it with them."
    return visit.page("failure.html", heading="The console failed", text=text, retry_seconds=0)


def _row(error: Exception) -> tuple[type[Exception], int, str, bool]:
    return next(row for row in _TABLE if isinstance(error, row[0]))
