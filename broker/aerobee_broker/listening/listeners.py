"""The addresses for clients: plaintext, and TLS with its certificate if configured.

Each new connection checks whether the certificate's files have changed, so renewing it needs no restart. An unusable
pair (half written, or key and certificate do not match) is logged once, and the previous one stays in use. A
development certificate can be made at the start (listening/certificates.py).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from aerobee_broker.config import Address, BrokerConfig
from aerobee_broker.errors import ListenError
from aerobee_broker.front.accepting import Security
from aerobee_broker.front.sockets import Front, remove_stale_socket
from aerobee_broker.listening.certificate_files import CertificateFiles, load_authorities
from aerobee_broker.listening.certificates import Issued, development_certificate

_log = logging.getLogger(__name__)
AUTHORITY_FILE: Final = "dev-ca.crt"


class Listening(Struct, frozen=True):
    """The addresses that were bound."""

    grpc: Address
    tls: Address | None = None
    remoting: Address | None = None

    def __iter__(self) -> Iterator[Address]:
        yield self.grpc
        if self.tls is not None:
            yield self.tls
        if self.remoting is not None:
            yield self.remoting


def check_ports(config: BrokerConfig) -> None:
    """Raise ListenError if gRPC could not listen there: before the store recovers, and with the reason, which grpcio
    does not report."""
    for setting, address in (("listen.grpc", config.listen.grpc), ("listen.tls", config.listen.tls)):
        if address is None:
            continue
        try:
            if address.unix_path is not None:
                remove_stale_socket(address.unix_path)
                continue
            family, kind, protocol, _, name = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(name)
        except OSError as error:
            raise ListenError(setting, address, error.strerror or str(error)) from None


def check_certificate(config: BrokerConfig) -> None:
    """Raise ConfigError if the configured certificate cannot be used: before the store recovers."""
    if config.tls.certificate is not None and config.tls.key is not None:
        CertificateFiles(config.tls.certificate, config.tls.key, config.tls.client_authorities).load()
    elif config.tls.client_authorities is not None:
        load_authorities(_context(config), config.tls.client_authorities)


def listen_native(front: Front, config: BrokerConfig) -> Listening:
    """Bind the configured addresses. With a certificate, the plaintext address also takes TLS.

    Raises ListenError, and ConfigError for an unusable certificate.
    """
    context = TlsContexts(config) if config.tls.certificate is not None or config.dev else None
    tls = None
    if config.listen.tls is not None:
        address = config.listen.tls
        tls = _listening("listen.tls", address, lambda: front.listen(address.host, address.port, "tls", context))
    plain = config.listen.grpc
    security: Security = "plain" if context is None else "tls" if config.is_plaintext_refused else "both"
    path = plain.unix_path
    if path is not None:
        try:
            front.listen_unix(path, int(config.listen.unix_mode, 8), security, context)
        except OSError as error:
            raise ListenError("listen.grpc", plain, error.strerror or str(error)) from None
        return Listening(plain, tls)
    port = _listening("listen.grpc", plain, lambda: front.listen(plain.host, plain.port, security, context))
    return Listening(port, tls)


class TlsContexts:
    """Gives the context for a TLS connection: of the certificate's files as they are now, or one made on first use."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._context = _context(config)
        self._making = asyncio.Lock()
        self._made = False
        self._files: CertificateFiles | None = None
        if config.tls.certificate is not None and config.tls.key is not None:
            self._files = CertificateFiles(config.tls.certificate, config.tls.key, config.tls.client_authorities)
            self._files.load()
            self._files.load_into(self._context)
        elif config.listen.tls is not None:  # clients may want to trust it before they connect
            self._make()
            self._made = True

    async def __call__(self) -> ssl.SSLContext:
        """ConfigError if no context can be made."""
        if self._files is not None:
            if self._files.load_if_changed() is not None:
                context = _context(self._config)  # a context cannot remove an authority
                self._files.load_into(context)
                self._context = context
        else:
            async with self._making:
                if not self._made:
                    await asyncio.to_thread(self._make)
                    self._made = True
        return self._context

    def _make(self) -> None:
        issued = make_certificate(self._config)
        with tempfile.NamedTemporaryFile() as file:  # ssl reads only files; nobody else can read this one
            file.write(issued.key + issued.certificate)
            file.flush()
            self._context.load_cert_chain(file.name)
        if self._config.tls.client_authorities is not None:
            load_authorities(self._context, self._config.tls.client_authorities)


def _context(config: BrokerConfig) -> ssl.SSLContext:
    """A context without certificate and authorities, which are loaded into it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["h2"])
    if config.tls.client_authorities is not None:
        is_required = config.tls.client_certificates == "required"
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return context


def make_certificate(config: BrokerConfig) -> Issued:
    """For development: a certificate and its authority. The authority's certificate is written to the store for
    clients."""
    issued = development_certificate((config.listen.tls or config.listen.grpc).host)
    path = config.store.directory / "config" / AUTHORITY_FILE
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(issued.authority)
    _log.info("development certificate made; clients that verify it must trust %s", path)
    return issued


def _listening(setting: str, address: Address, bind: Callable[[], int]) -> Address:
    try:
        return Address(address.host, bind())
    except OSError as error:
        raise ListenError(setting, address, error.strerror or str(error)) from None
