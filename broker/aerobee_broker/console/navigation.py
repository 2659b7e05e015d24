"""What the navigation lists: headings, each with its links as address, label and icon."""

from __future__ import annotations

from typing import Final

Links = tuple[tuple[str, str, str], ...]
_ALL: Final[tuple[tuple[str, Links], ...]] = (
    ("", (("/", "Overview", "overview"), ("/topics", "Topics", "topic"), ("/groups", "Groups", "group"))),
    (
        "Messages",
        (
            ("/dead-letters", "Dead letters", "dead"),
            ("/delayed", "Delayed", "clock"),
            ("/transactions", "Transactions", "pending"),
        ),
    ),
    (
        "Broker",
        (
            ("/clients", "Clients", "client"),
            ("/store", "Store, brokers", "store"),
            ("/settings", "Settings", "settings"),
            ("/accounts", "Accounts", "account"),
            ("/changes", "Changes", "change"),
        ),
    ),
)
_OF_EVERYBODY: Final = frozenset({"/"})
_OF_OPERATORS: Final = frozenset({"/accounts", "/changes"})
"""What `view = true` does not open: the names of accounts, and what people asked for."""


def navigation(*, looks: bool, operates: bool) -> list[tuple[str, Links]]:
    """What an account can open. `looks`: its `view` or `admin` is true; `operates`: its `admin` is."""
    found = []
    for heading, links in _ALL:
        shown = tuple(
            link for link in links if link[0] in _OF_EVERYBODY or (operates if link[0] in _OF_OPERATORS else looks)
        )
        if shown:
            found.append((heading, shown))
    return found
