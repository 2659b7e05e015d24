"""The table of topics: names, changes, and compatibility with RocketMQ's file."""

from __future__ import annotations

import dataclasses

import pytest

from aerobee_broker.errors import (
    BrokerError,
    IllegalAttributeError,
    IllegalNamespaceError,
    IllegalTopicError,
    TableFormatError,
    TopicExistsError,
    TopicNotFoundError,
)
from aerobee_broker.tables.attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES, without_effect
from aerobee_broker.tables.consumer_groups import is_system_group
from aerobee_broker.tables.data_version import DataVersion
from aerobee_broker.tables.topics import (
    SYSTEM_TOPICS,
    Permission,
    TopicConfig,
    TopicMessageType,
    TopicTable,
    check_new_topic_name,
    check_topic_name,
    dead_letter_topic,
    is_system_topic,
    retry_topic,
    split_stored_name,
    stored_name,
)
from aerobee_store.tables.java_json import dumps, loads
from tests.support.saved_tables import saved


class StepClock:
    """A clock that advances by 1000 ms with each reading."""

    def __init__(self) -> None:
        self.now = 0

    def now_ms(self) -> int:
        self.now += 1000
        return self.now

    def monotonic(self) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("namespace", "name", "stored"),
    [
        ("", "orders", "orders"),
        ("shop", "orders", "shop%orders"),
        ("shop", "%RETRY%billing", "%RETRY%shop%billing"),
        ("shop", "%DLQ%billing", "%DLQ%shop%billing"),
        ("", "%RETRY%billing", "%RETRY%billing"),
        ("", "%", "%"),
        ("shop", "a%b", "shop%a%b"),
    ],
)
def test_stored_names(namespace: str, name: str, stored: str) -> None:
    """Namespace and name are joined into RocketMQ's stored name and split again."""
    assert stored_name(namespace, name) == stored
    assert split_stored_name(stored) == (namespace, name)


def test_a_namespace_that_begins_like_a_system_name() -> None:
    """Topics and groups in such a namespace are no system topics and groups."""
    assert is_system_topic("rmq_sys_wheel_timer")
    assert not is_system_topic(stored_name("rmq_sys_shop", "orders"))
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert not is_system_group(stored_name("CID_RMQ_SYS_shop", "billing"))


def test_system_topics_have_no_namespace() -> None:
    """System topics belong to the broker, whatever the client's namespace."""
    assert stored_name("shop", "rmq_sys_x") == "rmq_sys_x"


def test_topics_of_a_group_are_in_its_namespace() -> None:
    """The retry topic of a stored group name is the stored name of the retry topic."""
    group = stored_name("shop", "billing")
    assert retry_topic(group) == stored_name("shop", retry_topic("billing"))
    assert dead_letter_topic(group) == stored_name("shop", dead_letter_topic("billing"))


@pytest.mark.parametrize("namespace", ["a%b", "%", "a b", "ä", "a@b"])
def test_namespaces_that_would_be_ambiguous(namespace: str) -> None:
    """A namespace with a separator is refused, because it could name another namespace's topics."""
    with pytest.raises(IllegalNamespaceError, match="choose another"):
        stored_name(namespace, "orders")


@pytest.mark.parametrize("name", ["a", "Order_Paid-2", "%a|b", "x" * 127, "%RETRY%billing"])
def test_names_that_a_request_may_use(name: str) -> None:
    """Names have 1 to 127 of the characters that RocketMQ allows."""
    check_topic_name(name)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("", "blank"),
        (" \t", "blank"),
        ("x" * 128, "at most 127"),
        *((name, "letters, digits") for name in ("a b", "a.b", "ä", "a@b", "a\n", "a/b", "a\0")),
        *((name, "is a system topic") for name in (*sorted(SYSTEM_TOPICS), "rmq_sys_", "rmq_sys_x")),
    ],
)
def test_names_that_are_refused(name: str, cause: str) -> None:
    """The error names the cause, for requests and for new topics."""
    for check in (check_topic_name, check_new_topic_name):
        with pytest.raises(IllegalTopicError, match=cause):
            check(name)


@pytest.mark.parametrize("name", ["%RETRY%g", "%DLQ%g", "%LMQ%t", "%RETRY%shop%g", "shop%%LMQ%t", "shop%TBW102"])
def test_new_topics_cannot_take_reserved_names(name: str) -> None:
    """Reserved names are refused inside a namespace, too."""
    with pytest.raises(IllegalTopicError, match="choose another name"):
        TopicTable(StepClock()).create(TopicConfig(name=name))


