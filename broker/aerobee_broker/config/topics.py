"""The settings of the section `topics`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from msgspec import Meta

from aerobee_store.config import Section

QUEUE_COUNT_MAX: Final = 1024  # a sanity limit: the largest topic that RocketMQ itself creates


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsConfig(Section):
    """Creation of topics on first use."""

    section: ClassVar[str] = "topics"

    auto_create: bool | None = None  # autoCreateTopicEnable; None: only with broker.dev
    trace: bool = False  # traceTopicEnable: clients may store traces of messages, in topics.trace_topic
    trace_topic: Annotated[str, Meta(pattern=r"^[%|a-zA-Z0-9_-]{1,127}$")] = "RMQ_SYS_TRACE_TOPIC"  # msgTraceTopicName
    queue_count: Annotated[int, Meta(ge=1, le=QUEUE_COUNT_MAX)] = 8  # defaultTopicQueueNums
