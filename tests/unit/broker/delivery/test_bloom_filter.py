"""The bits of subscriptions are RocketMQ's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerobee_broker.filters.bloom_filter import BloomFilter, murmur3

CASES = Path(__file__).parents[3] / "golden" / "cases"


@pytest.mark.parametrize("case", ["java-json", "java-json-43"])
def test_bits_in_files_of_rocketmq(case: str) -> None:
    """The bits of each subscription in a recorded consumerFilter.json."""
    content = json.loads((CASES / case / "manifest.json").read_text())["json"]["config/consumerFilter.json"]
    bloom = BloomFilter(32, 20)
    found = 0
    for topic, of_topic in content["filterDataByTopic"].items():
        for group, filter_data in of_topic["groupFilterData"].items():
            expected = filter_data["bloomFilterData"]
            assert (bloom.bit_count, list(bloom.positions(topic, group))) == (expected["bitNum"], expected["bitPos"])
            found += 1
    assert found == 3


@pytest.mark.parametrize(
    ("error_percent", "count", "topic", "group", "bit_count", "positions"),
    [  # RocketMQ 5.5.0's BloomFilter
        (20, 32, "b", "a", 112, (101, 103, 59)),
        (20, 32, "%RETRY%grüppe_é", "GID_x", 112, (46, 9, 33)),
        (20, 32, "", "aaaaaaaaaaaaaaa", 112, (61, 32, 17)),
        (20, 32, "01234567", "0123456", 112, (29, 57, 58)),
        (1, 100, "語", "日本", 960, (219, 665, 151, 618, 172, 686, 240)),
        (1, 100, "t0", "g", 960, (93, 509, 152, 755, 398, 41, 644)),
        (50, 3, "abcdefghij#klmnopqrstuvwxyz", "0123456789", 8, (3,)),
        (7, 1000, "abcdefghij#klmnopqrstuvwxyz", "0123456789", 5536, (2659, 4001, 505, 619)),
        (7, 1000, "t1", "g", 5536, (642, 1822, 2533, 4278)),
    ],
)
def test_bits_of_rocketmq(
    error_percent: int, count: int, topic: str, group: str, bit_count: int, positions: tuple[int, ...]
) -> None:
    """Names of all lengths up to three blocks of the hash, and numbers above and below 0."""
    bloom = BloomFilter(count, error_percent)
    assert bloom.bit_count == bit_count == bloom.size * 8
    assert bloom.positions(topic, group) == positions
    assert bloom.mask(topic, group) == sum(1 << position for position in set(positions))


def test_hash() -> None:
    """Of nothing, and of the sentence with a known hash."""
    assert murmur3(b"") == 0
    assert murmur3(b"The quick brown fox jumps over the lazy dog") == 0xE34BBC7BBC071B6C
