"""The address of a socket, as in settings: `host:port` or `unix:PATH`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aerobee_store.records.decimals import decimal

_UNIX: Final = "unix:"
_PORT_MAX: Final = 65535
_UNIX_PATH_MAX: Final = 107  # bytes; Linux has 108 with the zero at the end


@dataclass(frozen=True, slots=True)
class Address:
    """A host, by IP address or name, and a TCP port (0: any that is free); or `unix:PATH`, a Unix socket, as host."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """`host:port`, `[IPv6]:port` or `unix:PATH`. ValueError if it is none of these."""
        if text.startswith(_UNIX):
            if not 0 < len(text.removeprefix(_UNIX).encode()) <= _UNIX_PATH_MAX or "\0" in text:
                raise ValueError(f"the path of a Unix socket must have 1 to {_UNIX_PATH_MAX} bytes")
            return cls(text, 0)
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = str(ipaddress.IPv6Address(host[1:-1]))
        elif ":" in host:
            raise ValueError("an IPv6 address needs brackets: [address]:port")
        number = decimal(port)
        if not colon or not host or host.strip() != host or number is None:
            raise ValueError("expected host:port")
        if number > _PORT_MAX:
            raise ValueError(f"the port is above {_PORT_MAX}")
        return cls(host, number)

    @property
    def unix_path(self) -> Path | None:
        """The path of a Unix socket; None for TCP."""
        return Path(self.host.removeprefix(_UNIX)) if self.host.startswith(_UNIX) else None

    def __str__(self) -> str:
        if self.host.startswith(_UNIX):
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def dialled(self) -> Address:
        """The address for clients on this machine."""
        return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host), self.port)  # noqa: S104

    @property
    def is_loopback(self) -> bool:
        """Whether only processes on this machine can reach it."""
        if self.host.startswith(_UNIX):
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def is_wildcard(self) -> bool:
        """Whether the address means every interface."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False
