"""Values of decoded bodies as pyarrow takes them, checked against the types of their columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa


class BodyError(Exception):
    """A body that does not fit its schema."""


Convert = Callable[[Any], Any]
"""A value as pyarrow takes it. BodyError if its type cannot hold it."""

_RANGES: Final = {pa.int32(): 31, pa.int64(): 63}


def integer(kind: pa.DataType) -> Convert:
    """Whole numbers within the range of their type; true is none."""
    limit = 1 << _RANGES[kind]

    def convert(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int):
            raise BodyError(f"{_shown(value)} is no whole number")
        if not -limit <= value < limit:
            raise BodyError(f"{value} does not fit into {kind}")
        return value

    return convert


def real(value: Any) -> Any:
    """Numbers of any kind."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BodyError(f"{_shown(value)} is no number")
    return float(value)


def instance(kind: type, name: str) -> Convert:
    """Values of one type of Python."""

    def convert(value: Any) -> Any:
        if not isinstance(value, kind):
            raise BodyError(f"{_shown(value)} is no {name}")
        return value

    return convert


def several(item: Convert) -> Convert:
    """Lists, whose items may be null."""

    def convert(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise BodyError(f"{_shown(value)} is no list")
        return [None if each is None else item(each) for each in value]

    return convert


def mapping(item: Convert) -> Convert:
    """Objects with any names."""

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise BodyError(f"{_shown(value)} is no object")
        return [(str(name), None if each is None else item(each)) for name, each in value.items()]

    return convert


def record(items: Mapping[str, Convert], required: frozenset[str] = frozenset()) -> Convert:
    """Objects with these names; others are left out."""

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise BodyError(f"{_shown(value)} is no object")
        if missing := required - value.keys():
            raise BodyError(f"{sorted(missing)[0]!r} is missing")
        found: dict[str, Any] = {}
        for name, item in items.items():
            each = value.get(name)
            if each is not None:
                try:
                    found[name] = item(each)
                except BodyError as error:
                    raise BodyError(f"{name}: {error}") from None
        return found

    return convert


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
