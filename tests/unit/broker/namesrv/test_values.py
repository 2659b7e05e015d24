"""The values of a name server: their memory is counted and bounded."""

from __future__ import annotations

import pytest

from aerobee_broker.limits.ledger import Ledger
from aerobee_broker.namesrv import requests
from aerobee_broker.namesrv.requests import KvConfig
from aerobee_broker.remoting_wire.errors import RemotingError


async def test_values_are_in_the_ledger() -> None:
    """What is put, replaced, deleted and restored."""
    saved: list[object] = []

    async def save(content: object) -> None:
        saved.append(content)

    ledger = Ledger()
    values = KvConfig(save, ledger)
    await values.put("n", "k", "v" * 10_000)
    assert 10_000 < ledger.held_of_kind["values"] < 11_000
    await values.put("n", "k", "v")
    await values.put("n", "other", "\N{GRINNING FACE}" * 1_000)
    held = ledger.held_of_kind["values"]
    assert 4_000 < held < 5_000, "four bytes each"
    again = Ledger()
    KvConfig(save, again).restore(saved[-1])
    assert again.held_of_kind["values"] == held
    await values.delete("n", "other")
    await values.delete("n", "k")
    assert ledger.held == 0


async def test_values_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that exceeds it is refused, and one that takes the place of a larger one is not."""
    monkeypatch.setattr(requests, "_TABLE_SIZE_MAX", 10_000)
    ledger = Ledger()
    values = KvConfig(ledger=ledger)
    await values.put("n", "k", "v" * 8_000)
    with pytest.raises(RemotingError):
        await values.put("n", "other", "v" * 8_000)
    assert values.get("n", "other") is None
    await values.put("n", "k", "v" * 7_000)
    assert values.get("n", "k") == "v" * 7_000
    assert ledger.held_of_kind["values"] < 8_000
