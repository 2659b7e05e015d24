"""The proof of both sides of a replication stream, against a master that only pretends to have the secret."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.remoting_wire.signature import PeerKey
from aerobee_broker.replication.authentication import MAGIC, NotAuthenticatedError, introduce

KEY = PeerKey("aerobee", b"a secret of the cluster")


@pytest.mark.parametrize("answer", [bytes(64), None, b""], ids=["invented", "reflected", "closed"])
async def test_a_replica_refuses_a_master_without_the_secret(answer: bytes | None) -> None:
    """An invented proof, the replica's own bytes, and a connection that is closed; the replica proves nothing then."""
    rest: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readexactly(len(MAGIC) + 32)
        writer.write(first[len(MAGIC) :] * 2 if answer is None else answer)
        if answer == b"":
            writer.close()
        rest.set_result(await reader.read(-1))
        writer.close()

    listener = await asyncio.start_server(pretend, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with pytest.raises(NotAuthenticatedError, match=r"peers\.secret_key_file"):
        await introduce(reader, writer, KEY)
    writer.close()
    assert await asyncio.wait_for(rest, 10) == b""
    listener.close()
