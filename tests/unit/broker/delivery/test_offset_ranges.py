"""Ranges of finished offsets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.delivery.state.offset_ranges import OffsetRanges

_RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=12)


@given(_RANGES, st.integers(0, 40))
def test_ranges_equal_the_set_of_added_offsets(added: list[tuple[int, int]], below: int) -> None:
    """In any order and with overlaps, the ranges hold the same offsets as a set, in as few ranges as possible."""
    ranges, model = OffsetRanges(), set[int]()
    for begin, size in added:
        ranges.add(begin, begin + size)
        model.update(range(begin, begin + size))
    assert [offset for begin, end in ranges for offset in range(begin, end)] == sorted(model)
    assert len(ranges) == sum(1 for offset in model if offset - 1 not in model)
    for offset in range(45):
        assert (offset in ranges) == (offset in model)
        end = ranges.end_of_range_at(offset)
        assert end not in model
        assert model.issuperset(range(offset, end))
    ranges.remove_below(below)
    assert [offset for begin, end in ranges for offset in range(begin, end)] == sorted(o for o in model if o >= below)


def test_first_range_is_the_lowest() -> None:
    """The first range is the lowest, or None if there are no ranges."""
    ranges = OffsetRanges()
    assert ranges.first is None
    ranges.add(7, 9)
    ranges.add(2, 3)
    assert ranges.first == (2, 3)
