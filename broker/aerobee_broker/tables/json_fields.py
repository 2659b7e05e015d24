"""Typed access to the fields of one object of a configuration file, and to its remaining fields."""

from __future__ import annotations

from collections.abc import Mapping

from aerobee_broker.errors import TableFormatError

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


class JsonFields:
    """The fields of one object, each taken at most once.

    A field that is missing or null has its default, as in RocketMQ; one of another type or out of range raises
    TableFormatError with its full name.
    """

    def __init__(self, name: str, value: object) -> None:
        if not isinstance(value, dict):
            raise TableFormatError(name, f"expected an object, found {_shown(value)}")
        self.name = name
        self._left: dict[str, object] = dict(value)

    def _take(self, field: str) -> object:
        return self._left.pop(field, None)

    def integer(self, field: str, default: int, *, minimum: int = 0, maximum: int = INT32_MAX) -> int:
        value = self._take(field)
        return default if value is None else checked_integer(self.full_name(field), value, minimum, maximum)

    def boolean(self, field: str, default: bool) -> bool:
        value = self._take(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise TableFormatError(self.full_name(field), f"expected true or false, found {_shown(value)}")
        return value

    def text(self, field: str, default: str) -> str:
        value = self._take(field)
        if value is None:
            return default
        if not isinstance(value, str):
            raise TableFormatError(self.full_name(field), f"expected a string, found {_shown(value)}")
        return value

    def texts(self, field: str) -> dict[str, str]:
        """A map from string to string; empty if missing."""
        items = self.mapping(field)
        for key, value in items.items():
            if not isinstance(value, str):
                raise TableFormatError(f"{self.full_name(field)}.{key}", f"expected a string, found {_shown(value)}")
        return {key: str(value) for key, value in items.items()}

    def objects(self, field: str) -> list[dict[str, object]]:
        """An array of objects; empty if missing."""
        value = self._take(field)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise TableFormatError(self.full_name(field), f"expected an array of objects, found {_shown(value)}")
        return value

    def names(self, field: str) -> list[str]:
        """An array of strings; empty if missing."""
        value = self._take(field)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise TableFormatError(self.full_name(field), f"expected an array of strings, found {_shown(value)}")
        return value

    def mapping(self, field: str) -> dict[str, object]:
        """A map with values of any kind; empty if missing."""
        value = self._take(field)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise TableFormatError(self.full_name(field), f"expected an object, found {_shown(value)}")
        return value

    def integers(self, field: str, *, minimum: int = 0, maximum: int = INT64_MAX) -> tuple[int, ...]:
        """An array of integers; empty if missing."""
        value = self._take(field)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise TableFormatError(self.full_name(field), f"expected an array, found {_shown(value)}")
        name = self.full_name(field)
        return tuple(checked_integer(f"{name}[{index}]", item, minimum, maximum) for index, item in enumerate(value))

    def skip(self, field: str) -> None:
        """Take a field whose value is known otherwise."""
        self._take(field)

    def has(self, field: str) -> bool:
        return self._left.get(field) is not None

    def full_name(self, field: str) -> str:
        return f"{self.name}.{field}"

    def rest(self) -> Mapping[str, object]:
        """The fields that were not taken: a newer RocketMQ may have added them; they are written back unchanged."""
        return self._left


def checked_integer(name: str, value: object, minimum: int, maximum: int) -> int:
    """Return `value` if it is an integer in this range; errors call it `name`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TableFormatError(name, f"expected an integer, found {_shown(value)}")
    if not minimum <= value <= maximum:
        raise TableFormatError(name, f"{value} is out of range {minimum}..{maximum}")
    return value


def _shown(value: object) -> str:
    return "nothing" if value is None else f"{value!r:.60}"
