"""Errors of a store. Each names the facts that an operator needs: the path, the offset, the conflicting values."""

from __future__ import annotations

from pathlib import Path


class StoreError(Exception):
    """Root of all errors of this package."""


class ConfigError(StoreError, ValueError):
    """A setting has an invalid value; the message names the setting."""


class InvalidMessageError(StoreError, ValueError):
    """A message cannot be stored: a field is too long, or contains a byte that the format reserves."""


class InvalidRecordError(InvalidMessageError):
    """One of several records to be appended together cannot be stored; none of them was stored."""

    def __init__(self, index: int, reason: str) -> None:
        """`index`: number of the record, from 0."""
        super().__init__(f"record {index}: {reason}")
        self.index = index
        self.reason = reason


class CorruptRecordError(StoreError):
    """The bytes in the log are not the expected record."""

    def __init__(self, reason: str, *, physical_offset: int) -> None:
        super().__init__(f"no valid record at physical offset {physical_offset}: {reason}")
        self.reason = reason
        self.physical_offset = physical_offset


class RecordNotFoundError(StoreError):
    """No record begins at this physical offset: retention deleted it, or it never existed."""


class StoreLockedError(StoreError):
    """Another process has the store directory open."""


class TimerLogDamagedError(StoreError):
    """The timer log lacks a unit. The timer's files must be made again from the timer topic."""

    def __init__(self, path: Path, position: int) -> None:
        super().__init__(
            f"{path}: no valid unit at position {position} of the timer log; the timer makes its files again from its "
            f"messages, so repeat the call"
        )


class StoreDirectoryError(StoreError):
    """The directory cannot be used as a store: it is unreadable, or another program wrote it."""


class StoreRefusalError(StoreError):
    """The store takes no message now. Nothing was stored, and a later attempt may succeed."""


class StoreFullError(StoreRefusalError):
    """No space is left for another message. The store accepts messages again when there is space."""


class LightQueuesFullError(StoreError):
    """A message names a light queue that does not exist, and the limit of light queues is reached."""


class StoreBusyError(StoreFullError):
    """The store cannot take another message at the moment, because a file or buffer is not ready. Retrying helps."""


class StoreAccessError(StoreRefusalError):
    """The store must not be written or read at the moment; a running flag is set, and the text gives its reason."""


class StoreClosedError(StoreError):
    """The store is closed; nothing can be written."""


class StoreFailedError(StoreError):
    """A write or a sync failed. This is final: the store refuses writes until it is opened again."""


class SyncTimeoutError(StoreError):
    """The disk did not confirm a sync in time. The message is in the log and may still become durable."""


class ReplicaError(StoreError):
    """Too few replicas confirmed a message. It is in the log, and as safe on this disk as promised."""


class ReplicaTimeoutError(ReplicaError):
    """Too few replicas confirmed a message in time. It is in the log, and replicas may still confirm it."""


class ReplicaMissingError(ReplicaError):
    """A message is stored, but too few replicas are connected to confirm it. Raised at once, without waiting."""


class TooFewReplicasError(StoreFullError):
    """Messages are refused while fewer than `replication.min_in_sync` brokers have the log."""


class LogMismatchError(StoreError):
    """The bytes do not continue the log: another offset, or no valid records. Nothing was appended."""
