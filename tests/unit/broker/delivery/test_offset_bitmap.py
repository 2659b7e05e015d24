"""OffsetBitmap compared with a set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.delivery.state.offset_bitmap import OffsetBitmap

OFFSETS = st.integers(0, 5000)
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(("add", "discard", "remove_below", "remove_from")), OFFSETS, st.integers(0, 2500)),
    max_size=20,
)


@given(OPERATIONS)
def test_it_behaves_as_a_set(operations: list[tuple[str, int, int]]) -> None:
    """Every operation gives the result of a set, across chunk boundaries too."""
    bitmap, model = OffsetBitmap(), set[int]()
    for name, offset, size in operations:
        match name:
            case "add":
                bitmap.add(offset, offset + size)
                model |= set(range(offset, offset + size))
            case "discard":
                assert bitmap.discard(offset) == (offset in model)
                model.discard(offset)
            case "remove_below":
                bitmap.remove_below(offset)
                model = {each for each in model if each >= offset}
            case _:
                bitmap.remove_from(offset)
                model = {each for each in model if each < offset}
        assert list(bitmap) == sorted(model)
        assert len(bitmap) == len(model)
        assert bool(bitmap) == bool(model)
        assert bitmap.first == min(model, default=None)
        assert (offset in bitmap, offset + size in bitmap) == (offset in model, offset + size in model)


def test_a_million_neighbours_take_little_memory() -> None:
    """Each offset takes one bit, plus a few bytes per thousand offsets."""
    bitmap = OffsetBitmap()
    bitmap.add(7, 1_000_007)
    assert len(bitmap) == 1_000_000
    assert len(bitmap._chunks) <= 1 + 1_000_000 // 1024 + 1
