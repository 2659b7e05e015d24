"""Credentials that sign each call, and TLS."""

from __future__ import annotations

import hashlib
import hmac
import os
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc

from aerobee_client.errors import ConfigurationError

ALGORITHM = "MQv2-HMAC-SHA1"


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account of the broker. The secret key is never sent: calls carry a signature of the time."""

    access_key: str
    secret_key: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.access_key or not self.access_key.isascii() or set(self.access_key) & set(", /="):
            raise ConfigurationError(f"the access key {self.access_key!r} is empty or contains an invalid character")
        if not self.secret_key:
            raise ConfigurationError(f"the secret key of {self.access_key!r} is empty; give both keys")

    def headers(self) -> tuple[tuple[str, str], ...]:
        """The headers of a call made now, as RocketMQ's clients sign it."""
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        signature = hmac.new(self.secret_key.encode(), now.encode(), hashlib.sha1).hexdigest()
        value = f"{ALGORITHM} Credential={self.access_key}, SignedHeaders=x-mq-date-time, Signature={signature}"
        return (("x-mq-date-time", now), ("authorization", value))

    @classmethod
    def load(cls, file: Path) -> Self:
        """Load a TOML file with `access_key` and `secret_key`. ConfigurationError if one is missing."""
        try:
            found = tomllib.loads(file.read_bytes().decode())
        except OSError as error:
            raise ConfigurationError(f"credentials {file}: {error.strerror}; check the path") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"credentials {file}: not valid TOML: {error}") from None
        keys = {name: found.get(name) for name in ("access_key", "secret_key")}
        if not all(isinstance(key, str) for key in keys.values()):
            raise ConfigurationError(f'credentials {file}: needs access_key = "..." and secret_key = "..."')
        return cls(str(keys["access_key"]), str(keys["secret_key"]))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self | None:
        """Credentials from AEROBEE_ACCESS_KEY and AEROBEE_SECRET_KEY, or the file named by AEROBEE_CREDENTIALS; else
        None. `environment`: that of the process by default."""
        environment = os.environ if environment is None else environment
        access_key, secret_key = environment.get("AEROBEE_ACCESS_KEY"), environment.get("AEROBEE_SECRET_KEY")
        if access_key or secret_key:
            return cls(access_key or "", secret_key or "")
        if file := environment.get("AEROBEE_CREDENTIALS"):
            return cls.load(Path(file))
        return None


@dataclass(frozen=True, slots=True)
class Tls:
    """Use TLS, and accept brokers whose certificate one of `authorities` has signed.

    `authorities` is a PEM file: of certificate authorities, or the broker's certificate if it is self-signed. None:
    gRPC's own list. The certificate must contain the dialled name or address.

    `certificate` and `key` are PEM files for a broker that requires a client certificate.
    """

    authorities: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("a client certificate needs its key; give both")

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For gRPC. ConfigurationError if a file cannot be read."""
        return grpc.ssl_channel_credentials(
            _contents("TLS authorities", self.authorities),
            _contents("TLS key", self.key),
            _contents("TLS certificate", self.certificate),
        )


def _contents(what: str, file: Path | None) -> bytes | None:
    if file is None:
        return None
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{what} {file}: {error.strerror}; check the path") from None
