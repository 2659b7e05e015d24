"""How RocketMQ numbers the states of a table, and how ours know what is not on disk yet."""

from __future__ import annotations

from dataclasses import dataclass

from aerobee_broker.json_fields import INT64_MAX, JsonFields
from aerobee_store.java_json import Bean


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The `dataVersion` of a configuration file. `timestamp` is the time of the last change, in Unix milliseconds."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0

    @classmethod
    def from_json(cls, name: str, value: object) -> DataVersion:
        """Raises TableFormatError. Release 4.3 has no stateVersion; its offset files have no version at all."""
        fields = JsonFields(name, {} if value is None else value)
        return cls(
            fields.integer("counter", 0, maximum=INT64_MAX),
            fields.integer("stateVersion", 0, maximum=INT64_MAX),
            fields.integer("timestamp", 0, maximum=INT64_MAX),
        )

    def to_json(self) -> Bean:
        return Bean(counter=self.counter, stateVersion=self.state_version, timestamp=self.timestamp)

    def next(self, now_ms: int) -> DataVersion:
        """The version after one more change."""
        return DataVersion(self.counter + 1, self.state_version, now_ms)


class Revision:
    """Counts the changes of a table in memory, so that its owner knows whether a save is due.

    The number belongs to this process; what RocketMQ sees is the DataVersion. A change between the snapshot and the end
    of its save keeps the table dirty, because `mark_saved` is given the number that the snapshot had.
    """

    __slots__ = ("_saved", "current")

    def __init__(self) -> None:
        self.current = 0
        self._saved = 0

    def advance(self) -> None:
        self.current += 1

    def mark_saved(self, revision: int) -> None:
        self._saved = max(self._saved, revision)

    @property
    def dirty(self) -> bool:
        return self.current != self._saved
