"""Requests with JSON to the service that keeps the lease, over HTTP with the standard library only.

Each request has its own connection and is sent once. A connection that is reused can end while a request is in flight,
and its repetition could be refused because the first one was executed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult

from aerobee_store.records.decimals import decimal

_ANSWER_SIZE_MAX: Final = 1 << 20

RequestError: Final = (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError)
"""The exceptions of a request without an answer, or with one that is not HTTP or not JSON. Its outcome is unknown."""


async def answer_to(
    method: str,
    endpoint: SplitResult,
    path: str,
    body: bytes = b"",
    *,
    headers: Mapping[str, str],
    security: ssl.SSLContext | None,
    default_port: int,
) -> tuple[int, bytes]:
    """The status and the body of the answer, of 1 MiB at most. Raises one of RequestError.

    `security` is for https endpoints; None: the system's certificate authorities. The caller sets the time limit.
    """
    secure = endpoint.scheme == "https"
    reader, writer = await asyncio.open_connection(
        endpoint.hostname,
        endpoint.port or default_port,
        ssl=(security or ssl.create_default_context()) if secure else None,
        limit=_ANSWER_SIZE_MAX,
    )
    try:
        fields = {"Host": endpoint.netloc, "Content-Length": str(len(body)), **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"{method} {path} HTTP/1.0\r\n{head}\r\n".encode() + body)
        status = await reader.readline()
        while (await reader.readline()).strip():
            pass
        # HTTP/1.0: the answer ends with the connection and may be read as a whole.
        answer = await reader.read(_ANSWER_SIZE_MAX)
        while more := await reader.read(_ANSWER_SIZE_MAX):
            answer += more
            if len(answer) > _ANSWER_SIZE_MAX:
                raise ValueError(f"the answer is longer than {_ANSWER_SIZE_MAX} bytes")
    except BaseException:
        writer.transport.abort()  # with TLS, close waits for the peer
        raise
    writer.close()
    parts = status.split()
    if len(parts) < 2 or (code := decimal(parts[1])) is None:
        raise ValueError(f"the answer begins with {status[:40]!r}, which is not HTTP: is this the right port?")
    return code, answer
