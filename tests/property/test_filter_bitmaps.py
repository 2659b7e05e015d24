"""Filter bitmaps never change what a consumer gets, whatever happens to subscriptions, broker and files."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from aerobee_broker.filters.sql_filter import compile_expression
from tests.support.filtered_store import FilteredStore
from tests.support.stored_messages import DIRECTORY

EXAMPLES = max(8 * int(os.environ.get("AEROBEE_CRASH_CYCLES", "0")), 40)
EXPRESSIONS = ("color = 'red'", "color = 'blue'", "NOT (color = 'red')", "note IS NULL", "price > 5 AND color <> 'red'")
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "color": st.sampled_from(["red", "blue", "ü"]),
        "note": st.sampled_from(["", "x"]),
        "price": st.sampled_from(["3", "7", "cheap"]),
    },
)
MESSAGES = st.lists(PROPERTIES, min_size=1, max_size=40)
GROUPS, TOPICS = ("a", "b", "c"), ("orders", "bills")
# Of very different sizes; the last two have the same size, and another number of bits for each subscription.
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"filter_bitmap_groups": 2, "filter_bitmap_error_percent": 50},
    {"filter_bitmap_groups": 3, "filter_bitmap_error_percent": 50},
    {"filter_bitmap_groups": 2, "filter_bitmap_error_percent": 33},
)


class FilterMachine(RuleBasedStateMachine):
    """Every read gives the messages that satisfy the expression by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.run = FilteredStore()
        self.sent: dict[str, list[Mapping[str, str]]] = {topic: [] for topic in TOPICS}

    def teardown(self) -> None:
        for topic in TOPICS:
            for group in GROUPS:
                for expression in EXPRESSIONS:
                    self.read(topic, group, expression)
                    self.run.clock.advance(61)
        self.run.close()

    @rule(messages=MESSAGES, topic=st.sampled_from(TOPICS), together=st.booleans())
    def append(self, messages: list[dict[str, str]], topic: str, together: bool) -> None:
        append = self.run.append_records if together else self.run.append
        append(*messages, topic=topic)
        self.sent[topic] += [{name: value for name, value in each.items() if value} for each in messages]

    @rule(topic=st.sampled_from(TOPICS), group=st.sampled_from(GROUPS), expression=st.sampled_from(EXPRESSIONS))
    def read(self, topic: str, group: str, expression: str) -> None:
        matches = compile_expression(expression)
        expected = [offset for offset, each in enumerate(self.sent[topic]) if matches(each) is True]
        assert self.run.read(expression, group, topic) == expected

    @rule(seconds=st.sampled_from([1, 61, 90_000]))
    def wait(self, seconds: int) -> None:
        self.run.clock.advance(seconds)
        self.run.filters.drop_unused()

    @rule(seconds=st.sampled_from([-90_000, 90_000]))
    def set_clock(self, seconds: int) -> None:
        self.run.clock.jump(seconds)

    @rule()
    def save(self) -> None:
        if self.run.is_on:
            self.run.save()

    @rule(on=st.sampled_from([True, True, False]), delivery=st.sampled_from(SETTINGS))
    def restart(self, on: bool, delivery: dict[str, Any]) -> None:
        self.run = self.run.restart(on=on, **delivery)

    @rule()
    def kill(self) -> None:
        self.run = self.run.kill()

    @rule(seed=st.integers(0, 99))
    def cut_power(self, seed: int) -> None:
        self.run = self.run.power_cut(seed)

    @rule(source=st.randoms(use_true_random=False))
    def damage_a_unit(self, source: random.Random) -> None:
        """Flip a bit of an extended unit: its message is then read."""
        contents = self.run.disk.contents()
        root = DIRECTORY / "consumequeue_ext"
        files = sorted(path for path in contents if path.is_relative_to(root) and contents[path].strip(b"\0"))
        if files:
            path = source.choice(files)
            position = source.randrange(len(contents[path].rstrip(b"\0")))
            flipped = contents[path][position] ^ 1 << source.randrange(8)
            self.run.disk.damage(path, position, bytes([flipped]))


TestFilters = FilterMachine.TestCase
TestFilters.settings = settings(max_examples=EXAMPLES, stateful_step_count=20, deadline=None, derandomize=True)
