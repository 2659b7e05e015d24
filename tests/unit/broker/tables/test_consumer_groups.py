"""The table of consumer groups: names, retry policies, and compatibility with RocketMQ's file."""

from __future__ import annotations

import dataclasses

import pytest

from aerobee_broker.errors import GroupExistsError, GroupNotFoundError, IllegalGroupError, TableFormatError
from aerobee_broker.tables.consumer_groups import (
    CustomizedRetry,
    ExponentialRetry,
    GroupConfig,
    GroupTable,
    check_group_name,
)
from aerobee_broker.tables.data_version import DataVersion
from aerobee_store.tables.java_json import dumps, loads
from aerobee_store.testing import ManualClock
from tests.support.saved_tables import saved


def table_with(**fields: object) -> GroupTable:
    return GroupTable.from_json({"subscriptionGroupTable": {"g": fields}}, ManualClock(5000))


@pytest.mark.parametrize("name", ["g", "GID_order-1", "%a|b", "g" * 120, "shop%billing"])
def test_names_that_are_allowed(name: str) -> None:
    """Names have 1 to 120 of the characters that RocketMQ allows."""
    check_group_name(name)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("g" * 121, "at most 120"),
        *((name, "letters, digits") for name in ("a b", "a.b", "ä", "a@b", "a\n")),
        *((name, "reserved prefix") for name in ("CID_RMQ_SYS_TRANS", "shop%CID_RMQ_SYS_x")),
    ],
)
def test_names_that_are_refused(name: str, cause: str) -> None:
    """The error names the cause, and the table refuses the group."""
    with pytest.raises(IllegalGroupError, match=cause):
        check_group_name(name)
    with pytest.raises(IllegalGroupError, match=cause):
        GroupTable(ManualClock(5000)).create(GroupConfig(name=name))


def test_create_get_update_delete() -> None:
    """Each change is visible once saved, and makes a version. The error for an unknown group says how to create it."""
    table = GroupTable(ManualClock(5000))
    with pytest.raises(GroupNotFoundError, match="aerobee group create billing"):
        table.require("billing")
    group = GroupConfig(name="billing", consume_orderly=True, retry_max_times=3)
    saved(table).create(group)
    with pytest.raises(GroupExistsError, match="aerobee group update billing"):
        saved(table).create(group)
    saved(table).update(group)
    assert (table.version, table.dirty) == (DataVersion(1, 0, 5000), False)
    changed = dataclasses.replace(group, consume_enabled=False)
    saved(table).update(changed)
    assert table.get("billing") == changed
    assert list(table) == [changed]
    saved(table).delete("billing")
    assert "billing" not in table
    assert len(table) == 0
    with pytest.raises(GroupNotFoundError):
        saved(table).update(group)
    with pytest.raises(GroupNotFoundError):
        saved(table).delete("billing")


def test_groups_of_the_broker_cannot_be_deleted() -> None:
    """RocketMQ's own groups are loaded and kept; users cannot delete them."""
    value: object = {"subscriptionGroupTable": {"CID_RMQ_SYS_TRANS": {}}}
    table = GroupTable.from_json(value, ManualClock(5000))
    with pytest.raises(IllegalGroupError, match="cannot be deleted"):
        table.delete("CID_RMQ_SYS_TRANS")


def test_delays_of_the_policies() -> None:
    """Attempt 1 is the first delivery. The last or the maximum delay applies to all later attempts."""
    customized = CustomizedRetry()
    assert [customized.delay_ms(attempt) for attempt in (1, 2, 4, 5, 18, 19, 1000)] == [
        *(1_000, 5_000, 30_000, 60_000, 7_200_000, 7_200_000, 7_200_000)
    ]
    exponential = ExponentialRetry()
    assert [exponential.delay_ms(attempt) for attempt in (1, 2, 3, 11, 12, 10**9)] == [
        *(5_000, 10_000, 20_000, 5_120_000, 7_200_000, 7_200_000)
    ]


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (CustomizedRetry(), {"type": "CUSTOMIZED"}),
        (CustomizedRetry((0, 7)), {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [0, 7]}}),
        (
            ExponentialRetry(1, 9, 3),
            {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1, "max": 9, "multiplier": 3}},
        ),
    ],
)
def test_policies_as_rocketmq_stores_them(policy: CustomizedRetry | ExponentialRetry, text: dict[str, object]) -> None:
    """A policy is written in RocketMQ's form and read back. A new policy replaces the old one completely."""
    table = GroupTable(ManualClock(5000))
    saved(table).create(GroupConfig(name="g", retry_policy=policy))
    written = loads(dumps(table.snapshot()))
    assert isinstance(written, dict)
    assert written["subscriptionGroupTable"]["g"]["groupRetryPolicy"] == text
    read = GroupTable.from_json(written, ManualClock(5000))
    assert read.require("g").retry_policy == policy
    for other in (CustomizedRetry(), CustomizedRetry((5,)), ExponentialRetry()):
        saved(read).update(dataclasses.replace(read.require("g"), retry_policy=other))
        again = GroupTable.from_json(loads(dumps(read.snapshot())), ManualClock(5000))
        assert again.require("g").retry_policy == other


