"""Modules that are imported at their first use, so that a broker without clients starts fast and stays small.

    if TYPE_CHECKING:
        import numpy as np
    else:
        np = deferred("numpy")

numpy takes a fifth of a broker's start and of its memory at rest, and so do the modules that handle many records at
once. Modules that a broker at rest imports defer them. `load_deferred` imports them all: the broker calls it in a
thread when its first client connects. A call that comes before the end of that waits, once, for a tenth of a second.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any, Final

_NAMES: Final[dict[str, None]] = {"numpy.ma": None}  # numpy itself defers it to its first `unique`


class _Deferred(ModuleType):
    """A proxy of a module. Used names become attributes, which are as fast as those of the module."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)
        return value


def deferred(name: str) -> ModuleType:
    """The module of this name, imported at the first use of one of its names."""
    _NAMES[name] = None
    return _Deferred(name)


def load_deferred() -> None:
    """Import every deferred module now."""
    for name in list(_NAMES):
        import_module(name)
