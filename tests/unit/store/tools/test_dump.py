"""dump gives every record in log order, in the form of the golden manifests, and skips damage."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest

from aerobee_store import Message, MessageStore, StoreConfig, StoreDirectoryError
from aerobee_store.tools.dump import dump
from aerobee_store.tools.findings import Finding
from tests.unit.store.tools.conftest import COUNT, Stored, snapshot


def test_every_record_in_log_order(stored: Stored) -> None:
    """The fields equal those of the messages, and nothing is changed."""
    before = snapshot(stored.directory)
    findings: list[Finding] = []
    records = list(dump(stored.directory, on_finding=findings.append))
    assert findings == []
    assert [record["physicalOffset"] for record in records] == [place.physical_offset for place in stored.places]
    for record, message, place in zip(records, stored.messages, stored.places, strict=True):
        assert (record["topic"], record["queueId"]) == (message.topic, message.queue_id)
        assert (record["queueOffset"], record["size"]) == (place.queue_offset, place.size)
        assert record["bornHost"] == "10.0.0.1:5000"
        properties = record["properties"]
        assert isinstance(properties, dict)
        assert message.properties.items() <= properties.items()
    json.dumps(records)
    assert snapshot(stored.directory) == before


def test_bodies(stored: Stored) -> None:
    """A body of up to 256 bytes is base64, a longer one its length and hash; on request it is complete."""
    for record, whole, message in zip(
        dump(stored.directory), dump(stored.directory, bodies=True), stored.messages, strict=True
    ):
        body = bytes(message.body)
        if len(body) <= 256:
            assert record["body"] == base64.b64encode(body).decode()
        else:
            assert record["body"] == {"length": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        assert whole["body"] == base64.b64encode(body).decode()


def test_ipv6_hosts_and_irregular_properties(tmp_path: Path) -> None:
    """Hosts are in brackets; a property string that pairs cannot reproduce is given as bytes too."""
    config = StoreConfig.tiny(tmp_path / "data")
    with MessageStore.open(config) as store:
        store.append([Message("A", 0, b"", raw_properties=b"a\x01b\x02c\x01\x02", born_host=("2001:db8::1", 9))])
        store.flush()
    (record,) = dump(config.directory)
    assert record["bornHost"] == "[2001:db8::1]:9"
    assert isinstance(record["propertiesRaw"], str)
    assert base64.b64decode(record["propertiesRaw"]).startswith(b"a\x01b\x02c\x01\x02")


@pytest.mark.parametrize("first", [0, 1, 57, COUNT - 1])
def test_a_part_of_the_log(stored: Stored, first: int) -> None:
    """From and to are physical offsets, at the start of a record or anywhere between."""
    place = stored.places[first]
    wanted = [each.physical_offset for each in stored.places[first : first + 20]]
    end = stored.places[min(first + 20, COUNT) - 1].physical_offset + 1
    for begin in {place.physical_offset, max(place.physical_offset - 1, 0)}:
        found = [record["physicalOffset"] for record in dump(stored.directory, begin=begin, end=end)]
        assert found == wanted


def test_a_part_after_the_log(stored: Stored) -> None:
    """The result is empty."""
    assert list(dump(stored.directory, begin=1 << 40)) == []


def test_one_topic_and_a_time_range(stored: Stored) -> None:
    """Filters are combined, and the time range is inclusive."""
    times = [place.store_timestamp for place in stored.places]
    found = dump(stored.directory, topic="A", begin_time=times[10], end_time=times[30])
    wanted = [
        place.physical_offset
        for message, place in zip(stored.messages, stored.places, strict=True)
        if message.topic == "A" and times[10] <= place.store_timestamp <= times[30]
    ]
    assert [record["physicalOffset"] for record in found] == wanted
    assert len(wanted) == 11


def test_damage_is_skipped_and_reported(stored: Stored) -> None:
    """Two damaged records and a torn one give three findings and all other records."""
    for number in (5, 77):
        stored.patch_log(stored.places[number].physical_offset + 8, b"\0\0\0\0")
    last = stored.places[-1]
    stored.patch_log(last.physical_offset + 60, bytes(last.size - 60))
    findings: list[Finding] = []
    records = list(dump(stored.directory, on_finding=findings.append))
    assert [(finding.kind, finding.physical_offset) for finding in findings] == [
        ("log-damaged", stored.places[5].physical_offset),
        ("log-damaged", stored.places[77].physical_offset),
        ("log-torn", last.physical_offset),
    ]
    assert len(records) == COUNT - 3
    # For a part of the log only its damage is reported.
    findings.clear()
    begin = stored.places[70].physical_offset
    list(dump(stored.directory, begin=begin, end=stored.places[90].physical_offset, on_finding=findings.append))
    assert [finding.physical_offset for finding in findings] == [stored.places[77].physical_offset]


def test_unexpected_files_are_reported(stored: Stored) -> None:
    """Files that cannot be segments are reported and left out."""
    (stored.directory / "commitlog" / "notes.txt").write_text("hello")
    findings: list[Finding] = []
    assert len(list(dump(stored.directory, on_finding=findings.append))) == COUNT
    assert [finding.kind for finding in findings] == ["segment-file"]
    assert "commitlog/notes.txt" in str(findings[0])


def test_no_store(tmp_path: Path) -> None:
    """The error is raised at once, not with the first record."""
    with pytest.raises(StoreDirectoryError):
        dump(tmp_path)


def test_a_live_store(tmp_path: Path) -> None:
    """Records written during the dump are included; the moving end is no finding."""
    config = StoreConfig.tiny(tmp_path / "data")
    findings: list[Finding] = []
    with MessageStore.open(config) as store:
        for number in range(100):
            store.append([Message("A", 0, b"x" * number)])
        store.flush()
        records = dump(config.directory, on_finding=findings.append)
        seen = [next(records)]
        for number in range(30):
            store.append([Message("A", 0, b"x" * number)])
        store.flush()
        seen += records
    assert findings == []
    assert len(seen) >= 100
    assert [record["queueOffset"] for record in seen] == list(range(len(seen)))
