"""The settings of the section `groups`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from aerobee_store.config import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsConfig(Section):
    """Creation of consumer groups on first use."""

    section: ClassVar[str] = "groups"

    auto_create: bool | None = None  # autoCreateSubscriptionGroup; None: only with broker.dev
