"""What can go wrong in a store. Every error carries what an operator needs: the path, the offset, the values that
disagree.
"""

from __future__ import annotations


class StoreError(Exception):
    """The root of all errors of this package."""


class ConfigError(StoreError, ValueError):
    """A setting has a value that cannot work; the message names the setting."""


class InvalidMessageError(StoreError, ValueError):
    """A message cannot be stored as it is: a field is too long, or holds a byte that the format reserves."""


class InvalidRecordError(InvalidMessageError):
    """One of many records that were to be appended together cannot be stored; none of them was."""

    def __init__(self, index: int, reason: str) -> None:
        """`index`: of the record, from 0."""
        super().__init__(f"record {index}: {reason}")
        self.index = index
        self.reason = reason


class CorruptRecordError(StoreError):
    """Bytes in the log are not the record that should be there."""

    def __init__(self, reason: str, *, physical_offset: int) -> None:
        super().__init__(f"no valid record at physical offset {physical_offset}: {reason}")
        self.reason = reason
        self.physical_offset = physical_offset


class RecordNotFoundError(StoreError):
    """No record begins at this physical offset: it was deleted by retention, or it never existed."""


class StoreLockedError(StoreError):
    """Another process has the store directory open."""


class StoreDirectoryError(StoreError):
    """The directory cannot be used as a store: not readable, or written by something else."""


class StoreFullError(StoreError):
    """No space is left for another message; the store takes messages again when there is."""


class LightQueuesFullError(StoreError):
    """A message names a light queue that does not exist, and the store has as many as it may have."""


class StoreBusyError(StoreFullError):
    """No room for another message at this moment, and in the next one there is: what it is written to is not ready."""


class StoreAccessError(StoreError):
    """The store may not be written, or not be read, at the moment: a running flag says so, and the text why."""


class StoreClosedError(StoreError):
    """The store was closed; nothing can be written any more."""


class StoreFailedError(StoreError):
    """A write or a sync failed. This is final: the store takes no more writes until it is opened again."""


class SyncTimeoutError(StoreError):
    """The disk did not confirm a sync in time. The message is in the log and may still become durable."""


class ReplicaTimeoutError(SyncTimeoutError):
    """Too few replicas confirmed a message in time. It is in the log, and replicas may still confirm it."""


class ReplicaMissingError(SyncTimeoutError):
    """A message is stored, but so few replicas are connected that it cannot be confirmed."""


class TooFewReplicasError(StoreFullError):
    """No message is taken while fewer brokers than `replication.min_in_sync` have the log."""


class LogMismatchError(StoreError):
    """Bytes that should continue the log do not: another offset, or no valid records. Nothing was appended."""
