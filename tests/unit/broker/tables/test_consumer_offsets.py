"""The table of consumer offsets: commits, resets, removal, and RocketMQ's file."""

from __future__ import annotations

import pytest

from aerobee_broker.errors import TableFormatError
from aerobee_broker.tables.consumer_offsets import OffsetTable
from aerobee_broker.tables.data_version import DataVersion
from aerobee_store.tables.java_json import dumps, loads
from aerobee_store.testing import ManualClock


@pytest.fixture
def table() -> OffsetTable:
    return OffsetTable(ManualClock(5000))


def test_commit_and_get(table: OffsetTable) -> None:
    """Each topic, group and queue has its own offset, or none before the first commit."""
    assert table.get("t", "g", 0) is None
    assert table.commit("t", "g", 0, 5)
    assert table.commit("t", "g", 3, 0)
    assert table.commit("t", "h", 0, 2**63 - 1)
    assert (table.get("t", "g", 0), table.get("t", "g", 3), table.get("t", "h", 0)) == (5, 0, 2**63 - 1)
    assert (table.get("t", "g", 1), table.get("u", "g", 0)) == (None, None)
    assert table.queues("t", "g") == {0: 5, 3: 0}
    assert table.queues("u", "g") == {}


def test_commit_never_goes_back_unless_forced(table: OffsetTable) -> None:
    """A lower offset is ignored and leaves the table clean, unless it is forced."""
    table.commit("t", "g", 0, 5)
    table.mark_saved(table.revision)
    assert not table.commit("t", "g", 0, 4)
    assert not table.commit("t", "g", 0, 5)
    assert not table.commit("t", "g", 0, 5, force=True)
    assert (table.get("t", "g", 0), table.dirty) == (5, False)
    assert table.commit("t", "g", 0, 4, force=True)
    assert (table.get("t", "g", 0), table.dirty) == (4, True)
    assert table.commit("t", "g", 0, 6)
    assert table.get("t", "g", 0) == 6


def test_dirty_until_that_change_is_saved(table: OffsetTable) -> None:
    """A commit during a save keeps the table dirty."""
    seen = [table.dirty]
    table.commit("t", "g", 0, 1)
    revision = table.revision
    table.commit("t", "g", 0, 2)
    table.mark_saved(revision)
    seen.append(table.dirty)
    table.mark_saved(table.revision)
    assert [*seen, table.dirty] == [False, True, False]


def test_version_counts_every_500th_commit(table: OffsetTable) -> None:
    """The version increments every 500 commits, as in RocketMQ."""
    for offset in range(1, 500):
        table.commit("t", "g", 0, offset)
    assert table.version == DataVersion()
    table.commit("t", "g", 0, 500)
    assert table.version == DataVersion(1, 0, 5000)
    for offset in range(501, 1001):
        table.commit("t", "g", 0, offset)
    assert table.version.counter == 2


def test_remove(table: OffsetTable) -> None:
    """Removing a topic or a group removes exactly its offsets."""
    for topic in ("t", "u"):
        for group in ("g", "h"):
            table.commit(topic, group, 0, 1)
    assert (table.groups_of("t"), table.topics_of("g")) == (("g", "h"), ("t", "u"))
    table.remove_topic("t")
    assert (table.get("t", "g", 0), table.get("u", "g", 0)) == (None, 1)
    assert (table.groups_of("t"), table.topics_of("g")) == ((), ("u",))
    table.remove_group("g")
    assert (table.get("u", "g", 0), table.get("u", "h", 0)) == (None, 1)
    revision = table.revision
    table.remove_group("nobody")
    table.remove_topic("nothing")
    assert table.revision == revision
    assert loads(dumps(table.snapshot())) == {
        "dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 5000},
        "groupTopicMap": {"h": ["u"]},
        "offsetTable": {"u@h": {"0": 1}},
    }


def test_layout_and_independence_of_a_snapshot(table: OffsetTable) -> None:
    """The snapshot has RocketMQ's layout with bare queue ids and does not change with later commits."""
    table.commit("t", "g", 0, 7)
    table.commit("t", "g", 11, 8)
    snapshot = table.snapshot()
    table.commit("t", "g", 0, 9)
    table.commit("u", "g", 0, 9)
    assert dumps(snapshot).decode() == (
        '{\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n\t\t"timestamp":0\n\t},\n'
        '\t"groupTopicMap":{\n\t\t"g":["t"]\n\t},\n\t"offsetTable":{\n\t\t"t@g":{0:7,11:8\n\t\t}\n\t}\n}'
    )


def test_file_of_release_43_has_only_offsets() -> None:
    """The topics of each group are derived from the offsets. Malformed keys are preserved."""
    text = b'{"offsetTable":{"t@g":{0:1},"%RETRY%g@g":{"0":2},"odd":{0:3}},"more":{"x":1}}'
    table = OffsetTable.from_json(loads(text), ManualClock(5000))
    assert table.topics_of("g") == ("t", "%RETRY%g")
    assert table.get("%RETRY%g", "g", 0) == 2
    assert loads(dumps(table.snapshot())) == {
        "dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0},
        "groupTopicMap": {"g": ["t", "%RETRY%g"]},
        "more": {"x": 1},
        "offsetTable": {"t@g": {"0": 1}, "%RETRY%g@g": {"0": 2}, "odd": {"0": 3}},
    }
    assert not table.dirty
    assert OffsetTable.from_json(None, ManualClock(5000)).snapshot()["offsetTable"] == {}


def test_minus_one_means_no_offset() -> None:
    """-1 is RocketMQ's value for a queue without a commit."""
    table = OffsetTable.from_json({"offsetTable": {"t@g": {"0": -1, "1": 2}}}, ManualClock(5000))
    assert table.queues("t", "g") == {1: 2}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("x", "consumerOffset.json"),
        ({"offsetTable": {"t@g": [1]}}, "consumerOffset.json.offsetTable.t@g"),
        ({"offsetTable": {"t@g": {"x": 1}}}, "consumerOffset.json.offsetTable.t@g"),
        ({"offsetTable": {"t@g": {"-1": 1}}}, "consumerOffset.json.offsetTable.t@g"),
        ({"offsetTable": {"t@g": {"2147483648": 1}}}, "consumerOffset.json.offsetTable.t@g"),
        ({"offsetTable": {"t@g": {"0": -2}}}, "consumerOffset.json.offsetTable.t@g.0"),
        ({"offsetTable": {"t@g": {"0": 2**63}}}, "consumerOffset.json.offsetTable.t@g.0"),
        ({"offsetTable": {"t@g": {"0": 1.5}}}, "consumerOffset.json.offsetTable.t@g.0"),
        ({"groupTopicMap": {"g": "t"}}, "consumerOffset.json.groupTopicMap.g"),
        ({"groupTopicMap": {"g": [1]}}, "consumerOffset.json.groupTopicMap.g"),
    ],
)
def test_wrong_fields_are_named(value: object, field: str) -> None:
    """Valid JSON with the wrong content is refused with the full name of the field."""
    with pytest.raises(TableFormatError) as caught:
        OffsetTable.from_json(value, ManualClock(5000))
    assert caught.value.field == field
