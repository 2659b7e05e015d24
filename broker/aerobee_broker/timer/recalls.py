"""The recalled messages of slots that are not over."""

from __future__ import annotations

from collections.abc import Mapping

from aerobee_store.records import properties as p


class Recalls:
    """Filled by recall messages, which are in the same slots as the messages that they recall."""

    __slots__ = ("_messages", "_texts")

    def __init__(self) -> None:
        self._messages: dict[tuple[str, str], int] = {}  # topic (stored name), message id -> the time of the slot
        self._texts: dict[str, int] = {}  # the same, as RocketMQ names them

    def note(self, values: Mapping[str, str], slot_ms: int) -> None:
        """Note a message with these properties, in the slot of that time, that recalls another one."""
        topic, message_id = values.get(p.REAL_TOPIC, ""), values.get(p.UNIQ_KEY, "")
        text = values.get(p.TIMER_DELETE_UNIQ_KEY, "")
        if text in _names(topic, message_id):
            self.add(topic, message_id, slot_ms)
        else:
            self._texts[text] = slot_ms

    def add(self, topic: str, message_id: str, slot_ms: int) -> None:
        """Note that this message, in the slot of that time, is recalled."""
        self._messages[topic, message_id] = slot_ms

    def remove(self, topic: str, message_id: str) -> None:
        """Forget a recall that is recorded elsewhere."""
        self._messages.pop((topic, message_id), None)

    def has_exactly(self, topic: str, message_id: str) -> bool:
        """Whether this message was recalled by a request of this broker."""
        return (topic, message_id) in self._messages

    def has(self, topic: str, message_id: str) -> bool:
        """Whether this message was recalled."""
        if self.has_exactly(topic, message_id):
            return True
        return bool(self._texts) and not self._texts.keys().isdisjoint(_names(topic, message_id))

    def slots(self) -> list[int]:
        """The slots with recalled messages."""
        return [*self._messages.values(), *self._texts.values()]

    def forget_before(self, time_ms: int) -> None:
        """Forget slots before that time, which are over."""
        if self._messages or self._texts:
            self._messages = {key: slot_ms for key, slot_ms in self._messages.items() if slot_ms >= time_ms}
            self._texts = {text: slot_ms for text, slot_ms in self._texts.items() if slot_ms >= time_ms}


def _names(topic: str, message_id: str) -> tuple[str, ...]:
    """The names that releases of RocketMQ use for a recalled message."""
    return topic + message_id, f"{topic}+{message_id}", message_id
