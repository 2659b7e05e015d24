"""What the navigation lists: headings, each with its links as address, label and icon."""

from __future__ import annotations

from typing import Final

NAVIGATION: Final = (
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
