"""The accounts to which client ids of the remoting protocol belong."""

from __future__ import annotations

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


async def test_client_ids_belong_to_their_account_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id is free after the silence that removes a client; an account has a limited number of ids."""
    monkeypatch.setattr(clients, "_IDS_PER_ACCOUNT_MAX", 3)
    clock = TravellingClock()
    config = BrokerConfig.tiny(tmp_path)
    settings = Settings(config)
    store = MessageStore.open(config.store, clock=clock)
    try:
        tables = Tables.load(settings, clock, store.file_system, store.in_disk_thread, store.stats)
        found = RemotingClients(settings, tables, clock)
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
    finally:
        store.close()


async def test_without_accounts_a_client_id_is_nobodys(tmp_path: Path) -> None:
    """Nothing is kept for it."""
    clock = TravellingClock()
    config = BrokerConfig.tiny(tmp_path)
    settings = Settings(config)
    store = MessageStore.open(config.store, clock=clock)
    try:
        tables = Tables.load(settings, clock, store.file_system, store.in_disk_thread, store.stats)
        found = RemotingClients(settings, tables, clock)
        await _beat(found, "a", "")
        assert found.owner_of("a") is None
        assert not found._owned
    finally:
        store.close()
