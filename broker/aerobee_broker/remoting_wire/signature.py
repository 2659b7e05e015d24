"""Signatures of remoting requests, and the secret with which the brokers of a cluster sign theirs.

A client signs the values of all fields except the signature, in the order of their names, followed by the body: base64
of the HMAC-SHA1. Brokers of RocketMQ sign requests to each other in the same way.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

from msgspec import Struct

from aerobee_broker.config.peers import PeersConfig
from aerobee_broker.errors import UnauthorizedError
from aerobee_broker.remoting_wire.frame import Command
from aerobee_store.errors import ConfigError

_SIGNATURE: Final = "Signature"
_ACCESS_KEY: Final = "AccessKey"
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_LAST_UNSIGNED_VERSION: Final = 399  # clients up to this version add _UNIQUE_KEY_QUERY after signing


def signed_parts(request: Command) -> tuple[str, str, bytes]:
    """Access key, signature, and the signed bytes. UnauthorizedError without a signature."""
    fields = request.fields
    access_key, signature = fields.get(_ACCESS_KEY), fields.get(_SIGNATURE)
    if not access_key or not signature:
        raise UnauthorizedError("this broker requires credentials; give the client an access key and a secret key")
    left_out = {_SIGNATURE}
    if request.version <= _LAST_UNSIGNED_VERSION:
        left_out.add(_UNIQUE_KEY_QUERY)
    values = [fields[name] for name in sorted(fields) if name not in left_out]
    return access_key, signature, "".join(values).encode("utf-8", "replace") + request.body


class PeerKey(Struct, frozen=True):
    """The secret of a cluster, and the name under which its brokers sign."""

    access_key: str
    secret_key: bytes

    @classmethod
    def load(cls, config: PeersConfig) -> PeerKey | None:
        """The configured secret; None if there is none. Blocking. Raises ConfigError."""
        path = config.secret_key_file
        if path is None:
            return None
        try:
            secret = path.read_text().strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"peers.secret_key_file: {path} cannot be read: {error}; check the path") from None
        if len(secret) < 16:
            raise ConfigError(
                f"peers.secret_key_file: {path} has fewer than 16 characters; make one with `openssl rand -hex 20`"
            )
        return cls(config.access_key, secret.encode())

    def sign(self, request: Command) -> None:
        """Add the signature to a request."""
        request.fields[_ACCESS_KEY] = self.access_key
        request.fields[_SIGNATURE] = ""
        content = "".join(request.fields[name] for name in sorted(request.fields) if name != _SIGNATURE).encode()
        request.fields[_SIGNATURE] = self._signature(content + request.body)

    def is_named(self, request: Command) -> bool:
        """Whether a request claims to be signed with this secret."""
        return request.fields.get(_ACCESS_KEY) == self.access_key

    def check(self, request: Command) -> None:
        """Raise UnauthorizedError unless a request is signed with this secret; set its access key."""
        if not self.is_named(request):
            raise UnauthorizedError(
                f"request {request.code:d} needs the secret of the cluster; set peers.secret_key_file at the sender"
            )
        _, signature, content = signed_parts(request)
        if not hmac.compare_digest(self._signature(content).encode(), signature.encode()):
            raise UnauthorizedError("the secret of the cluster is another one; compare peers.secret_key_file")
        request.access_key = self.access_key

    def _signature(self, content: bytes) -> str:
        return base64.b64encode(hmac.new(self.secret_key, content, hashlib.sha1).digest()).decode()
