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
    """What brokers and name servers prove to each other, and the brokers that cannot."""

    section: ClassVar[str] = "peers"

    access_key: str = "aerobee"
    """The name under which brokers sign, as RocketMQ's innerClientAuthenticationCredentials; no account may have it."""
    secret_key_file: Path | None = None
    """A file with the secret that all brokers and name servers of the cluster share; None: they believe each other."""
    certificate: Path | None = None
    """The certificate of this broker for TLS with other brokers and name servers, PEM, with its chain; None: they talk
    in plaintext. Loaded again when it changes."""
    key: Path | None = None
    """The key of the certificate, PEM."""
    authorities: Path | None = None
    """The authorities that sign the certificates of the cluster's brokers, and of nobody else, PEM."""
    addresses: tuple[str, ...] = ()
    """Private IP addresses or networks of RocketMQ's brokers and name servers, which replicate without authentication
    and without TLS."""
    private_network: bool = False
    """Whether only trusted machines reach the ports for brokers, which then need neither secret nor certificate."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", self.access_key):
            raise ConfigError("peers.access_key: needs 1 to 128 letters, digits, '_', '.' or '-'; choose another")
        given = {"certificate": self.certificate, "key": self.key, "authorities": self.authorities}
        missing = [name for name, path in given.items() if path is None]
        if 0 < len(missing) < len(given):
            raise ConfigError(f"peers.{missing[0]}: missing; set certificate, key and authorities together")
        if not missing and self.secret_key_file is None:
            raise ConfigError("peers.secret_key_file: missing; with peers.certificate brokers also sign their requests")
        for text in self.addresses:
            try:
                network = ipaddress.ip_network(text)
            except ValueError:
                raise ConfigError(f"peers.addresses: {text!r} is not an IP address or network; see 10.0.0.7") from None
            if not network.is_private or network.prefixlen == 0:
                raise ConfigError(
                    f"peers.addresses: {text} is not private; brokers that cannot authenticate need a private network"
                )

    def check_reach(self, reason: str, *, rocketmq_only: bool = False) -> None:
        """Raise ConfigError unless brokers at other machines must prove who they are.

        `reason`: why they would have to, as the beginning of a sentence. `rocketmq_only`: it is enough to name them.
        """
        if self.private_network or (rocketmq_only and self.addresses and self.secret_key_file is None):
            return
        otherwise = "or set peers.private_network = true if only trusted machines reach this network"
        if self.secret_key_file is None:
            raise ConfigError(
                f"peers.secret_key_file: missing; {reason} must prove who they are. Name a file with a secret that all "
                f"brokers of the cluster share, made with `openssl rand -hex 20`, {otherwise}"
            )
        if self.certificate is None:
            raise ConfigError(
                f"peers.certificate: missing; {reason} must use TLS. Give this broker a certificate of the cluster's "
                f"own authority (peers.certificate, peers.key, peers.authorities; see docs/replication.md), {otherwise}"
            )

    def names(self, host: str) -> bool:
        """Whether `addresses` has this IP address."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in ipaddress.ip_network(text) for text in self.addresses)
