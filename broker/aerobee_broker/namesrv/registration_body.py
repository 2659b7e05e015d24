"""The body of REGISTER_BROKER: a broker's topics, as JSON or compressed. Integers are big-endian and signed.

The compressed form is one zlib stream of

    4 size, the data version as JSON
    4 count of topics; each: 4 size, `name readQueues writeQueues perm filterType`, RocketMQ 5 adds ` attributes`
    4 size, the list of filter servers as JSON, which has been empty since RocketMQ 4
    from version 5.0.0 on: 4 count of static topics, each 4 size, JSON; they are not kept

Brokers of RocketMQ 5 that compress declare the opposite, so the first byte of the body decides.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from aerobee_broker.errors import TableFormatError
from aerobee_broker.limits.loop_share import Turns
from aerobee_broker.namesrv.route_tables import QueueData
from aerobee_broker.remoting_wire.codes import Answer
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.tables.data_version import DataVersion
from aerobee_broker.tables.json_fields import JsonFields
from aerobee_broker.tables.topics import MESSAGE_TYPE
from aerobee_store.tables import java_json

_BODY_SIZE_MAX: Final = 8 << 20  # decompressed: some 100,000 topics in the compressed form
_EXPANSION_MAX: Final = 50  # decompressed bytes for each sent one, above ...
_EXPANDED_SIZE_MIN: Final = 64 << 10  # ... this many; lists of topics have 5 to 20
_TOPICS_MAX: Final = 50_000
_TOPICS_AT_ONCE: Final = 256  # topics that are read between two looks at the clock
_ZLIB: Final = 0x78
_TYPE_LENGTH_MAX: Final = 32
_I32: Final = struct.Struct(">i")


async def read_body(body: bytes, *, compressed: bool) -> tuple[DataVersion, dict[str, QueueData]]:
    """The version of a broker's topics, and the topics, read in short steps. An empty body has none.

    RemotingError, JsonFormatError.
    """
    if not body:
        return DataVersion(), {}
    try:
        return await (_read_compressed(_inflated(body)) if compressed or body[0] == _ZLIB else _read_json(body))
    except TableFormatError as error:
        raise RemotingError(Answer.INVALID_PARAMETER, str(error).partition(";")[0]) from None


async def _read_json(body: bytes) -> tuple[DataVersion, dict[str, QueueData]]:
    value = java_json.loads_body(body, size_max=_BODY_SIZE_MAX)
    fields = JsonFields("body", value)
    wrapper = fields.mapping("topicConfigSerializeWrapper") or value  # brokers before 3.0.11 send the wrapper itself
    fields = JsonFields("topicConfigSerializeWrapper", wrapper)
    version = DataVersion.from_json("dataVersion", fields.mapping("dataVersion"))
    turns = Turns()
    topics = {}
    for name, item in fields.mapping("topicConfigTable").items():
        topics[name] = _queues(name, item)
        if not len(topics) % _TOPICS_AT_ONCE:
            await turns.next()
    return version, topics


def _queues(name: str, value: object) -> QueueData:
    fields = JsonFields(f"topicConfigTable.{name}", value)
    return QueueData(
        fields.integer("readQueueNums", 16),
        fields.integer("writeQueueNums", 16),
        fields.integer("perm", 6),
        fields.integer("topicSysFlag", 0),
        fields.texts("attributes").get(MESSAGE_TYPE, "")[:_TYPE_LENGTH_MAX],
    )


def _inflated(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    size_max = min(_BODY_SIZE_MAX, max(_EXPANDED_SIZE_MIN, _EXPANSION_MAX * len(body)))
    try:
        data = inflater.decompress(body, size_max)
    except zlib.error as error:
        raise RemotingError(Answer.INVALID_PARAMETER, f"the body is marked as compressed but is not: {error}") from None
    if inflater.unconsumed_tail:
        raise RemotingError(
            Answer.INVALID_PARAMETER,
            f"the body has more than {size_max} bytes uncompressed, the limit for {len(body)} bytes; send fewer topics",
        )
    if not inflater.eof:
        raise RemotingError(Answer.INVALID_PARAMETER, "the compressed body ends too early")
    return data


async def _read_compressed(data: bytes) -> tuple[DataVersion, dict[str, QueueData]]:
    try:
        text, at = _text(data, 0)
        version = DataVersion.from_json("dataVersion", java_json.loads_body(text.encode()))
        (count,) = _I32.unpack_from(data, at)
        if count > _TOPICS_MAX:
            raise ValueError(f"{count} topics; a broker may have {_TOPICS_MAX}")
        at += _I32.size
        topics: dict[str, QueueData] = {}
        turns = Turns()
        for number in range(count):
            if not number % _TOPICS_AT_ONCE:
                await turns.next()
            text, at = _text(data, at)
            name, read, write, permission, *_ = text.split(" ")
            topics[name] = QueueData(int(read), int(write), int(permission))
        return version, topics
    except (struct.error, ValueError) as error:
        raise RemotingError(
            Answer.INVALID_PARAMETER, f"the body ends too early or is not compressed: {error}"
        ) from None


def _text(data: bytes, at: int) -> tuple[str, int]:
    (size,) = _I32.unpack_from(data, at)
    begin = at + _I32.size
    if not 0 <= size <= len(data) - begin:
        raise ValueError(f"{size} bytes where {len(data) - begin} are left")
    return data[begin : begin + size].decode(), begin + size