def test_create_get_update_delete() -> None:
    """Each change is visible once it is saved. For an unknown topic the error says how to create it."""
    table = TopicTable(StepClock())
    assert table.get("orders") is None
    with pytest.raises(TopicNotFoundError, match="aerobee topic create orders"):
        table.require("orders")
    orders = TopicConfig.of_type("orders", TopicMessageType.FIFO, queue_count=3)
    saved(table).create(orders)
    saved(table).create(TopicConfig(name="shop%orders"))
    assert table.require("orders") == orders
    assert (orders.read_queue_count, orders.write_queue_count, orders.message_type) == (3, 3, "FIFO")
    assert orders.readable
    assert orders.writable
    with pytest.raises(TopicExistsError, match="aerobee topic update orders"):
        saved(table).create(orders)
    read_only = dataclasses.replace(orders, permission=Permission.READ)
    saved(table).update(read_only)
    assert not table.require("orders").writable
    assert [topic.name for topic in table] == ["orders", "shop%orders"]
    assert len(table) == 2
    saved(table).delete("orders")
    assert "orders" not in table
    with pytest.raises(TopicNotFoundError):
        saved(table).update(orders)
    with pytest.raises(TopicNotFoundError):
        saved(table).delete("orders")


@pytest.mark.parametrize("count", [0, -1, 1025])
def test_queue_counts_are_bounded(count: int) -> None:
    """A new or changed topic must have 1 to 1024 queues."""
    table = TopicTable(StepClock())
    saved(table).create(TopicConfig(name="orders"))
    with pytest.raises(IllegalTopicError, match="from 1 to 1024"):
        saved(table).create(TopicConfig(name="new", read_queue_count=count))
    with pytest.raises(IllegalTopicError, match="from 1 to 1024"):
        saved(table).update(TopicConfig(name="orders", write_queue_count=count))
    assert [topic.write_queue_count for topic in table] == [8]


def test_topics_of_the_broker() -> None:
    """The broker may create reserved topics, and the first creation wins. Users cannot delete a system topic."""
    table = TopicTable(StepClock())
    first = saved(table).create_internal(TopicConfig(name="rmq_sys_x", write_queue_count=1))
    assert saved(table).create_internal(TopicConfig(name="rmq_sys_x", write_queue_count=2)) is first
    saved(table).create_internal(TopicConfig(name="%RETRY%" + "g" * 120))
    with pytest.raises(IllegalTopicError, match="cannot be deleted"):
        saved(table).delete("rmq_sys_x")
    with pytest.raises(IllegalTopicError):
        saved(table).create_internal(TopicConfig(name="%RETRY%" + "g" * 249))
    assert table.version.counter == 2


def test_version_and_dirtiness() -> None:
    """Each change increments the version. The table stays dirty until its last change is saved."""
    table = TopicTable(StepClock())
    seen = [table.dirty]
    topic = TopicConfig(name="orders")
    table.create(topic)
    table.update(topic)
    revision = table.revision
    table.delete("orders")
    table.mark_saved(revision)
    seen.append(table.dirty)  # the deletion is newer than the saved snapshot
    table.mark_saved(table.revision)
    seen.append(table.dirty)
    table.mark_saved(revision)
    seen.append(table.dirty)  # a late report of an older save has no effect
    assert seen == [False, True, False, False]
    assert table.version == DataVersion(2, 0, 2000), "an update that changes nothing is none"


def test_what_is_not_saved_does_not_exist_yet() -> None:
    """Readers get the saved items and their version; a change is made to the latest ones. A change after the snapshot
    of a save stays invisible."""
    table = TopicTable(StepClock())
    topic = TopicConfig(name="orders")
    table.create(topic)
    assert (table.get("orders"), "orders" in table, len(table), list(table)) == (None, False, 0, [])
    with pytest.raises(TopicNotFoundError):
        table.require("orders")
    with pytest.raises(TopicExistsError):
        table.create(topic)
    assert table.latest("orders") == topic
    assert (table.version, table.saved_revision) == (DataVersion(), 0)
    revision = table.revision
    table.update(dataclasses.replace(topic, read_queue_count=2))
    table.create(TopicConfig(name="bills"))
    table.mark_saved(revision)
    assert (table.get("orders"), table.get("bills")) == (None, None), "their last changes are not saved"
    table.mark_saved(table.revision)
    assert table.require("orders").read_queue_count == 2
    before = table.saved_revision
    table.delete("orders")
    assert table.require("orders").read_queue_count == 2, "a crash would still bring it back"
    assert table.saved_revision == before
    table.mark_saved(table.revision)
    assert "orders" not in table
    assert table.saved_revision > before


