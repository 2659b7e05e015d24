"""How brokers and name servers of a cluster know each other: a secret, and certificates of one authority.

    secret         requests are signed with it; replica and master prove to each other that they have it
    certificates   every connection among brokers is TLS with certificates on both sides, signed by the authorities of
                   the cluster; the names in them do not matter
    addresses      of RocketMQ's brokers and name servers, with which it is plaintext without a proof

Whatever listens for brokers or connects to them asks this class, and every TLS context comes from `_context`.
"""

from __future__ import annotations

import logging
import ssl
from contextlib import suppress
from typing import Final, Literal

from aerobee_broker.config.peers import PeersConfig
from aerobee_broker.errors import UnauthorizedError
from aerobee_broker.front.accepting import TlsContext
from aerobee_broker.listening.certificate_files import CertificateFiles
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.remoting_wire.signature import PeerKey
from aerobee_store.errors import ConfigError

_log = logging.getLogger(__name__)
_SETTING: Final = "peers.certificate"
_HANDSHAKE_ROUNDS: Final = 4  # more than TLS 1.2 and 1.3 need


class Peers:
    """What this process proves to other brokers, and asks of them. Create it with `load`."""

    def __init__(self, config: PeersConfig, key: PeerKey | None, certificate: PeerCertificate | None) -> None:
        self._config = config
        self.key: Final = key
        self._certificate = certificate

    @classmethod
    def load(cls, config: PeersConfig) -> Peers:
        """Read secret and certificate. Blocking. Raises ConfigError."""
        certificate = None
        if config.certificate is not None and config.key is not None and config.authorities is not None:
            certificate = PeerCertificate(config)
        return cls(config, PeerKey.load(config), certificate)

    @property
    def accepting(self) -> TlsContext | None:
        """For a port that brokers connect to; None: it is plaintext."""
        return None if self._certificate is None else self._certificate.for_accepted

    def context_to(self, host: str) -> ssl.SSLContext | None:
        """For a connection to a broker or name server at this host; None: it is plaintext."""
        if self._certificate is None or self._config.names(host):
            return None
        return self._certificate.context("connecting")

    def sign(self, request: Command) -> None:
        """Sign a request to another broker, if there is a secret."""
        if self.key is not None:
            self.key.sign(request)

    def names(self, host: str) -> bool:
        """Whether the address is that of a RocketMQ, which proves nothing."""
        return self._config.names(host)

    def admit(self, host: str, *, is_tls: bool) -> str:
        """Why a connection from this host to a port for brokers alone is refused; empty: it is not."""
        if is_tls or self._config.names(host):
            return ""
        if self._certificate is not None:
            return (
                f"it does not use TLS; set peers.certificate, peers.key and peers.authorities there, or for a RocketMQ "
                f"in a private network name {host} in peers.addresses"
            )
        return f"{host} is not in peers.addresses" if self._config.addresses and self.key is None else ""

    def check(self, request: Command, connection: Connection | None) -> None:
        """Raise UnauthorizedError unless a request comes from a broker or a name server of this cluster. `connection`:
        that on which it came, if there is one."""
        if self._certificate is not None and connection is not None and (refusal := self._refusal(connection)):
            raise UnauthorizedError(f"request {request.code:d} is one of brokers: {refusal}")
        if self.key is not None:
            self.key.check(request)

    def _refusal(self, connection: Connection) -> str:
        return self.admit(connection.peer[0], is_tls=connection.is_of_broker)

    def is_named(self, request: Command) -> bool:
        """Whether a request claims to be signed with the secret."""
        return self.key is not None and self.key.is_named(request)


class PeerCertificate:
    """The contexts of both sides of a connection, made anew when the files change."""

    def __init__(self, config: PeersConfig) -> None:
        assert config.certificate is not None, "checked by the configuration"
        assert config.key is not None, "likewise"
        self._name = str(config.certificate)
        self._files = CertificateFiles(
            config.certificate,
            config.key,
            config.authorities,
            section="peers",
            authorities_setting="peers.authorities",
        )
        self._files.load()
        self._contexts = self._made()

    def context(self, side: Literal["accepting", "connecting"]) -> ssl.SSLContext:
        """The context of one side of a new connection."""
        if self._files.load_if_changed() is not None:
            try:
                self._contexts = self._made()
            except ConfigError as error:
                _log.error("certificate not replaced, the previous one stays in use: %s", error)
        accepting, connecting = self._contexts
        return accepting if side == "accepting" else connecting

    async def for_accepted(self) -> ssl.SSLContext:
        """The context of a connection that was accepted."""
        return self.context("accepting")

    def _made(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Both contexts. ConfigError if a broker with the same certificate could not connect to this one."""
        contexts = _context(ssl.PROTOCOL_TLS_SERVER, self._files), _context(ssl.PROTOCOL_TLS_CLIENT, self._files)
        try:
            _shake_hands(*contexts)
        except ssl.SSLError as error:
            cause = getattr(error, "verify_message", "") or error.reason or str(error)
            raise ConfigError(
                f"{_SETTING}: {self._name} does not serve brokers: {cause}; it must be valid today, signed by "
                f"peers.authorities, and be allowed for both sides of TLS (serverAuth and clientAuth, or neither)"
            ) from None
        return contexts


def _context(protocol: int, files: CertificateFiles) -> ssl.SSLContext:
    """One side of a connection between brokers: it shows the certificate, and demands one of the same authorities.

    The authorities are the cluster's own, so every certificate of theirs is a broker's: its names are not compared.
    """
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    files.load_into(context)
    return context


def _shake_hands(accepting: ssl.SSLContext, connecting: ssl.SSLContext) -> None:
    """A handshake in memory, of both sides of this process. Raises ssl.SSLError if one of them refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = accepting.wrap_bio(to_server, to_client, server_side=True)
    client = connecting.wrap_bio(to_client, to_server)
    for _ in range(_HANDSHAKE_ROUNDS):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
