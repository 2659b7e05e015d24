"""Compression of bodies before they are sent, in the three methods of RocketMQ's stored messages.

sys_flag & 0x001: the body is compressed. sys_flag & 0x700: the method: 0x000 and 0x300 zlib, 0x100 LZ4 (frame format),
0x200 Zstandard.

The gRPC protocol itself supports zlib only; records (`RecordService`) carry the flags. LZ4 and Zstandard need the
packages `lz4` and `zstandard`: `pip install '.[compression]'`.
"""

from __future__ import annotations

import importlib
import zlib
from typing import Any, Final, Literal

from aerobee_client.errors import ConfigurationError

Compression = Literal["zlib", "lz4", "zstd"]

COMPRESS_ABOVE: Final = 4096  # bytes of a body, as in RocketMQ's producers
ZLIB_LEVEL: Final = 5  # RocketMQ's default too
SYS_FLAGS: Final[dict[Compression, int]] = {"lz4": 0x101, "zstd": 0x201, "zlib": 0x301}

# Limit of a decompressed body: 16 times the largest body that a broker accepts by default. It prevents a few bytes from
# the wire from filling the memory.
INFLATED_SIZE_MAX: Final = 64 << 20


class CorruptedBodyError(Exception):
    """A body cannot be decompressed; the text gives the reason."""


def require(kind: Compression) -> None:
    """ConfigurationError if the package for `kind` is not installed, or `kind` is unknown."""
    if kind not in SYS_FLAGS:
        raise ConfigurationError(f"compression {kind!r}: give zlib, lz4 or zstd")
    if kind != "zlib":
        _package(kind)


def compress(body: bytes, kind: Compression) -> bytes:
    """`body`, compressed. ConfigurationError if the package for it is not installed."""
    if kind == "zlib":
        return zlib.compress(body, ZLIB_LEVEL)
    package = _package(kind)
    return bytes(package.compress(body) if kind == "lz4" else package.ZstdCompressor().compress(body))


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The original body, by the flags of its record. CorruptedBodyError if it cannot be decompressed."""
    from aerobee_store.records import compression

    try:
        return bytes(compression.decompress(body, sys_flag, INFLATED_SIZE_MAX))
    except compression.DecompressionError as error:
        raise CorruptedBodyError(str(error)) from error


def inflate(body: bytes) -> bytes:
    """Decompress a body that is gzip or zlib by its first bytes. CorruptedBodyError if it is neither, truncated, or too
    large."""
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        inflated = stream.decompress(body, INFLATED_SIZE_MAX)
    except zlib.error as error:
        raise CorruptedBodyError(f"its body is marked as compressed but cannot be decompressed: {error}") from error
    if not stream.eof:
        reason = "is truncated" if not stream.unconsumed_tail else f"grows beyond {INFLATED_SIZE_MAX} bytes"
        raise CorruptedBodyError(f"its body is marked as compressed but {reason}")
    return inflated


def _package(kind: Compression) -> Any:
    name = "lz4.frame" if kind == "lz4" else "zstandard"
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigurationError(f"compression {kind!r} needs a package: pip install '.[compression]'") from None
