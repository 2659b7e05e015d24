"""The topics of a broker name while a replica stands in for its master."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aerobee_broker.namesrv import route_tables
from aerobee_broker.namesrv.route_tables import QueueData, Registration, RegistrationRefusedError, RouteTables
from aerobee_broker.tables.data_version import DataVersion
from aerobee_store.testing import ManualClock

_READ, _READ_WRITE = 4, 6
_TOPICS = {"orders": QueueData(4, 4, _READ_WRITE), "others": QueueData(1, 1, _READ)}


def _registration(broker_id: int, *, acting_master: bool | None = None, counter: int = 0) -> Registration:
    return Registration(
        cluster="c",
        broker="b",
        address=f"10.0.0.{broker_id}:10911",
        broker_id=broker_id,
        version=DataVersion(counter),
        topics=_TOPICS,
        connection=f"of {broker_id}",
        acting_master=acting_master,
    )


def _permissions(tables: RouteTables) -> dict[str, int]:
    return {topic: tables.route(topic)[0][1].permission for topic in _TOPICS}


def test_the_topics_of_a_replica_that_stands_in_for_its_master_are_read_only() -> None:
    """Until the master is back: a replica takes no messages."""
    tables = RouteTables(ManualClock())
    tables.register(_registration(0))
    tables.register(_registration(1, acting_master=True))
    assert _permissions(tables) == {"orders": _READ_WRITE, "others": _READ}
    tables.unregister("c", "b", "10.0.0.0:10911", "of 0")
    tables.register(_registration(1, acting_master=True, counter=1))
    assert _permissions(tables) == {"orders": _READ, "others": _READ}
    tables.register(_registration(0, counter=2))
    assert _permissions(tables) == {"orders": _READ_WRITE, "others": _READ}


def test_a_replica_without_a_master_has_its_topics_to_read() -> None:
    """The name server was started after the master had gone."""
    tables = RouteTables(ManualClock())
    tables.register(_registration(1, acting_master=False))
    assert _permissions(tables) == {"orders": _READ, "others": _READ}


def test_a_replica_of_rocketmq_4_registers_no_topics() -> None:
    """It never stands in for its master."""
    tables = RouteTables(ManualClock())
    tables.register(_registration(1))
    assert [tables.route(topic) for topic in _TOPICS] == [[], []]


def test_topics_of_all_brokers_have_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registration that exceeds it changes nothing; one that repeats known topics fits."""
    monkeypatch.setattr(route_tables, "_TOPICS_MAX", 3)
    tables = RouteTables(ManualClock())
    tables.register(_registration(0))
    with pytest.raises(RegistrationRefusedError, match="2 topics of all brokers"):
        tables.register(replace(_registration(0), broker="other", address="10.0.0.9:10911"))
    assert [broker.name for broker in tables.brokers()] == ["b"]
    tables.register(_registration(0, counter=1))
    assert _permissions(tables) == {"orders": _READ_WRITE, "others": _READ}


def test_topics_leave_with_the_last_address_of_their_broker() -> None:
    """And those of other brokers stay."""
    tables = RouteTables(ManualClock())
    tables.register(_registration(0))
    tables.register(replace(_registration(0), broker="other", address="10.0.0.9:10911", connection="of other"))
    assert [broker.name for broker, _ in tables.route("orders")] == ["b", "other"]
    assert tables.connection_closed("of 0") == ["10.0.0.0:10911"]
    assert [broker.name for broker, _ in tables.route("orders")] == ["other"]
    tables.delete_topic("orders")
    assert tables.topics() == ("others",)
    assert tables.connection_closed("of other") == ["10.0.0.9:10911"]
    assert tables.topics() == ()
