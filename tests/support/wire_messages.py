"""Messages of SendMessage as bytes, and the records that they must have."""

from __future__ import annotations

from pathlib import Path

from aerobee_broker.config import LimitsConfig
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.messages.message_mapping import NORMAL, message_type, to_store_message
from aerobee_broker.messages.validation import check_message
from aerobee_broker.messages.wire_fields import varint
from aerobee_broker.processors.sending.send_alike import AnySendRequest, read_many
from aerobee_broker.processors.sending.send_known import Parse, SendKnown, SendReader, place_of_one
from aerobee_proto import v2
from aerobee_store import StoreConfig
from aerobee_store.records.record import Draft

PEER = ("10.1.2.3", 5000)
NOW = 1_700_000_000_000
LIMITS = LimitsConfig()

parse = v2.SendMessageRequest.FromString


def read(data: bytes, reader: SendReader, parse: Parse = parse) -> AnySendRequest:
    """Read a request as the service does."""
    place = place_of_one(data)
    return read_many(data, reader, parse) if place is None else reader.read(data, [place], parse)


def records_of(found: object, *, property_crc: bool = True) -> tuple[list[bytes], list[str]] | None:
    """The records, without their places, and the ids of a request with normal messages of known layouts; None for other
    requests."""
    if not isinstance(found, SendKnown):
        return None
    store = StoreConfig(directory=Path("unused"), body_size_max=1000, property_crc=property_crc)
    records = []
    for known in found.messages:
        message = known.templated("orders", 3, PEER, NOW, LIMITS, store)
        if message is None or known.layout.kind != NORMAL:
            return None
        record = bytearray(message.encode(0, 0, 0))
        if property_crc:
            record[-11:-1] = b"0000000000"
        records.append(bytes(record))
    return records, [known.words[0].decode() for known in found.messages]


def one_by_one(data: bytes, *, property_crc: bool = True) -> tuple[list[bytes], list[str]] | None:
    """The same by the functions for single messages; None if not all are valid normal messages."""
    request = v2.SendMessageRequest.FromString(data)
    records = []
    try:
        for message in request.messages:
            check_message(message, LIMITS, 1000, NOW)
            if message_type(message.system_properties) != NORMAL or message.topic != request.messages[0].topic:
                return None
            stored = to_store_message(message, "orders", 3, PEER, NOW)
            draft = Draft(stored, store_host=("127.0.0.1", 8081), property_crc=property_crc)
            records.append(draft.encode_unplaced())
    except InvalidRequestError:
        return None
    return records, [message.system_properties.message_id for message in request.messages]


def request_of(sent: list[v2.Message]) -> bytes:
    return v2.SendMessageRequest(messages=sent).SerializeToString()


def joined(encoded: list[bytes]) -> bytes:
    return b"".join(b"\x0a" + varint(len(each)) + each for each in encoded)


def compressed(message: v2.Message) -> None:
    message.body = b"\x1f\x8b" + message.body  # as the content of a gzip file begins
    message.system_properties.body_encoding = v2.Encoding.GZIP
