"""Bodies made smaller before they are sent, in the three ways that RocketMQ's stored messages name.

    sys_flag & 0x001    the body is compressed
    sys_flag & 0x700    how: 0x000 and 0x300 zlib, 0x100 LZ4 (frame format), 0x200 Zstandard

The gRPC protocol itself has a name for zlib only; records (`RecordService`) carry the flags. LZ4 and Zstandard need the
packages `lz4` and `zstandard`: `pip install aerobee[compression]`.
"""

from __future__ import annotations

import importlib
import zlib
from typing import Any, Final, Literal

from aerobee_client.errors import ConfigurationError

Compression = Literal["zlib", "lz4", "zstd"]

COMPRESS_ABOVE: Final = 4096  # bytes of a body, as RocketMQ's producers
ZLIB_LEVEL: Final = 5  # theirs, too
SYS_FLAGS: Final[dict[Compression, int]] = {"lz4": 0x101, "zstd": 0x201, "zlib": 0x301}

# What a compressed body may grow to: 16 times the largest body that a broker takes by default. A bound, so that a few
# bytes from the wire cannot fill the memory.
INFLATED_SIZE_MAX: Final = 64 << 20


class CorruptedBodyError(Exception):
    """Why a body cannot be decompressed."""


def require(kind: Compression) -> None:
    """ConfigurationError if the package for `kind` is not installed, or `kind` is none of the three."""
    if kind not in SYS_FLAGS:
        raise ConfigurationError(f"compression {kind!r}: give zlib, lz4 or zstd")
    if kind != "zlib":
        _package(kind)


def compress(body: bytes, kind: Compression) -> bytes:
    """`body`, compressed. ConfigurationError if the package for that is not installed."""
    if kind == "zlib":
        return zlib.compress(body, ZLIB_LEVEL)
    package = _package(kind)
    return bytes(package.compress(body) if kind == "lz4" else package.ZstdCompressor().compress(body))


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The body as it was, by the flags of its record. CorruptedBodyError if that cannot be had."""
    from aerobee_store.records import compression

    try:
        return bytes(compression.decompress(body, sys_flag, INFLATED_SIZE_MAX))
    except compression.DecompressionError as error:
        raise CorruptedBodyError(str(error)) from error


def inflate(body: bytes) -> bytes:
    """A body that is gzip or zlib by its first bytes. CorruptedBodyError if it is neither, cut off, or too large."""
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
        raise ConfigurationError(f"compression {kind!r} needs a package: pip install aerobee[compression]") from None
