"""Whether the broker still lacks what items.py calls missing: one function a feature.

A probe returns None while the feature is missing, and otherwise what the broker answered instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aerobee_proto import v2
from tests.conformance.raw_client import RawClient, message, resource

Probe = Callable[[RawClient], Awaitable[str | None]]


def _unless_not_implemented(status: v2.Status) -> str | None:
    return None if status.code == v2.Code.NOT_IMPLEMENTED else f"{v2.Code.Name(status.code)}: {status.message}"


async def sql(client: RawClient) -> str | None:
    await client.sent(message("probe-sql"))
    received = await client.receive("probe-sql", "probe", expression="TAGS IS NULL", filter_type=v2.FilterType.SQL)
    return (
        None if received.code == v2.Code.ILLEGAL_FILTER_EXPRESSION else v2.Code.Name(v2.Code.ValueType(received.code))
    )


async def pull(client: RawClient) -> str | None:
    for name in ("UpdateOffset", "GetOffset", "QueryOffset"):
        answer = await client.call(name, getattr(v2, f"{name}Request")())
        if other := _unless_not_implemented(answer.status):
            return f"{name}: {other}"
    call = client.stub.PullMessage(v2.PullMessageRequest(), metadata=client.metadata, timeout=5)
    return _unless_not_implemented((await call.read()).status)


async def commands(client: RawClient) -> str | None:
    admin: Any = v2.AdminStub(client.channel)
    request = v2.PrintThreadStackTraceRequest(client_id=client.client_id, group=resource("probe"))
    return _unless_not_implemented((await admin.PrintThreadStackTrace(request, timeout=5)).status)


PROBES: Final[dict[str, Probe]] = {probe.__name__: probe for probe in (sql, pull, commands)}
