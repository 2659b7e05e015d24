"""The beginnings of topic names that are reserved, as in RocketMQ."""

from __future__ import annotations

from typing import Final

RETRY_PREFIX: Final = "%RETRY%"
"""Messages that a group receives again."""
DEAD_LETTER_PREFIX: Final = "%DLQ%"
"""Messages that a group could not consume."""
LIGHT_PREFIX: Final = "%LMQ%"
"""A light queue: messages of other topics that name it."""
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
"""A topic of the broker itself."""
