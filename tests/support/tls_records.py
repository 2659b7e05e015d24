"""A client of TLS 1.3 that encrypts its records itself, so that it can send what no library sends."""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import struct
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ALERT: Final = 21
USER_CANCELED: Final = 90  # an alert that ends nothing
HANDSHAKE: Final = 22
APPLICATION_DATA: Final = 23
RECORD_SIZE_MAX: Final = 16_384
_SUITE: Final = "TLS_AES_256_GCM_SHA384"  # the first choice of OpenSSL


def trusting() -> ssl.SSLContext:
    """For a client that trusts every server, and so reads no authorities, which takes 12 ms."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Records:
    """Encrypts a client's records, from the end of its handshake on."""

    def __init__(self, secret: bytes) -> None:
        """`secret`: that of the client's application data, as key logs have it."""
        self._use(secret)

    def _use(self, secret: bytes) -> None:
        self._secret = secret
        self._key = AESGCM(_expanded(secret, b"key", 32))
        self._iv = int.from_bytes(_expanded(secret, b"iv", 12), "big")
        self._number = 0

    def record(self, payload: bytes, kind: int = APPLICATION_DATA) -> bytes:
        """One record (RFC 8446, section 5.2)."""
        head = struct.pack(">BHH", APPLICATION_DATA, 0x0303, len(payload) + 17)
        nonce = (self._iv ^ self._number).to_bytes(12, "big")
        self._number += 1
        return head + self._key.encrypt(nonce, payload + bytes((kind,)), head)

    def records(self, data: bytes, size: int = RECORD_SIZE_MAX) -> bytes:
        """The data in records of this size."""
        return b"".join(self.record(data[begin : begin + size]) for begin in range(0, len(data), size))

    def key_update(self, *, requested: bool = True) -> bytes:
        """A message that what follows has the next key; `requested`: and that the server's should."""
        record = self.record(b"\x18\x00\x00\x01" + bytes((requested,)), HANDSHAKE)
        self._use(_expanded(self._secret, b"traffic upd", hashlib.sha384().digest_size))
        return record


def _expanded(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label (RFC 8446, section 7.1), of one block at the most."""
    name = b"tls13 " + label
    info = struct.pack(">HB", size, len(name)) + name + b"\x00" + b"\x01"
    return hmac.digest(secret, info, "sha384")[:size]


def shake_hands(
    connection: socket.socket,
    split: Callable[[bytes], Iterable[bytes]] = lambda data: (data,),
    certificate: tuple[Path, Path] | None = None,
) -> Records:
    """Do the handshake on a blocking socket, whose writes are `split`. Session tickets stay unread. `certificate`: of
    the client, and its key."""
    with tempfile.TemporaryDirectory() as directory:
        context = trusting()
        if certificate is not None:
            context.load_cert_chain(*certificate)
        context.keylog_filename = str(Path(directory) / "keys")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                for part in split(outgoing.read()):
                    connection.sendall(part)
                if not (received := connection.recv(1 << 16)):
                    raise ConnectionResetError("the server has ended the handshake") from None
                incoming.write(received)
        for part in split(outgoing.read()):
            connection.sendall(part)
        cipher = tls.cipher()
        assert cipher is not None
        assert cipher[0] == _SUITE, cipher
        for line in Path(context.keylog_filename).read_text().splitlines():
            if line.startswith("CLIENT_TRAFFIC_SECRET_0 "):
                return Records(bytes.fromhex(line.split()[2]))
    raise AssertionError("no secret in the key log")
