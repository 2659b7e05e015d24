"""Six records with known bytes, accepted by RocketMQ's own store, which built the expected queues from them."""

from __future__ import annotations

from dataclasses import dataclass

from aerobee_store.records.record import Message

STORE_HOST = ("192.168.1.5", 10911)
BORN_HOST = ("10.1.2.3", 50000)
BORN_TIMESTAMP = 1700000000000


@dataclass(frozen=True, slots=True)
class Vector:
    """A message, its place, and its record."""

    message: Message
    queue_offset: int
    physical_offset: int
    store_timestamp: int
    encoded: bytes
    property_crc: bool = False


def _message(topic: str, queue_id: int, body: str, raw_properties: bytes, born: tuple[str, int] = BORN_HOST) -> Message:
    return Message(
        topic,
        queue_id,
        body.encode(),
        raw_properties=raw_properties,
        born_timestamp=BORN_TIMESTAMP,
        born_host=born,
    )


VECTORS = [
    Vector(
        _message(
            "TopicTest",
            1,
            "hello",
            b"KEYS\x01k1 k2\x02UNIQ_KEY\x017F000001000018B4AAC27D8F5B6C0000\x02TAGS\x01TagA\x02",
        ),
        0,
        0,
        1700000000123,
        bytes.fromhex(
            "000000a8daa320a73610a686000000010000000000000000000000000000000000000000000000000000018bcfe56800"
            "0a0102030000c3500000018bcfe5687bc0a8010500002a9f0000000000000000000000000000000568656c6c6f09546f"
            "70696354657374003f4b455953016b31206b3202554e49515f4b45590137463030303030313030303031384234414143"
            "3237443846354236433030303002544147530154616741 02"
        ),
    ),
    Vector(
        _message("TopicTest", 1, "v6", b"", ("2001:db8::1", 50001)),
        1,
        168,
        1700000000456,
        bytes.fromhex(
            "00000072daa320a7770659160000000100000000000000000000000100000000000000a8000000100000018bcfe56800"
            "20010db80000000000000000000000010000c3510000018bcfe569c8c0a8010500002a9f000000000000000000000000"
            "0000000276360954 6f706963546573740000"
        ),
    ),
    Vector(
        _message("T" * 130, 0, "v2", b""),
        0,
        282,
        1700000000789,
        bytes.fromhex(
            "000000e0daa320ab706b9d0f00000000000000000000000000000000000000000000011a000000000000018bcfe56800"
            "0a0102030000c3500000018bcfe56b15c0a8010500002a9f0000000000000000000000000000000276320082"
            + "54" * 130
            + "0000"
        ),
    ),
    Vector(
        _message("TopicTest", 1, "world2", b"TAGS\x01TagB\x02KEYS\x01k1\x02"),
        2,
        506,
        1700000002500,
        bytes.fromhex(
            "00000090daa320a7753ad9360000000100000000000000000000000200000000000001fa000000000000018bcfe56800"
            "0a0102030000c3500000018bcfe571c4c0a8010500002a9f00000000000000000000000000000006776f726c64320954"
            "6f7069635465737400265441475301546167 42024b455953016b31025f5f4352433332230138353936353338303930"
            "02"
        ),
        property_crc=True,
    ),
    Vector(
        _message(
            "SCHEDULE_TOPIC_XXXX",
            2,
            "d",
            b"DELAY\x013\x02REAL_TOPIC\x01TopicTest\x02REAL_QID\x011\x02TAGS\x01TagA\x02",
        ),
        0,
        650,
        1700000003000,
        bytes.fromhex(
            "000000a1daa320a718dd4acc00000002000000000000000000000000000000000000028a000000000000018bcfe56800"
            "0a0102030000c3500000018bcfe573b8c0a8010500002a9f000000000000000000000000000000016413534348454455"
            "4c455f544f5049435f58585858003244454c41590133025245414c5f544f50494301546f70696354657374025245414c"
            "5f5149440131025441475301546167 4102"
        ),
    ),
    Vector(
        _message("TopicTest", 1, "中", "TAGS\x01TopicTest\x02KEYS\x01k2 订单1\x02".encode()),
        3,
        4096,
        1700000005000,
        bytes.fromhex(
            "00000086daa320a755d15a8b000000010000000000000000000000030000000000001000000000000000018bcfe56800"
            "0a0102030000c3500000018bcfe57b88c0a8010500002a9f00000000000000000000000000000003e4b8ad09546f7069"
            "6354657374001f5441475301546f70696354657374024b455953016b3220e8aea2e58d953102"
        ),
    ),
]

SEGMENT = (b"".join(v.encoded for v in VECTORS[:5]) + bytes.fromhex("00000cd5cbd43194")).ljust(4096, b"\x00")
"""The first five records, one after another, and the blank that ends their segment."""
