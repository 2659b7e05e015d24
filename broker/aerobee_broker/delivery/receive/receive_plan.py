"""The decisions of a receive, without I/O and without state: how to examine the queues, and the next step.

    plan_of       the request, its topic and its group   ->  ReceivePlan: which queues to examine, in which order
    decide        the result of an examination           ->  Step: answer, examine again, or wait

`Deliveries.receive` acts on them.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct

from aerobee_broker.delivery.receive.auto_renewals import attempt_nonce
from aerobee_broker.delivery.state.message_group_order import MessageGroupOrder
from aerobee_broker.delivery.state.priorities import Priorities
from aerobee_broker.filters.message_filter import EVERYTHING, MessageFilter
from aerobee_broker.tables.consumer_groups import GroupConfig
from aerobee_broker.tables.topics import TopicConfig, TopicMessageType

LOOK_SECONDS: Final = 20.0  # clients wait 23 s for an answer


class ReceiveRequest(Struct, frozen=True, kw_only=True):
    """A client's request: at most `count` messages of any queue of the topic, as soon as there is one.

    `invisible_ms` None: invisible while the client lives (auto-renew). Messages that are not `wanted` are finished for
    the group.

    `attempt_id`: a client that repeats it has not received the earlier answer. Because the client lives, messages of
    that answer would stay invisible for hours, so they are made ready first. Only for auto-renew, also after a restart.

    A group that consumes in order gets no message of a message group while another of that group is in flight. A
    repeated attempt gets the messages still in flight from its answer, as the same delivery, with and without
    auto-renew. `queue_id` is for such groups only: no messages of other queues.

    In a priority topic the highest priority is delivered first. `look_seconds`: how long to search through messages
    that do not pass, or for higher priorities; the next receive continues there, also after a crash.

    In a topic with lite topics: the messages of the client's subscriptions (`lite`).
    """

    topic: str
    group: str
    client_id: str
    count: int
    invisible_ms: int | None
    wait_seconds: float
    wanted: MessageFilter = EVERYTHING
    attempt_id: str = ""
    queue_id: int | None = None
    look_seconds: float = LOOK_SECONDS


class ReceivePlan(Struct, frozen=True):
    """How to examine the queues for a request, given the current topic and group."""

    is_lite: bool
    queue_id: int | None  # the only queue to examine
    order: type[MessageGroupOrder | Priorities] | None  # in addition to the messages' age
    attempt: int | None  # the nonce of queue 0 that identifies the attempt
    consume_enabled: bool

    @property
    def gives_back(self) -> bool:
        """Whether the answer to an earlier call with this attempt is returned first; ordered groups repeat it
        instead."""
        return self.attempt is not None and self.order is not MessageGroupOrder


def plan_of(request: ReceiveRequest, topic: TopicConfig, group: GroupConfig) -> ReceivePlan:
    """An orderly group keeps its order in a priority topic too: order takes precedence."""
    order: type[MessageGroupOrder | Priorities] | None = None
    if group.consume_orderly:
        order = MessageGroupOrder
    elif topic.message_type is TopicMessageType.PRIORITY:
        order = Priorities
    attempt = None
    if request.attempt_id and (group.consume_orderly or request.invisible_ms is None):
        attempt = attempt_nonce(request.client_id, request.group, request.topic, request.attempt_id)
    return ReceivePlan(
        is_lite=topic.message_type is TopicMessageType.LITE,
        queue_id=request.queue_id if group.consume_orderly else None,
        order=order,
        attempt=attempt,
        consume_enabled=group.consume_enabled,
    )


class Step(Enum):
    """The next step after examining the queues."""

    ANSWER = "answer with the messages"
    CREATE_DEAD_LETTER_TOPIC = "create the group's dead-letter topic, and look again"
    LOOK_AGAIN = "let others run, and look again"
    ANSWER_EMPTY = "answer without messages"
    WAIT = "wait for a message"


def decide(*, found: bool, needs_dead_letter_topic: bool, more: bool, is_last: bool) -> Step:
    """`more`: the examination stopped before the end of the queues. `is_last`: there is no time for another one."""
    if found:
        return Step.ANSWER
    if needs_dead_letter_topic:
        return Step.CREATE_DEAD_LETTER_TOPIC
    if more:
        return Step.ANSWER_EMPTY if is_last else Step.LOOK_AGAIN
    return Step.WAIT
