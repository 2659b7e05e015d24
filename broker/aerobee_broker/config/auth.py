"""The settings of the section `auth`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from aerobee_store.config import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthConfig(Section):
    """Authentication of callers."""

    section: ClassVar[str] = "auth"

    # a file of accounts, see accounts.py; reloaded when it changes. None: no authentication
    accounts: Path | None = None
