"""Settings of brokers and name servers among themselves: the section `peers` of BrokerConfig."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from aerobee_store.config import Section
from aerobee_store.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersConfig(Section):
    """The secret of the cluster, and the brokers that cannot prove that they have it."""

    section: ClassVar[str] = "peers"

    access_key: str = "aerobee"
    """The name under which brokers sign, as RocketMQ's innerClientAuthenticationCredentials; no account may have it."""
    secret_key_file: Path | None = None
    """A file with the secret that all brokers and name servers of the cluster share; None: they believe each other."""
    addresses: tuple[str, ...] = ()
    """Private IP addresses or networks of RocketMQ's brokers, which replicate without authentication."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", self.access_key):
            raise ConfigError("peers.access_key: needs 1 to 128 letters, digits, '_', '.' or '-'; choose another")
        for text in self.addresses:
            try:
                network = ipaddress.ip_network(text)
            except ValueError:
                raise ConfigError(f"peers.addresses: {text!r} is not an IP address or network; see 10.0.0.7") from None
            if not network.is_private or network.prefixlen == 0:
                raise ConfigError(
                    f"peers.addresses: {text} is not private; brokers that cannot authenticate need a private network"
                )

    def names(self, host: str) -> bool:
        """Whether `addresses` has this IP address."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in ipaddress.ip_network(text) for text in self.addresses)
