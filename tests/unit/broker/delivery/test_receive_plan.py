"""The decisions of a receive: how it reads the queues, and its next step after each read."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from msgspec import structs

from aerobee_broker.delivery.receive.auto_renewals import attempt_nonce
from aerobee_broker.delivery.receive.receive_plan import ReceiveRequest, Step, decide, plan_of
from aerobee_broker.delivery.state.message_group_order import MessageGroupOrder
from aerobee_broker.delivery.state.priorities import Priorities
from aerobee_broker.tables.consumer_groups import GroupConfig
from aerobee_broker.tables.topics import TopicConfig, TopicMessageType

REQUEST = ReceiveRequest(
    topic="orders", group="billing", client_id="c", count=8, invisible_ms=1000, wait_seconds=0, queue_id=1
)
NORMAL = TopicConfig.of_type("orders", queue_count=2)
PRIORITY = TopicConfig.of_type("orders", TopicMessageType.PRIORITY, queue_count=2)
LITE = TopicConfig.of_type("orders", TopicMessageType.LITE, queue_count=2)
STANDARD = GroupConfig(name="billing")
ORDERLY = GroupConfig(name="billing", consume_orderly=True)


@pytest.mark.parametrize(
    ("topic", "group", "order"),
    [
        (NORMAL, STANDARD, None),
        (NORMAL, ORDERLY, MessageGroupOrder),
        (PRIORITY, STANDARD, Priorities),
        (PRIORITY, ORDERLY, MessageGroupOrder),
        (LITE, STANDARD, None),
    ],
)
def test_the_order_is_the_groups_and_else_the_topics(topic: TopicConfig, group: GroupConfig, order: type) -> None:
    """The order of the group takes precedence over the priority of the topic."""
    plan = plan_of(REQUEST, topic, group)
    assert plan.order is order
    assert plan.is_lite == (topic is LITE)


def test_only_an_orderly_group_gets_one_queue() -> None:
    """Other groups get messages of any queue."""
    assert plan_of(REQUEST, NORMAL, ORDERLY).queue_id == 1
    assert plan_of(REQUEST, NORMAL, STANDARD).queue_id is None


@pytest.mark.parametrize(
    ("group", "attempt_id", "invisible_ms", "has_attempt", "gives_back"),
    [
        (STANDARD, "", None, False, False),
        (STANDARD, "a", 1000, False, False),
        (STANDARD, "a", None, True, True),
        (ORDERLY, "", None, False, False),
        (ORDERLY, "a", 1000, True, False),
        (ORDERLY, "a", None, True, False),
    ],
)
def test_a_repeated_attempt_counts_with_order_or_auto_renew(
    group: GroupConfig, attempt_id: str, invisible_ms: int | None, has_attempt: bool, gives_back: bool
) -> None:
    """An orderly group gets the same delivery again; another group first gives back the lost delivery."""
    plan = plan_of(structs.replace(REQUEST, attempt_id=attempt_id, invisible_ms=invisible_ms), NORMAL, group)
    assert plan.attempt == (attempt_nonce("c", "billing", "orders", "a") if has_attempt else None)
    assert plan.gives_back == gives_back


def test_a_disabled_group_receives_nothing() -> None:
    """A disabled group waits until it is enabled."""
    assert plan_of(REQUEST, NORMAL, STANDARD).consume_enabled
    assert not plan_of(REQUEST, NORMAL, replace(STANDARD, consume_enabled=False)).consume_enabled


def test_every_outcome_has_one_step() -> None:
    """Found messages are returned first. A missing dead-letter topic and unread messages come before waiting."""
    for found, needs_topic, more, is_last in product((False, True), repeat=4):
        step = decide(found=found, needs_dead_letter_topic=needs_topic, more=more, is_last=is_last)
        match found, needs_topic, more, is_last:
            case True, _, _, _:
                expected = Step.ANSWER
            case _, True, _, _:
                expected = Step.CREATE_DEAD_LETTER_TOPIC
            case _, _, True, True:
                expected = Step.ANSWER_EMPTY
            case _, _, True, False:
                expected = Step.LOOK_AGAIN
            case _:
                expected = Step.WAIT
        assert step is expected
