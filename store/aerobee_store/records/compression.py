"""Decompresses the bodies of records, with one of three algorithms given by their system flags.

    sys_flag & 0x001    the body is compressed
    sys_flag & 0x700    algorithm: 0x000 and 0x300 zlib, 0x100 LZ4 (frame format), 0x200 Zstandard

A zlib body may also be a gzip file: some clients of SendMessage make one. LZ4 and Zstandard need the packages `lz4` and
`zstandard`: `pip install '.[compression]'`.
"""

from __future__ import annotations

import importlib
import zlib
from typing import Any, Final

from aerobee_store.errors import StoreError

SYS_FLAG_COMPRESSED: Final = 0x1
SYS_FLAG_COMPRESSION_TYPE: Final = 0x700

_GZIP_MAGIC: Final = b"\x1f\x8b"
_MAGIC: Final = {0x100: b"\x04\x22\x4d\x18", 0x200: b"\x28\xb5\x2f\xfd"}
_PACKAGES: Final = {0x100: "lz4.frame", 0x200: "zstandard"}


class DecompressionError(StoreError):
    """A body does not match its flags, is larger than allowed, or needs a package that is not installed."""


def decompress(body: bytes | memoryview, sys_flag: int, size_max: int) -> bytes | memoryview:
    """The decompressed body; unchanged if it is not compressed. DecompressionError."""
    if not sys_flag & SYS_FLAG_COMPRESSED:
        return body
    kind = sys_flag & SYS_FLAG_COMPRESSION_TYPE
    if kind in (0x000, 0x300):
        return _inflate(body, size_max)
    name = _PACKAGES.get(kind)
    if name is None:
        raise DecompressionError(
            f"compression type {kind >> 8} is unknown; known types are LZ4 (1), Zstandard (2) and zlib (3)"
        )
    try:
        package: Any = importlib.import_module(name)
    except ImportError:
        raise DecompressionError(
            f"compression type {kind >> 8} needs the package {name.partition('.')[0]}: pip install '.[compression]'"
        ) from None
    return _unlz4(package, body, size_max) if kind == 0x100 else _unzstd(package, body, size_max)


def begins_right(body: bytes | memoryview, sys_flag: int) -> bool:
    """Whether a body that is not empty begins as one of the method in its system flags does; True without compression.

    Costs nearly nothing; the rest of the body may still be wrong.
    """
    if not sys_flag & SYS_FLAG_COMPRESSED:
        return True
    kind = sys_flag & SYS_FLAG_COMPRESSION_TYPE
    start = bytes(body[:4])
    if kind in (0x000, 0x300):
        # The two bytes of a zlib header are a multiple of 31, and the first one names the method.
        is_zlib = len(start) > 1 and start[0] & 0x0F == 8 and int.from_bytes(start[:2], "big") % 31 == 0
        return is_zlib or start[:2] == _GZIP_MAGIC
    return start == _MAGIC.get(kind)


def _inflate(body: bytes | memoryview, size_max: int) -> bytes:
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # zlib or gzip, by the first bytes
    try:
        plain = stream.decompress(body, size_max)
    except zlib.error as error:
        raise DecompressionError(f"the compressed body is not a zlib stream: {error}") from error
    _check_end(eof=stream.eof, starved=not stream.unconsumed_tail, rest=stream.unused_data, size_max=size_max)
    return plain


def _unlz4(package: Any, body: bytes | memoryview, size_max: int) -> bytes:
    stream = package.LZ4FrameDecompressor()
    try:
        plain = bytes(stream.decompress(body, max_length=size_max))
    except (RuntimeError, EOFError) as error:
        raise DecompressionError(f"the compressed body is not an LZ4 frame: {error}") from error
    _check_end(eof=stream.eof, starved=stream.needs_input, rest=stream.unused_data or b"", size_max=size_max)
    return plain


def _unzstd(package: Any, body: bytes | memoryview, size_max: int) -> bytes:
    # The reader enforces the limit, but only the object tells whether the frame ended and what followed it.
    stream = package.ZstdDecompressor().decompressobj()
    try:
        with package.ZstdDecompressor().stream_reader(body) as reader:
            plain = bytes(reader.read(size_max + 1))
        if len(plain) <= size_max:
            stream.decompress(body)
    except package.ZstdError as error:
        raise DecompressionError(f"the compressed body is not a Zstandard frame: {error}") from error
    starved = len(plain) <= size_max
    _check_end(eof=starved and stream.eof, starved=starved, rest=stream.unused_data, size_max=size_max)
    return plain


def _check_end(*, eof: bool, starved: bool, rest: bytes, size_max: int) -> None:
    if not eof:
        raise DecompressionError(
            "the compressed body ends early" if starved else f"the body grows beyond {size_max} bytes, the limit"
        )
    if rest:
        raise DecompressionError(f"{len(rest)} bytes follow the end of the compressed body")
