"""The page that compares with RocketMQ says what the code does."""

from __future__ import annotations

import pytest

from aerobee_broker.config.rocketmq_conf import PROMISES, ROCKETMQ_KEYS
from tests.support import rocketmq_page


def test_the_page_is_made_from_the_code() -> None:
    assert rocketmq_page.PAGE.read_text(encoding="utf-8") == rocketmq_page.page(), "run: make map"


def test_every_refused_key_stops_the_start() -> None:
    """With the words of the page."""
    rocketmq_page.check_refusals()


@pytest.mark.parametrize("name", sorted(PROMISES))
def test_a_key_is_either_taken_or_refused(name: str) -> None:
    assert name not in ROCKETMQ_KEYS
