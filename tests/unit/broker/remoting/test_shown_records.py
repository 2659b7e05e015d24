"""What remoting clients see of a record."""

from __future__ import annotations

import pytest

from aerobee_broker.remoting.shown_records import shown_bytes, shown_properties
from aerobee_store.records.properties import encode_properties
from aerobee_store.records.record import Message, Record, decode, encode

_OWN = {"__AEROBEE_TIMER": "7", "__AEROBEE_SENDER": "client"}


class Log:
    """A log with one record."""

    def __init__(self, stored: bytes) -> None:
        self.stored = stored

    def record_bytes(self, _record: Record, /) -> bytes:
        return self.stored


@pytest.mark.parametrize("own", [{}, _OWN])
@pytest.mark.parametrize("seen", [{}, {"UNIQ_KEY": "A", "x__AEROBEE_": "__CRC32#", "TAGS": "é"}])
@pytest.mark.parametrize("is_open", [False, True])
def test_the_checksum_and_marks_of_the_broker_were_shown(
    own: dict[str, str], seen: dict[str, str], is_open: bool
) -> None:
    """The rest of the record is the same, also with a string of properties whose last pair is left open."""
    raw = encode_properties({**own, **seen})
    body = b"__AEROBEE_ __CRC32#\x01 in a body"
    message = Message("T", 1, body, raw_properties=raw.removesuffix(b"\x02") if is_open else raw)
    log = Log(
        encode(
            message,
            queue_offset=2,
            physical_offset=300,
            store_timestamp=1_700_000_000_000,
            store_host=("127.0.0.1", 8081),
            property_crc=True,
        )
    )
    stored = decode(log.stored, 0)
    assert isinstance(stored, Record)
    assert stored.properties.keys() >= {"__CRC32#", *own, *seen}
    shown = shown_bytes(log, stored)
    found = decode(shown, 0)
    assert isinstance(found, Record)
    assert found.size == len(shown)
    assert (found.body, found.topic, found.queue_id, found.physical_offset) == (body, "T", 1, stored.physical_offset)
    assert found.properties == seen == shown_properties(stored.properties)
