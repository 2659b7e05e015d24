"""The header block decoder compared with the `hpack` package: fields, table and limits."""

from __future__ import annotations

import random

import pytest
from hpack import Decoder, Encoder
from hpack.table import HeaderTable

from aerobee_broker.front.frames import ErrorCode
from aerobee_broker.front.header_blocks import BlockDecoder, HeaderBlockError

_TABLE_SIZES = (0, 31, 100, 1000, HeaderTable.DEFAULT_SIZE)


@pytest.mark.parametrize("seed", range(20))
def test_fields_and_table_equal_those_of_hpack(seed: int) -> None:
    """Fields and table stay equal over blocks that fill the table, evict entries, and change its size."""
    rng = random.Random(seed)
    encoder, reference, decoder = Encoder(), Decoder(max_header_list_size=1 << 20), BlockDecoder(1 << 20)
    evicted = False
    for _ in range(40):
        if rng.random() < 0.2:
            encoder.header_table_size = rng.choice(_TABLE_SIZES)
        headers = [
            (b"x-%d" % rng.randrange(40), b"v" * rng.choice((0, 1, 90, 700, 5000)) + b"%d" % rng.randrange(3))
            for _ in range(rng.randrange(1, 8))
        ]
        block = encoder.encode(headers, huffman=rng.random() < 0.1)
        before = len(decoder._entries)
        assert [(field.name, field.value) for field in decoder.fields(block)] == headers
        assert list(reference.decode(block, raw=True)) == headers
        table = reference.header_table
        assert [(field.name, field.value) for field in reversed(decoder._entries)] == list(table.dynamic_entries)
        assert decoder._entries_size == table._current_size <= table.maxsize
        evicted = evicted or len(decoder._entries) < before
    assert evicted, "the blocks never made the table drop an entry"


def test_an_entry_that_was_evicted_is_refused() -> None:
    """An entry evicted by an insertion or a smaller table ends the connection with COMPRESSION_ERROR."""
    entry = b"\x40\x01a\x01b"  # a literal that enters the table
    for changes in (b"\x3f\x02\x40\x01c\x01d", b"\x20"):  # a table of 33 bytes and another entry; an empty table
        decoder = BlockDecoder(1 << 15)
        decoder.fields(entry)
        assert [(field.name, field.value) for field in decoder.fields(b"\xbe")] == [(b"a", b"b")]
        decoder.fields(changes)
        with pytest.raises(HeaderBlockError) as caught:
            decoder.fields(b"\xbf" if len(changes) > 1 else b"\xbe")
        assert caught.value.code == ErrorCode.COMPRESSION_ERROR


def test_the_table_never_exceeds_the_size_that_was_announced() -> None:
    """No size was announced, so the default of 4,096 bytes applies. A client that sets one byte more is refused."""
    decoder = BlockDecoder(1 << 15)
    assert decoder.fields(b"\x3f\xe1\x1f") == []
    with pytest.raises(HeaderBlockError) as caught:
        decoder.fields(b"\x3f\xe2\x1f")
    assert caught.value.code == ErrorCode.COMPRESSION_ERROR
