"""What a console is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from aerobee_client import Tls


class ConsoleError(Exception):
    """A console cannot be started like this. The text names the cause and the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Where the broker is, and how browsers reach the console."""

    endpoint: str
    tls: Tls | None = None
    timeout_seconds: float = 3.0
    """Of each call to the broker."""
    url: str = ""
    """How browsers reach the console behind a proxy, with scheme, name and base path; empty: as it listens."""
    read_only: bool = False
    certificate: Path | None = None
    """With `key`: the console serves HTTPS."""
    key: Path | None = None

    def __post_init__(self) -> None:
        if self.url:
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
                raise ConsoleError(
                    f"--url {self.url!r} is not an address; give one such as https://example.org/aerobee"
                )
        if (self.certificate is None) != (self.key is None):
            raise ConsoleError("a certificate needs its key; give both --https-cert and --https-key")

    @property
    def base_path(self) -> str:
        """What each path begins with, such as `/aerobee`; empty for none."""
        return urlsplit(self.url).path.rstrip("/")

    @property
    def host(self) -> str | None:
        """The name by which browsers know the console besides addresses and `localhost`."""
        return urlsplit(self.url).hostname

    @property
    def is_https(self) -> bool:
        """Whether browsers use HTTPS, so that the cookie must not travel without."""
        return self.certificate is not None or urlsplit(self.url).scheme == "https"

    @property
    def has_own_certificate(self) -> bool:
        """Whether unsigned calls would be those of the console's own client certificate, and not of a visitor."""
        return self.tls is not None and self.tls.certificate is not None
