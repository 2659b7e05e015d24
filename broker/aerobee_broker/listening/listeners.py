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
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from aerobee_broker.config import Address, BrokerConfig
from aerobee_broker.errors import ListenError
from aerobee_broker.front.sockets import Front, Security, remove_stale_socket
from aerobee_broker.listening.certificates import Issued, development_certificate
from aerobee_store.errors import ConfigError

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
        _load_authorities(_context(config), config.tls.client_authorities)


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
            _load_authorities(self._context, self._config.tls.client_authorities)


class CertificateContents(NamedTuple):
    """PEM: the certificate with its chain, its key, and the authorities that sign certificates of clients."""

    certificate: bytes
    key: bytes
    client_authorities: bytes | None


class CertificateFiles:
    """A certificate (with the chain that leads to it, if any), its key, and the authorities of clients, if any: PEM."""

    def __init__(self, certificate: Path, key: Path, client_authorities: Path | None = None) -> None:
        self._certificate = certificate
        self._key = key
        self._client_authorities = client_authorities
        self._seen: object = None

    def load(self) -> CertificateContents:
        """Read the files. ConfigError with the file and the cause."""
        self._seen = self._stamp()
        contents = []
        for setting, path in (("tls.certificate", self._certificate), ("tls.key", self._key)):
            try:
                contents.append(path.read_bytes())
            except OSError as error:
                raise ConfigError(f"{setting}: {path}: {error.strerror}; check the path and its permissions") from None
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"tls.certificate, tls.key: {self._certificate} and {self._key} are not a certificate and its key: "
                f"{error}; give both as PEM, the key without a password"
            ) from None
        authorities = None
        if self._client_authorities is not None:
            authorities = _load_authorities(context, self._client_authorities)
        return CertificateContents(contents[0], contents[1], authorities)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the files into this context for new connections. They were checked before."""
        context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
        if self._client_authorities is not None:
            _load_authorities(context, self._client_authorities)

    def load_if_changed(self) -> CertificateContents | None:
        """The files if they have changed since the last read and are usable; otherwise None.

        Called for each connection; by grpcio's server from a thread of its own.
        """
        if self._stamp() == self._seen:
            return None
        try:
            loaded = self.load()
        except ConfigError as error:
            _log.error("certificate not replaced, the previous one stays in use: %s", error)
            return None
        _log.info("certificate replaced file=%s", self._certificate)
        return loaded

    def _stamp(self) -> object:
        stamps = []
        for path in (self._certificate, self._key, self._client_authorities):
            if path is None:
                continue
            try:
                status = path.stat()
                stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                stamps.append((0, 0, 0))
        return stamps


def _context(config: BrokerConfig) -> ssl.SSLContext:
    """A context without certificate and authorities, which are loaded into it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    if config.tls.client_authorities is not None:
        is_required = config.tls.client_certificates == "required"
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return context


def _load_authorities(context: ssl.SSLContext, file: Path) -> bytes:
    """Trust client certificates signed by these authorities; return the content of the file. ConfigError."""
    try:
        contents = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"tls.client_authorities: {file}: {error.strerror}; check the path and its permissions"
        ) from None
    try:
        context.load_verify_locations(file)
    except OSError as error:
        raise ConfigError(
            f"tls.client_authorities: {file} has no certificates: {error}; give those of the authorities as PEM"
        ) from None
    return contents


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