def test_snapshot_is_independent() -> None:
    """The disk thread may write a snapshot while the table changes."""
    table = TopicTable(StepClock())
    table.create(TopicConfig(name="orders", attributes={"message.type": "FIFO"}))
    before = dumps(snapshot := table.snapshot())
    table.create(TopicConfig(name="more"))
    table.delete("orders")
    assert dumps(snapshot) == before


def test_round_trip_keeps_unknown_fields() -> None:
    """Fields of a newer RocketMQ, attributes and unknown permission bits are preserved."""
    text = (
        b'{"newTop":{"x":[1]},"dataVersion":{"counter":7,"stateVersion":2,"timestamp":9},"topicConfigTable":{"b":'
        b'{"attributes":{"message.type":"SOMETHING"},"newer":{"y":null},"order":true,"perm":31,"readQueueNums":0,'
        b'"topicFilterType":"MULTI_TAG","topicName":"b","topicSysFlag":3,"writeQueueNums":5000}}}'
    )
    table = TopicTable.from_json(loads(text), StepClock())
    assert loads(dumps(table.snapshot())) == loads(text)
    assert table.require("b").message_type is TopicMessageType.UNSPECIFIED
    assert not table.dirty


def test_attributes_of_a_store_of_rocketmq_stay_and_are_named() -> None:
    """The start says which have no effect. Another change of the topic does not touch them."""
    attributes = {"reserve.time": "72", "message.type": "FIFO"}
    table = TopicTable.from_json({"topicConfigTable": {"a": {"attributes": attributes}}}, StepClock())
    table.update(dataclasses.replace(table.require("a"), read_queue_count=3))
    with pytest.raises(IllegalAttributeError, match="retention_hours"):
        table.update(dataclasses.replace(table.require("a"), attributes={**attributes, "reserve.time": "73"}))
    assert without_effect(TOPIC_ATTRIBUTES, table.require("a").attributes)[0].endswith("for all of them")
    assert without_effect(GROUP_ATTRIBUTES, {"priority.factor": "100", "lite.bind.topic": "x"}) == []


def test_missing_fields_have_rocketmq_defaults() -> None:
    """Files of 4.3 have no attributes and no stateVersion."""
    table = TopicTable.from_json({"topicConfigTable": {"a": {}}, "dataVersion": {"counter": 3}}, StepClock())
    topic = table.require("a")
    assert (topic.read_queue_count, topic.permission, topic.message_type) == (16, 6, TopicMessageType.NORMAL)
    assert table.version.counter == 3
    assert len(TopicTable.from_json(None, StepClock())) == 0


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ([], "topics.json"),
        ({"dataVersion": 1}, "topics.json.dataVersion"),
        ({"dataVersion": {"counter": "1"}}, "topics.json.dataVersion.counter"),
        ({"topicConfigTable": []}, "topics.json.topicConfigTable"),
        ({"topicConfigTable": {"a": None}}, "topics.json.topicConfigTable.a"),
        ({"topicConfigTable": {"a": {"perm": True}}}, "topics.json.topicConfigTable.a.perm"),
        ({"topicConfigTable": {"a": {"readQueueNums": -1}}}, "topics.json.topicConfigTable.a.readQueueNums"),
        ({"topicConfigTable": {"a": {"writeQueueNums": 2**31}}}, "topics.json.topicConfigTable.a.writeQueueNums"),
        ({"topicConfigTable": {"a": {"order": 0}}}, "topics.json.topicConfigTable.a.order"),
        ({"topicConfigTable": {"a": {"attributes": {"k": 1}}}}, "topics.json.topicConfigTable.a.attributes.k"),
        ({"topicConfigTable": {"a": {"topicFilterType": 1}}}, "topics.json.topicConfigTable.a.topicFilterType"),
    ],
)
def test_wrong_fields_are_named(value: object, field: str) -> None:
    """Valid JSON with the wrong content is refused with the full name of the field and the next step."""
    with pytest.raises(TableFormatError, match="then start again") as caught:
        TopicTable.from_json(value, StepClock())
    assert caught.value.field == field
    assert isinstance(caught.value, BrokerError)
