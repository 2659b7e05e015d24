"""Property strings, Java hashes, hosts and message ids."""

from __future__ import annotations

import pytest

from aerobee_store.errors import InvalidMessageError
from aerobee_store.records import properties

JAVA_HASHES = {
    "TagA": 2598919,
    "TagB": 2598920,
    "TopicTest": -1902610879,
    "中文": 646394,
    "标签": 857175,
    "é": 233,
    "😀": 1772899,
    "\ud83d": 55357,
    "Aa": 2112,
    "BB": 2112,
    "": 0,
    "TagA || TagB": 1359775119,
    "polygenelubricants": -2147483648,
}


@pytest.mark.parametrize(("text", "expected"), JAVA_HASHES.items(), ids=ascii)
def test_java_hash(text: str, expected: int) -> None:
    """The hash is that of Java's String.hashCode, and a tag's code is the hash."""
    assert properties.java_hash(text) == expected
    assert properties.tags_code(text) == expected


def test_java_hash_of_long_text() -> None:
    """Text longer than the table of powers is hashed in parts with the same result."""
    for text in ("x" * 1000, "ab中" * 300, "a" * 256, "a" * 257):
        value = 0
        for unit in memoryview(text.encode("utf-16-le")).cast("H"):
            value = (31 * value + unit) % 2**32
        assert properties.java_hash(text) % 2**32 == value


def test_tags_code_without_tags() -> None:
    """A message without a tag has the code 0."""
    assert properties.tags_code(None) == 0
    assert properties.tags_code("") == 0


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("k1", 2746024),
        ("k2", 2746025),
        ("订单1", 120035676),
        ("7F000001000018B4AAC27D8F5B6C0000", 131000623),
        ("ogb2mc", 0),
    ],
)
def test_index_hash(key: str, expected: int) -> None:
    """The key hash is the absolute value of the hash of topic#key, and 0 if that is the smallest integer."""
    assert properties.index_hash("TopicTest", key) == expected


def test_properties_are_written_closed() -> None:
    """Every pair ends with a separator, including the last."""
    assert properties.encode_properties({"KEYS": "k1 k2", "TAGS": "é"}) == b"KEYS\x01k1 k2\x02TAGS\x01\xc3\xa9\x02"
    assert properties.encode_properties({}) == b""


def test_properties_that_are_not_stored() -> None:
    """Empty values, transient properties and another record's checksum are left out."""
    given = {"a": "", "__RMQ.TRANSIENT.x": "1", "__CRC32#": "0123456789", "b": "2"}
    assert properties.encode_properties(given) == b"b\x012\x02"


@pytest.mark.parametrize(
    "given",
    [{"": "x"}, {"a\x01b": "x"}, {"a\x02b": "x"}, {"a": "x\x02y"}, {"a": "\ud83d"}, {"a": "x" * 32765}],
    ids=["no name", "0x01 in name", "0x02 in name", "0x02 in value", "lone surrogate", "32768 bytes"],
)
def test_properties_that_cannot_be_stored(given: dict[str, str]) -> None:
    """Properties that a reader would split differently, or that do not fit, are refused."""
    with pytest.raises(InvalidMessageError):
        properties.encode_properties(given)


def test_the_largest_properties() -> None:
    """A property string may have 32767 bytes."""
    assert len(properties.encode_properties({"a": "x" * 32764})) == properties.PROPERTIES_SIZE_MAX


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (b"", {}),
        (b"a\x011\x02b\x012\x02", {"a": "1", "b": "2"}),
        (b"a\x011\x02b\x012", {"a": "1", "b": "2"}),
        (b"note\x01a\x01b\x02\x01lost\x02empty\x01\x02TAGS\x01odd\x02", {"note": "a\x01b", "TAGS": "odd"}),
        (b"name\x02a\x011\x02", {"a": "1"}),
        (b"a\x011\x02a\x012\x02", {"a": "2"}),
        (b"a\x01\xff\x02\xe4\xb8\x02b\x01\xe4\xb8", {"a": "\ufffd", "b": "\ufffd"}),
        (b"\x02\x02\x01\x02", {}),
    ],
    ids=["empty", "closed", "open", "odd pairs", "no separator", "twice", "not UTF-8", "separators only"],
)
def test_tolerant_reading(encoded: bytes, expected: dict[str, str]) -> None:
    """A reader takes valid pairs and skips the rest; it never fails."""
    assert properties.decode_properties(encoded) == expected


def test_keys_are_split_at_single_spaces() -> None:
    """Empty tokens are no keys."""
    assert properties.split_keys("k1  k2 k1 ") == ["k1", "k2", "k1"]
    assert properties.split_keys("") == []


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (("192.168.1.5", 10911), "C0A8010500002A9F00000000000000A8"),
        (("2001:db8::1", 10911), "20010DB800000000000000000000000100002A9F00000000000000A8"),
    ],
)
def test_offset_message_id(host: properties.Host, expected: str) -> None:
    """An id is built from host and offset, and parsed back."""
    assert properties.offset_message_id(host, 168) == expected
    assert properties.parse_offset_message_id(expected) == (host, 168)
    assert properties.parse_offset_message_id(expected.lower()) == (host, 168)


@pytest.mark.parametrize(
    "message_id",
    ["", "C0A8", "x" * 32, " " * 32, "C0A8010500002A9F80000000000000A8", "C0A80105FFFFFFFF00000000000000A8", "0" * 33],
    ids=["empty", "short", "no digits", "spaces", "negative offset", "negative port", "odd size"],
)
def test_invalid_offset_message_ids(message_id: str) -> None:
    """Any other text is refused and named."""
    with pytest.raises(InvalidMessageError):
        properties.parse_offset_message_id(message_id)


@pytest.mark.parametrize("host", [("broker-a", 1), ("", 1), ("10.0.0.1", 65536), ("10.0.0.1", -1), ("fe80::1%eth0", 1)])
def test_hosts_that_cannot_be_stored(host: properties.Host) -> None:
    """Host names and invalid ports are refused."""
    with pytest.raises(InvalidMessageError):
        properties.encode_host(host)


def test_hashing_many_keys_equals_hashing_each() -> None:
    """Keys of equal length are hashed by matrix, others one by one, with the same results."""
    keys = [("TopicTest", f"0102FC000000014AB00B13010{number:09X}") for number in range(50)]
    keys += [
        ("订单", "订单1"),
        ("TopicTest", "k1"),
        ("TopicTest", "k2"),
        ("TopicTest", "x" * 300),
        ("TopicTest", "ogb2mc"),
    ]
    keys += [("t", "ogb2mc"), ("TopicTest", "")] + [("TopicTest", "ogb2mc")] * 20
    assert properties.index_hashes(keys) == [properties.index_hash(topic, key) for topic, key in keys]
    assert properties.index_hashes(keys)[-1] == 0, "the hash -2**31 becomes 0, in the matrix too"
    assert properties.index_hashes(keys[:3]) == [properties.index_hash(topic, key) for topic, key in keys[:3]]
