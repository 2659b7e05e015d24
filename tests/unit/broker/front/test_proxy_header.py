"""The PROXY header of a load balancer, before the bytes of a client."""

from __future__ import annotations

import socket

import pytest

from aerobee_broker.front.proxy_header import skip_proxy_header

_TEXT = b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 443\r\n"
_BINARY = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12)


@pytest.mark.parametrize("header", [_TEXT, _BINARY], ids=["version 1", "version 2"])
async def test_no_byte_of_the_client_is_skipped(header: bytes) -> None:
    """The client's first bytes may have arrived together with the header."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.sendall(header + b"PRI * HTTP/2.0")
        await skip_proxy_header(ours)
        assert ours.recv(100) == b"PRI * HTTP/2.0"
