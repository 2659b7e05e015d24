"""Compressed bodies: what the first bytes tell, and what is decompressed."""

from __future__ import annotations

import gzip
import zlib

import pytest

from aerobee_store.records.compression import begins_right, decompress

ZLIB, OLD_ZLIB, LZ4, ZSTD, UNKNOWN = 0x301, 0x001, 0x101, 0x201, 0x701


@pytest.mark.parametrize("body", [b"", b"a", b"body" * 1000])
def test_what_compressors_make_begins_right(body: bytes) -> None:
    """Each method at each level, and a gzip file in place of a zlib stream."""
    lz4 = pytest.importorskip("lz4.frame")
    zstandard = pytest.importorskip("zstandard")
    made = [(zlib.compress(body, level), flag) for level in range(10) for flag in (ZLIB, OLD_ZLIB)]
    made += [(gzip.compress(body), ZLIB), (lz4.compress(body), LZ4), (zstandard.ZstdCompressor().compress(body), ZSTD)]
    for compressed, flag in made:
        assert begins_right(compressed, flag)
        assert bytes(decompress(compressed, flag, 1 << 20)) == body
        for other in {ZLIB, LZ4, ZSTD, UNKNOWN} - {flag, ZLIB if flag == OLD_ZLIB else flag}:
            assert not begins_right(compressed, other)


@pytest.mark.parametrize("flag", [ZLIB, OLD_ZLIB, LZ4, ZSTD, UNKNOWN])
@pytest.mark.parametrize("body", [b"x", b"hello", b"\x78\x00", b"{}", bytes(100)])
def test_plain_bodies_do_not(body: bytes, flag: int) -> None:
    assert not begins_right(body, flag)
    assert begins_right(body, flag & ~1)
