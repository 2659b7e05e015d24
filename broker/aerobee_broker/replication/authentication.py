"""Both sides of a replication stream prove that they have the secret of the cluster, before the first frame.

    replica -> master   "AEROAUTH", 32 random bytes
    master -> replica   32 random bytes, HMAC-SHA256 over "master" and both
    replica -> master   HMAC-SHA256 over "replica" and both

Each side contributes random bytes, so nothing can be replayed; the names of the sides differ, so nothing can be
reflected. No offset of a plain report has the value of the first eight bytes. The stream itself is not encrypted.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from typing import Final

from aerobee_broker.errors import BrokerError
from aerobee_broker.remoting_wire.signature import PeerKey

MAGIC: Final = b"AEROAUTH"
_NONCE_SIZE: Final = 32
_DIGEST_SIZE: Final = 32
_SECONDS: Final = 5.0


class NotAuthenticatedError(BrokerError):
    """The other side did not prove that it has the secret of the cluster."""


async def admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: PeerKey) -> None:
    """The master's side, after the replica's first eight bytes. NotAuthenticatedError, TimeoutError, EOFError."""
    async with asyncio.timeout(_SECONDS):
        nonces = await reader.readexactly(_NONCE_SIZE) + secrets.token_bytes(_NONCE_SIZE)
        writer.write(nonces[_NONCE_SIZE:] + _proof(key, b"master", nonces))
        answer = await reader.readexactly(_DIGEST_SIZE)
    if not hmac.compare_digest(answer, _proof(key, b"replica", nonces)):
        raise NotAuthenticatedError("the replica has another secret; compare peers.secret_key_file")


async def introduce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: PeerKey) -> None:
    """The replica's side. NotAuthenticatedError, TimeoutError."""
    mine = secrets.token_bytes(_NONCE_SIZE)
    writer.write(MAGIC + mine)
    try:
        async with asyncio.timeout(_SECONDS):
            answer = await reader.readexactly(_NONCE_SIZE + _DIGEST_SIZE)
    except asyncio.IncompleteReadError:
        raise NotAuthenticatedError(
            "the master closed the connection instead of proving that it has the secret of the cluster; set "
            "peers.secret_key_file there"
        ) from None
    nonces = mine + answer[:_NONCE_SIZE]
    if not hmac.compare_digest(answer[_NONCE_SIZE:], _proof(key, b"master", nonces)):
        raise NotAuthenticatedError("the master has another secret; compare peers.secret_key_file")
    writer.write(_proof(key, b"replica", nonces))


def _proof(key: PeerKey, side: bytes, nonces: bytes) -> bytes:
    content = b"aerobee replication 1 " + side + b" " + nonces
    return hmac.new(key.secret_key, content, hashlib.sha256).digest()
