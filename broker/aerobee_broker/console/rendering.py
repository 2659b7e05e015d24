"""Templates: where they are, and how values look in them.

Times are Unix milliseconds; None is a value that is not known.
"""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Final

from google.protobuf.message import Message as ProtobufMessage
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from aerobee_broker.console.drawing import charts
from aerobee_broker.console.settings import ConsoleSettings
from aerobee_broker.console.visit import segment
from aerobee_broker.units import counted, size_text, span_text

_FOLDER: Final = Path(str(resources.files("aerobee_broker.console")))
STATIC: Final = _FOLDER / "static"
UNKNOWN: Final = "\N{EN DASH}"


def make_environment(settings: ConsoleSettings) -> Environment:
    """The templates with their filters and functions."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    version = static_version()
    environment.filters.update(
        number=number, rate=rate, size=size, span=span, age=age, when=when, percent=percent, counted=counted, at=at,
        marked=marked,
        segment=segment,
    )  # fmt: skip
    environment.globals.update(
        asset=lambda name: f"{settings.base_path}/static/{version}/{name}",
        settings=settings,
        now=lambda: int(time.time() * 1000),
        sparkline=charts.sparkline,
        chart=charts.chart,
        share=charts.share,
    )
    return environment


def static_version() -> str:
    """Changes with the contents of the static files."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def at(message: ProtobufMessage, field: str) -> int | None:
    """A timestamp of a protocol message; None if it is unset."""
    return int(getattr(message, field).ToMilliseconds()) if message.HasField(field) else None


def number(value: float | None) -> str:
    """A count."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Something per second: three digits, or whole numbers."""
    if value is None or value != value:
        return UNKNOWN
    if value == 0 or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}".rstrip("0").rstrip(".")


def size(value: float | None) -> str:
    """Bytes."""
    return UNKNOWN if value is None or value != value else size_text(value)


def span(milliseconds: float | None) -> str:
    """A duration."""
    return UNKNOWN if milliseconds is None or milliseconds != milliseconds else span_text(int(milliseconds))


def age(timestamp: int | None) -> str:
    """How long ago a time was; of one in the future, how long until then."""
    if timestamp is None:
        return UNKNOWN
    milliseconds = int(time.time() * 1000) - timestamp
    return span_text(milliseconds) if milliseconds >= 0 else f"in {span_text(-milliseconds)}"


def percent(part: float, whole: float) -> str:
    """A share, without false precision."""
    return f"{100 * part / whole:.0f} %" if whole else UNKNOWN


def marked(text: str) -> Markup:
    """A text of the broker, whose commands stand between backticks."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else escape(part) for index, part in enumerate(parts)
    )


def when(timestamp: int | None, form: str = "full") -> Markup:
    """A time in UTC, which a script shows in the reader's zone; `form` is full, time or age."""
    if timestamp is None:
        return escape(UNKNOWN)
    try:
        moment = datetime.fromtimestamp(timestamp / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # a damaged store may contain any value
        return Markup("{}").format(timestamp)
    whole = moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"
    shown = {"full": whole, "time": whole[11:], "age": age(timestamp)}[form]
    return Markup('<time datetime="{}Z" data-form="{}" title="{} UTC">{}</time>').format(
        whole.replace(" ", "T"), form, whole, shown
    )
