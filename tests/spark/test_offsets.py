"""Offsets: the users' notation, the content of checkpoints, and the distribution of a trigger's limit."""

from __future__ import annotations

import json

import pytest

from aerobee_pipeline.errors import DataLossError, OptionError
from aerobee_pipeline.offsets import (
    Bounds,
    Position,
    Queue,
    Range,
    checked_ranges,
    cut,
    next_position,
    parse_user_offsets,
    ranges_between,
    share_out,
)

A0, A1, B0 = Queue("a", "x", 0), Queue("a", "x", 1), Queue("b", "y", 0)


def test_valid_options() -> None:
    """Offsets with and without broker names."""
    assert parse_user_offsets("o", '{"a": {"0": 23, "1": -2}}', ["x"]) == {A0: 23, A1: -2}
    assert parse_user_offsets("o", '{"a": {"x": {"0": 1}}, "b": {"y": {"0": -1}}}', ["x", "y"]) == {A0: 1, B0: -1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soonest", "neither earliest, latest nor JSON"),
        ("[1]", "expected an object such as"),
        ('{"a": 1}', "topic 'a' needs an object"),
        ('{"a": {"0": -3}}', "-3 is not an offset"),
        ('{"a": {"zero": 3}}', "queue id and a number"),
        ('{"a": {"z": {"0": 3}}}', "unknown broker 'z'"),
    ],
)
def test_invalid_options(text: str, message: str) -> None:
    """The error names the option and the expected form."""
    with pytest.raises(OptionError, match=message):
        parse_user_offsets("startingOffsets", text, ["x"])


def test_queues_of_several_brokers_need_broker_names() -> None:
    """With several brokers queue ids alone are ambiguous."""
    with pytest.raises(OptionError, match="name the broker for topic"):
        parse_user_offsets("startingOffsets", '{"a": {"0": 3}}', ["x", "y"])


def test_a_checkpoint_has_the_same_text_in_any_order() -> None:
    """Spark compares offsets as text: a different order of keys would look like new data for ever."""
    one = Position({A0: 1, B0: 2, A1: 3}, {B0: 0, A0: 1})
    other = Position({B0: 2, A1: 3, A0: 1}, {A0: 1, B0: 0})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert Position.from_json(one.to_json()) == one
    assert Position.from_json(Position({A0: 1}, initial=True).to_json()).initial


def test_a_checkpoint_of_another_version_is_refused() -> None:
    """A checkpoint of a later release is refused, not misread."""
    with pytest.raises(OptionError, match="version 2, but this release reads version 1"):
        Position.from_json({"v": 2, "q": {}})


def test_the_first_trigger_saves_the_start_offsets() -> None:
    """The first offset that Spark stores contains the start, so a restart finds it."""
    end, _ = next_position(Position({A0: 5}, initial=True), {A0: Bounds(0, 9)}, rows_max=2, fail_on_data_loss=True)
    assert (end.next, end.start) == ({A0: 7}, {A0: 5})
    assert ranges_between(Position({A0: 6}, initial=True), end) == [Range(A0, 5, 7)], (
        "`from` counts, not a second answer"
    )


def test_a_new_queue_begins_at_its_earliest_message() -> None:
    """This also holds for a queue that appears during a stream; a replay gives the same range."""
    start = Position({A0: 5})
    end, _ = next_position(start, {A0: Bounds(0, 5), A1: Bounds(3, 8)}, fail_on_data_loss=True)
    assert ranges_between(start, end) == [Range(A1, 3, 8)]
    again, _ = next_position(end, {A0: Bounds(0, 5), A1: Bounds(3, 8)}, fail_on_data_loss=True)
    assert ranges_between(end, again) == []


