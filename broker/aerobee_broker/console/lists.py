"""Lists that the broker searches, sorts and turns the pages of, as the address of a page asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from aerobee_broker.console.forms import Fields

PAGE_COUNT: Final = 50


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be listed."""

    search: str
    order: str
    descending: bool
    page_token: str
    system: bool

    @classmethod
    def read(cls, query: Fields, orders: Sequence[str], default: str, *, descending: bool = False) -> Self:
        """From the address; the first page in the default order without one."""
        order = query.chosen("sort", "Order", orders, default)
        return cls(
            search=query.text("q")[:255],
            order=order,
            descending=query.is_on("down") if "sort" in query else descending,
            page_token=query.text("page"),
            system=query.is_on("system"),
        )
