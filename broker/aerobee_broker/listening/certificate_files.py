"""A certificate's files, loaded again when they change: renewing a certificate needs no restart."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Final, NamedTuple

from aerobee_store.errors import ConfigError

_log = logging.getLogger(__name__)
TLS_AUTHORITIES: Final = "tls.client_authorities"


class CertificateContents(NamedTuple):
    """PEM: the certificate with its chain, its key, and the authorities that sign certificates of the other side."""

    certificate: bytes
    key: bytes
    authorities: bytes | None


class CertificateFiles:
    """A certificate (with the chain that leads to it, if any), its key, and the authorities that sign certificates of
    the other side, if any: PEM."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        authorities: Path | None = None,
        *,
        section: str = "tls",
        authorities_setting: str = TLS_AUTHORITIES,
    ) -> None:
        """The names of the settings are for errors: `section` has `certificate` and `key`."""
        self._certificate = certificate
        self._key = key
        self._authorities = authorities
        self._section = section
        self._authorities_setting = authorities_setting
        self._seen: object = None

    def load(self) -> CertificateContents:
        """Read the files. ConfigError with the file and the cause."""
        self._seen = self._stamp()
        contents = []
        for setting, path in (("certificate", self._certificate), ("key", self._key)):
            try:
                contents.append(path.read_bytes())
            except OSError as error:
                raise ConfigError(
                    f"{self._section}.{setting}: {path}: {error.strerror}; check the path and its permissions"
                ) from None
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self._section}.certificate, {self._section}.key: {self._certificate} and {self._key} are not a "
                f"certificate and its key: {error}; give both as PEM, the key without a password"
            ) from None
        authorities = None
        if self._authorities is not None:
            authorities = load_authorities(context, self._authorities, self._authorities_setting)
        return CertificateContents(contents[0], contents[1], authorities)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the files into this context for new connections. They were checked before."""
        context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
        if self._authorities is not None:
            load_authorities(context, self._authorities, self._authorities_setting)

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
        for path in (self._certificate, self._key, self._authorities):
            if path is None:
                continue
            try:
                status = path.stat()
                stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                stamps.append((0, 0, 0))
        return stamps


def load_authorities(context: ssl.SSLContext, file: Path, setting: str = TLS_AUTHORITIES) -> bytes:
    """Trust certificates signed by these authorities; return the content of the file. ConfigError."""
    try:
        contents = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting}: {file}: {error.strerror}; check the path and its permissions") from None
    try:
        context.load_verify_locations(file)
    except OSError as error:
        raise ConfigError(
            f"{setting}: {file} has no certificates: {error}; give those of the authorities as PEM"
        ) from None
    return contents