@pytest.mark.parametrize("initial", [True, False])
def test_a_queue_that_ends_before_the_offset_reached_is_a_loss(initial: bool) -> None:
    """After a restored backup a trigger does not begin where the lost messages ended."""
    start = Position({A0: 150, A1: 4}, initial=initial)
    bounds = {A0: Bounds(0, 50), A1: Bounds(0, 9)}
    with pytest.raises(DataLossError, match=r"queue 0 of broker 'x': it ends at 50, before offset 150.*100 off"):
        next_position(start, bounds, fail_on_data_loss=True)
    end, losses = next_position(start, bounds, rows_max=100, fail_on_data_loss=False)
    assert (end.next, len(losses)) == ({A0: 50, A1: 9}, 1)
    assert ranges_between(start, end) == [Range(A1, 4, 9)]
    later, losses = next_position(end, {A0: Bounds(0, 60), A1: Bounds(0, 9)}, fail_on_data_loss=True)
    assert (ranges_between(end, later), losses) == ([Range(A0, 50, 60)], []), "new messages are read, and no loss again"


@pytest.mark.parametrize("initial", [True, False])
def test_a_queue_that_is_gone_is_a_loss(initial: bool) -> None:
    """A deleted topic is an error; a topic that is created again begins at its first message."""
    start = Position({A0: 150, A1: 4}, initial=initial)
    with pytest.raises(DataLossError, match="queue 0 of broker 'x': the queue is gone; its messages from 150 on"):
        next_position(start, {A1: Bounds(0, 4)}, fail_on_data_loss=True)
    end, losses = next_position(start, {A1: Bounds(0, 4)}, fail_on_data_loss=False)
    assert (dict(end.next), len(losses), ranges_between(start, end)) == ({A1: 4}, 1, [])
    later, losses = next_position(end, {A0: Bounds(0, 7), A1: Bounds(0, 4)}, fail_on_data_loss=True)
    assert (ranges_between(end, later), losses) == ([Range(A0, 0, 7)], [])


def test_a_limit_is_divided_in_proportion_to_the_backlog() -> None:
    """Each queue with a backlog gets at least one message, and the rounding remainder is distributed."""
    assert share_out({A0: 900, A1: 90, B0: 0}, 100) == {A0: 91, A1: 9, B0: 0}
    assert share_out({A0: 10_000, A1: 1}, 10) == {A0: 9, A1: 1}
    assert share_out({A0: 3, A1: 4}, 100) == {A0: 3, A1: 4}
    assert sum(share_out({Queue("t", "", number): 7 for number in range(11)}, 20).values()) == 20


def test_lost_offsets_are_reported() -> None:
    """Trimmed, reset and deleted queues: an error that names the loss, or the remaining messages and a warning."""
    bounds = {A0: Bounds(10, 20), A1: Bounds(0, 5)}
    cases = [
        (Range(A0, 5, 15), "messages 5 to 10 are gone", [Range(A0, 10, 15)]),
        (Range(A0, 2, 8), "messages 2 to 8 are gone", []),
        (Range(A1, 9, 3), "before offset 9", []),
        (Range(A1, 2, 8), "it ends at 5", [Range(A1, 2, 5)]),
        (Range(B0, 0, 1), "the queue is gone", []),
    ]
    for item, message, kept in cases:
        with pytest.raises(DataLossError, match=message):
            checked_ranges([item], bounds, fail_on_data_loss=True)
        found, losses = checked_ranges([item], bounds, fail_on_data_loss=False)
        assert (found, len(losses)) == (kept, 1)


def test_long_ranges_are_split() -> None:
    """Ranges are split evenly, into about the requested number."""
    ranges = [Range(A0, 0, 900), Range(A1, 50, 150), Range(B0, 7, 7)]
    assert cut(ranges, parts_min=None, rows_max=1000) == ranges[:2]
    parts = cut(ranges, parts_min=10, rows_max=1000)
    assert len(parts) == 10
    assert sum(part.end - part.start for part in parts) == 1000
    assert max(part.end - part.start for part in cut(ranges, parts_min=None, rows_max=100)) == 100