def test_missing_fields_have_rocketmq_defaults() -> None:
    """Groups of 4.3 have no order flag and no retry policy; an exponential policy may lack its numbers."""
    group = table_with().require("g")
    assert (group.retry_max_times, group.consume_orderly, group.consume_enabled) == (16, False, True)
    assert group.retry_policy == CustomizedRetry()
    assert table_with(groupRetryPolicy={"type": "EXPONENTIAL"}).require("g").retry_policy == ExponentialRetry()


def test_new_group_has_all_fields_of_rocketmq() -> None:
    """Fields with default values are written, like RocketMQ does."""
    table = GroupTable(ManualClock(5000))
    table.create(GroupConfig(name="g"))
    assert loads(dumps(table.snapshot())) == {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 5000},
        "forbiddenTable": {},
        "subscriptionGroupTable": {
            "g": {
                "attributes": {},
                "brokerId": 0,
                "consumeBroadcastEnable": True,
                "consumeEnable": True,
                "consumeFromMinEnable": True,
                "consumeMessageOrderly": False,
                "consumeTimeoutMinute": 15,
                "groupName": "g",
                "groupRetryPolicy": {"type": "CUSTOMIZED"},
                "groupSysFlag": 0,
                "notifyConsumerIdsChangedEnable": True,
                "retryMaxTimes": 16,
                "retryQueueNums": 1,
                "whichBrokerWhenConsumeSlowly": 1,
            }
        },
    }


def test_round_trip_keeps_unused_fields() -> None:
    """Unused and unknown fields, and both policies of a group, are written back."""
    text = (
        b'{"dataVersion":{"counter":7,"stateVersion":2,"timestamp":9},"forbiddenTable":{"g":{"t":3}},"other":1,'
        b'"subscriptionGroupTable":{"g":{"attributes":{"k":"v"},"brokerId":5,"consumeBroadcastEnable":false,'
        b'"consumeEnable":false,"consumeFromMinEnable":false,"consumeMessageOrderly":true,"consumeTimeoutMinute":30,'
        b'"groupName":"g","groupRetryPolicy":{"customizedRetryPolicy":{"next":[1]},"exponentialRetryPolicy":'
        b'{"initial":1,"max":2,"multiplier":3,"newer":4},"type":"CUSTOMIZED"},"groupSysFlag":1,"new":[],'
        b'"notifyConsumerIdsChangedEnable":false,"retryMaxTimes":-1,"retryQueueNums":2,'
        b'"whichBrokerWhenConsumeSlowly":2}}}'
    )
    table = GroupTable.from_json(loads(text), ManualClock(5000))
    assert dumps(table.snapshot(), pretty=False) == text
    assert table.require("g").retry_policy == CustomizedRetry((1,))


@pytest.mark.parametrize(
    "group",
    [
        GroupConfig(name="g", retry_max_times=-1),
        GroupConfig(name="g", retry_max_times=10_001),
        GroupConfig(name="g", retry_policy=CustomizedRetry(())),
        GroupConfig(name="g", retry_policy=CustomizedRetry((1, -1))),
        GroupConfig(name="g", retry_policy=ExponentialRetry(2, 1, 1)),
        GroupConfig(name="g", retry_policy=ExponentialRetry(1, 2, 0)),
    ],
)
def test_retries_are_checked(group: GroupConfig) -> None:
    """Invalid retry settings are refused for new and for changed groups."""
    table = GroupTable(ManualClock(5000))
    with pytest.raises(IllegalGroupError, match=r"choose|give"):
        saved(table).create(group)
    saved(table).create(GroupConfig(name="g"))
    with pytest.raises(IllegalGroupError, match=r"choose|give"):
        saved(table).update(group)
    assert list(table) == [GroupConfig(name="g")]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"retryMaxTimes": "16"}, "retryMaxTimes"),
        ({"consumeEnable": 1}, "consumeEnable"),
        ({"groupRetryPolicy": []}, "groupRetryPolicy"),
        ({"groupRetryPolicy": {"type": "OTHER"}}, "groupRetryPolicy.type"),
        ({"groupRetryPolicy": {"customizedRetryPolicy": {"next": 1}}}, "groupRetryPolicy.customizedRetryPolicy.next"),
        (
            {"groupRetryPolicy": {"customizedRetryPolicy": {"next": [1, -1]}}},
            "groupRetryPolicy.customizedRetryPolicy.next[1]",
        ),
        (
            {"groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"multiplier": 0}}},
            "groupRetryPolicy.exponentialRetryPolicy.multiplier",
        ),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, object], field: str) -> None:
    """Valid JSON with the wrong content is refused with the full name of the field."""
    with pytest.raises(TableFormatError) as caught:
        table_with(**fields)
    assert caught.value.field == f"subscriptionGroup.json.subscriptionGroupTable.g.{field}"
