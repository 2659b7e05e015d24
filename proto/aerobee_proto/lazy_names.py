"""Names of a module that are imported when they are used (PEP 562).

The stubs import gRPC, which takes a tenth of a second and some 10 MB. A broker that serves gRPC by itself needs none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def names_of(*modules: str) -> Callable[[str], Any]:
    """A module's `__getattr__` that finds names in the stub modules `modules`. AttributeError for all others."""

    def find(name: str) -> Any:
        if not name.startswith("__") and ("Stub" in name or "Servicer" in name):
            for module in modules:
                found = getattr(importlib.import_module(module), name, None)
                if found is not None:
                    return found
        raise AttributeError(f"there is no {name!r} here")

    return find
