"""Whether the broker still lacks what items.py calls missing: one function a feature.

A probe returns None while the feature is missing, and otherwise what the broker answered instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aerobee_broker.config import BrokerConfig
from aerobee_proto import v2
from tests.conformance.raw_client import RawClient, message, resource

Probe = Callable[[RawClient], Awaitable[str | None]]


def _unless_not_implemented(status: v2.Status) -> str | None:
    return None if status.code == v2.Code.NOT_IMPLEMENTED else f"{v2.Code.Name(status.code)}: {status.message}"


def _settings_about(*words: str) -> str | None:
    """The names of the broker's settings that have one of these words in them."""
    classes: list[Any] = [BrokerConfig]
    names = []
    for section in classes:
        for setting in dataclasses.fields(section):
            names.append(setting.name)
            factory: Any = setting.default_factory
            if dataclasses.is_dataclass(factory):
                classes.append(factory)
    found = [name for name in names if any(word in name for word in words)]
    return f"it has the settings {', '.join(found)}" if found else None


async def authentication(client: RawClient) -> str | None:
    return _settings_about("auth", "acl", "credential")


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


PROBES: Final[dict[str, Probe]] = {probe.__name__: probe for probe in (authentication, sql, pull, commands)}
