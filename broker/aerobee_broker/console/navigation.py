"""What the navigation lists: headings, each with its links as address, label and icon."""

from __future__ import annotations

from typing import Final

NAVIGATION: Final = (
    ("", (("/", "Overview", "overview"), ("/topics", "Topics", "topic"), ("/groups", "Groups", "group"))),
)
