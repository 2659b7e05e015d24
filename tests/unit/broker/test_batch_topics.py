"""Topics with RocketMQ's queue.type=BatchCQ, which take inner batches, in a broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerobee_broker.errors import TableFormatError
from aerobee_broker.tables.table_files import BatchTopics
from aerobee_broker.tables.topics import TopicConfig, TopicTable
from aerobee_proto import v2
from aerobee_store.testing import ManualClock
from tests.support.in_process_broker import METADATA, in_process_broker, message
from tests.support.saved_tables import saved


def write_topics(directory: Path, **attributes: dict[str, str]) -> None:
    """A topics.json with these topics and their attributes."""
    (directory / "config").mkdir(parents=True)
    table = {name: {"topicName": name, "attributes": values} for name, values in attributes.items()}
    (directory / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))


def test_the_file_decides_until_the_table_is_attached(tmp_path: Path) -> None:
    """The attribute in the file decides until the topic table is attached. Unknown topics are not batch topics."""
    write_topics(tmp_path, metering={"queue.type": "BatchCQ"}, orders={"queue.type": "SimpleCQ"}, plain={})
    batch_topics = BatchTopics(tmp_path, ManualClock())
    assert [batch_topics(name) for name in ("metering", "orders", "plain", "other")] == [True, False, False, False]
    topics = TopicTable.from_json(None, ManualClock())
    batch_topics.attach(topics)
    assert not batch_topics("metering")
    saved(topics).create(TopicConfig(name="later", attributes={"queue.type": "BatchCQ"}))
    assert batch_topics("later")


def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    """An unreadable topics.json stops the start, because a guess could accept wrong messages."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text('{"topicConfigTable": {"a": 7}}')
    with pytest.raises(TableFormatError):
        BatchTopics(tmp_path, ManualClock())("a")


async def test_a_single_message_is_refused(tmp_path: Path) -> None:
    """A batch topic refuses single messages, even the first one, also after a restart."""
    write_topics(tmp_path, metering={"queue.type": "BatchCQ"}, orders={})
    for _ in range(2):
        async with in_process_broker(tmp_path) as broker:
            for topic, code, text in (
                ("metering", v2.Code.BAD_REQUEST, "takes inner batches only"),
                ("orders", v2.Code.OK, "OK"),
            ):
                request = v2.SendMessageRequest(messages=[message(topic)])
                answer = await broker.messaging.SendMessage(request, metadata=METADATA, timeout=60)
                assert answer.status.code == code
                assert text in answer.status.message
        assert not (tmp_path / "consumequeue" / "metering").exists()
