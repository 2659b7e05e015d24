"""Records made from a template are those of the whole messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aerobee_store import InvalidMessageError
from aerobee_store.records import properties as p
from aerobee_store.records.properties import Host
from aerobee_store.records.record import Draft, Message
from aerobee_store.records.record_template import RecordTemplate, TemplateMessage

FIRST = Message(
    topic="orders",
    queue_id=1,
    body=b"first",
    properties={p.UNIQ_KEY: "id-1", p.TAGS: "tag", p.KEYS: "a b", "näme": "é"},
    flag=7,
    sys_flag=0x301,
    born_timestamp=1_700_000_000_000,
    born_host=("10.0.0.1", 1234),
    reconsume_times=2,
)
ID_GAP = len(p.UNIQ_KEY) + 1, len(p.UNIQ_KEY) + 5
IPV4: Host = ("127.0.0.1", 10911)
IPV6: Host = ("::1", 10911)


def of_template(template: RecordTemplate, message: Message) -> TemplateMessage:
    message_id = message.properties[p.UNIQ_KEY]
    return TemplateMessage(
        template,
        bytes(message.body),
        message.queue_id,
        message.born_timestamp,
        message.born_host,
        [message_id.encode()],
        (message_id, "a", "b"),
    )


@pytest.mark.parametrize("property_crc", [True, False])
@pytest.mark.parametrize("store_host", [IPV4, IPV6])
@pytest.mark.parametrize("born", ["10.0.0.9", "fe80::9"])
@pytest.mark.parametrize("topic", ["orders", "t" * 127, "t" * 128])
def test_every_byte_is_that_of_the_whole_message(property_crc: bool, store_host: Host, born: str, topic: str) -> None:
    first = replace(FIRST, topic=topic, born_host=(born, 1))
    template = RecordTemplate(first, [ID_GAP], store_host=store_host, property_crc=property_crc)
    message = replace(
        first,
        queue_id=5,
        body=b"another body",
        properties={**first.properties, p.UNIQ_KEY: "id-2"},
        born_timestamp=1,
        born_host=(born, 65535),
    )
    draft = Draft(message, store_host=store_host, property_crc=property_crc)
    made = of_template(template, message)
    assert template.encode(made, 1 << 40, 1 << 50, 1 << 41) == draft.encode(1 << 40, 1 << 50, 1 << 41)
    assert made.size == draft.size
    assert template.properties(made) == dict(message.properties)
    assert template.tags_code == p.tags_code("tag")


def test_a_template_without_gaps_or_properties() -> None:
    first = replace(FIRST, properties={})
    template = RecordTemplate(first, [], store_host=IPV4, property_crc=True)
    made = TemplateMessage(template, b"x", 0, 0, first.born_host)
    whole = replace(first, body=b"x", queue_id=0, born_timestamp=0)
    assert template.encode(made, 1, 2, 3) == Draft(whole, store_host=IPV4, property_crc=True).encode(1, 2, 3)
    assert (template.properties(made), template.tags_code) == ({}, 0)


def test_a_property_that_looks_like_the_checksum() -> None:
    """Beside the real checksum it is a property; a record without one would be read as corrupt, so it is refused."""
    first = replace(FIRST, properties={"x__CRC32#": "0123456789"})
    template = RecordTemplate(first, [], store_host=IPV4, property_crc=True)
    made = TemplateMessage(template, b"first", 1, first.born_timestamp, first.born_host)
    assert template.encode(made, 1, 2, 3) == Draft(first, store_host=IPV4, property_crc=True).encode(1, 2, 3)
    with pytest.raises(InvalidMessageError, match="looks like the checksum"):
        RecordTemplate(first, [], store_host=IPV4, property_crc=False)
    with pytest.raises(InvalidMessageError, match="rename the property"):
        Draft(first, store_host=IPV4, property_crc=False)


def test_the_first_message_is_checked() -> None:
    with pytest.raises(InvalidMessageError, match="the limit is"):
        RecordTemplate(replace(FIRST, properties={"a": "b" * 40_000}), [], store_host=IPV4, property_crc=True)
