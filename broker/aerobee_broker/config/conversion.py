"""Converts the values of settings: text, TOML and other types to the type of a setting, and a setting to text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, get_args, get_origin

from aerobee_broker.config.address import Address
from aerobee_store.config import checked
from aerobee_store.errors import ConfigError
from aerobee_store.records.decimals import amount

Sections = Mapping[str, Mapping[str, Any]]
"""The types of all settings: by section, then by key."""
_SIZE_UNITS: Final = {"": 1} | {
    unit + end: 1 << 10 * power for power, unit in enumerate("kmgt", 1) for end in ("", "b", "ib")
}


def known_names(sections: Sections, name: str) -> str:
    """The advice for an unknown setting: the names that exist."""
    section = name.partition(".")[0]
    known = sections.get(section)
    if known is None:
        return f"; sections are {', '.join(sections)}"
    return f"; [{section}] has {', '.join(sorted(known))}"


def converted(name: str, kind: Any, value: object) -> object:
    """Convert `value`, from TOML or text, to the type of the setting."""
    if get_origin(kind) is UnionType:  # every optional setting is `kind | None`, and None cannot be written
        kind = next(part for part in get_args(kind) if part is not type(None))
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(plain) is tuple:  # as text with ";" or ",", as in RocketMQ
        part_kind = get_args(plain)[0]
        parts = re.split("[;,]", value) if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            what = "paths, as ['/a', '/b']" if part_kind is Path else "whole numbers, as [4, 16]"
            raise ConfigError(f"{name}: {value!r} is not a list of {what}")
        value = tuple(converted(name, part_kind, part) for part in parts if part != "")
    elif plain is Address and not isinstance(value, Address):
        try:
            value = Address.parse(value if isinstance(value, str) else "")
        except ValueError as error:
            raise ConfigError(f"{name}: {value!r} is not an address: {error}, such as 127.0.0.1:8081") from None
    elif plain is Path and isinstance(value, str | Path):
        if not str(value):
            raise ConfigError(f"{name}: the path is empty; name a directory")
        value = Path(value).expanduser()
    elif plain is int and isinstance(value, str):
        size = amount(value.strip().lower(), _SIZE_UNITS)
        if size is None:
            raise ConfigError(f"{name}: {value!r} is not a whole number; sizes may have a unit, such as 64MiB")
        value = size
    return checked(name, value, kind, from_text=True)


def setting_text(value: object) -> str:
    """A value as text for `setting_of_text`; empty for None, which has no text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:.15g}" if isinstance(value, float) else str(value)
