"""The bits of a subscription in the filter bitmaps of messages: those of RocketMQ, so that its files fit.

A bitmap for `n` subscriptions with `f` percent false positives has

    k = log2(100 / f) bits for each subscription, rounded up
    m = n * log2(100 / f) * log2(e) bits in all, rounded up to whole bytes

The bits come from the lower 64 bits of the MurmurHash3 (x64, 128 bits) of `group#topic`, whose halves a and b give the
numbers a + b, a + 2 b, ... of 32 bits; a negative one is inverted, and each is taken modulo m.
"""

from __future__ import annotations

import math
from typing import Final

_MASK_32: Final = (1 << 32) - 1
_MASK_64: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


class BloomFilter:
    """The size of bitmaps, and the bits of each subscription."""

    def __init__(self, subscription_count: int, error_percent: int) -> None:
        """`subscription_count`: with so many matching ones, `error_percent` of the others have all their bits set."""
        bits = math.log2(100 / error_percent)
        self.bits_per_subscription = math.ceil(bits)
        self.bit_count = -(-math.ceil(subscription_count * bits * math.log2(math.e)) // 8) * 8

    @property
    def size(self) -> int:
        """Bytes of a bitmap."""
        return self.bit_count // 8

    def positions(self, topic: str, group: str) -> tuple[int, ...]:
        """The numbers of the subscription's bits, in RocketMQ's order; two may be equal."""
        number = murmur3(f"{group}#{topic}".encode())
        low, high = number & _MASK_32, number >> 32
        found = []
        for factor in range(1, self.bits_per_subscription + 1):
            combined = (low + factor * high) & _MASK_32
            found.append((combined ^ _MASK_32 if combined >> 31 else combined) % self.bit_count)
        return tuple(found)

    def mask(self, topic: str, group: str) -> int:
        """The same bits as a number, for a bitmap in little-endian order."""
        mask = 0
        for position in self.positions(topic, group):
            mask |= 1 << position
        return mask


def murmur3(data: bytes) -> int:
    """The lower 64 bits of MurmurHash3 (x64, 128 bits) with seed 0."""
    first = second = 0
    end = len(data) - len(data) % 16
    for position in range(0, end, 16):
        first ^= _mixed_first(int.from_bytes(data[position : position + 8], "little"))
        first = ((_rotated(first, 27) + second) * 5 + 0x52DCE729) & _MASK_64
        second ^= _mixed_second(int.from_bytes(data[position + 8 : position + 16], "little"))
        second = ((_rotated(second, 31) + first) * 5 + 0x38495AB5) & _MASK_64
    rest = data[end:]
    first ^= _mixed_first(int.from_bytes(rest[:8], "little"))
    second ^= _mixed_second(int.from_bytes(rest[8:], "little"))
    first ^= len(data)
    second ^= len(data)
    first = (first + second) & _MASK_64
    second = (second + first) & _MASK_64
    return (_finished(first) + _finished(second)) & _MASK_64


def _mixed_first(block: int) -> int:
    return _rotated(block * _C1 & _MASK_64, 31) * _C2 & _MASK_64


def _mixed_second(block: int) -> int:
    return _rotated(block * _C2 & _MASK_64, 33) * _C1 & _MASK_64


def _rotated(number: int, count: int) -> int:
    return (number << count | number >> 64 - count) & _MASK_64


def _finished(number: int) -> int:
    number = (number ^ number >> 33) * 0xFF51AFD7ED558CCD & _MASK_64
    number = (number ^ number >> 33) * 0xC4CEB9FE1A85EC53 & _MASK_64
    return number ^ number >> 33
