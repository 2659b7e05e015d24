"""The settings of the section `tls`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from aerobee_store.config import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig(Section):
    """The certificate for TLS, and its key: PEM files. Reloaded when they change."""

    section: ClassVar[str] = "tls"

    certificate: Path | None = None  # including its chain; None: made when needed, with broker.dev only
    key: Path | None = None
    client_authorities: Path | None = (
        None  # the authorities that sign certificates of clients, PEM; None: clients are not asked for one
    )
    client_certificates: Literal["required", "optional"] = "required"  # with client_authorities
