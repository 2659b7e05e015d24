"""The accounts to which client ids of the remoting protocol belong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee_broker.config import BrokerConfig, Settings
from aerobee_broker.remoting import clients
from aerobee_broker.remoting.clients import RemotingClients
from aerobee_broker.remoting_wire.connection import Connection, RemotingServer
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.table_files import Tables
from aerobee_store import MessageStore
from aerobee_store.tables import java_json
from aerobee_store.testing.travelling_clock import TravellingClock


async def _nothing(_request: Command, _connection: Connection) -> None:
    return None


async def _beat(found: RemotingClients, client_id: str, account: str) -> None:
    body = {"clientID": client_id, "producerDataSet": [{"groupName": "PG"}]}
    request = Command(34, body=java_json.dumps(body, pretty=False), access_key=account)
    await found.heartbeat(request, Connection(RemotingServer(_nothing)))


@pytest.fixture
async def clock() -> TravellingClock:
    return TravellingClock()


@pytest.fixture
async def found(tmp_path: Path, clock: TravellingClock) -> AsyncIterator[RemotingClients]:
    """The clients of a broker, none yet."""
    config = BrokerConfig.tiny(tmp_path)
    settings = Settings(config)
    with MessageStore.open(config.store, clock=clock) as store:
        tables = Tables.load(settings, clock, store.file_system, store.in_disk_thread, store.stats)
        yield RemotingClients(settings, tables, clock)


async def test_client_ids_belong_to_their_account_for_a_bounded_time(
    found: RemotingClients, clock: TravellingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id is free after the silence that removes a client; an account has a limited number of ids."""
    monkeypatch.setattr(clients, "_IDS_PER_ACCOUNT_MAX", 3)
    await _beat(found, "a", "bank")
    await clock.advance(100)
    await _beat(found, "b", "bank")
    await clock.advance(30)
    found.expire()
    assert (found.owner_of("a"), found.owner_of("b")) == (None, "bank")
    for number in range(4):
        await _beat(found, f"shop-{number}", "shop")
    owners = [found.owner_of(f"shop-{number}") for number in range(4)]
    assert owners == [None, "shop", "shop", "shop"]
    await _beat(found, "b", "operator")
    assert found.owner_of("b") == "operator"
    await clock.advance(1000)
    found.expire()
    assert not found._owners
    assert not found._owned


async def test_without_accounts_a_client_id_is_nobodys(found: RemotingClients) -> None:
    """Nothing is kept for it."""
    await _beat(found, "a", "")
    assert found.owner_of("a") is None
    assert not found._owned
