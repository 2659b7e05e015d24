"""The store: Apache RocketMQ's file formats, written and recovered by one process. See docs/ARCHITECTURE.md.

It is a library without gRPC, metrics server or event-loop policy: a directory is all it needs.

The names below are imported when they are first used (PEP 562), so that the client and the pipeline can use the record
codec, `aerobee_store.records`, without loading a store.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aerobee_store.clock import Clock, SystemClock
    from aerobee_store.config import StoreConfig
    from aerobee_store.errors import (
        ConfigError,
        CorruptRecordError,
        InvalidMessageError,
        InvalidRecordError,
        LightQueuesFullError,
        LogMismatchError,
        RecordNotFoundError,
        ReplicaMissingError,
        ReplicaTimeoutError,
        StoreAccessError,
        StoreBusyError,
        StoreClosedError,
        StoreDirectoryError,
        StoreError,
        StoreFailedError,
        StoreFullError,
        StoreLockedError,
        SyncTimeoutError,
        TooFewReplicasError,
    )
    from aerobee_store.message_reader import QueueBytes, ReadResult
    from aerobee_store.message_store import MessageStore
    from aerobee_store.message_writer import Appended, AppendedBatch
    from aerobee_store.records.record import Message, Record
    from aerobee_store.records.record_batch import RecordBatch
    from aerobee_store.running_flags import RunningFlags
    from aerobee_store.store_status import Segment, StoreStatus

__all__ = [
    "Appended",
    "AppendedBatch",
    "Clock",
    "ConfigError",
    "CorruptRecordError",
    "InvalidMessageError",
    "InvalidRecordError",
    "LightQueuesFullError",
    "LogMismatchError",
    "Message",
    "MessageStore",
    "QueueBytes",
    "ReadResult",
    "Record",
    "RecordBatch",
    "RecordNotFoundError",
    "ReplicaMissingError",
    "ReplicaTimeoutError",
    "RunningFlags",
    "Segment",
    "StoreAccessError",
    "StoreBusyError",
    "StoreClosedError",
    "StoreConfig",
    "StoreDirectoryError",
    "StoreError",
    "StoreFailedError",
    "StoreFullError",
    "StoreLockedError",
    "StoreStatus",
    "SyncTimeoutError",
    "SystemClock",
    "TooFewReplicasError",
]

_MODULES = {
    "Appended": "aerobee_store.message_writer",
    "AppendedBatch": "aerobee_store.message_writer",
    "Clock": "aerobee_store.clock",
    "ConfigError": "aerobee_store.errors",
    "CorruptRecordError": "aerobee_store.errors",
    "InvalidMessageError": "aerobee_store.errors",
    "InvalidRecordError": "aerobee_store.errors",
    "LightQueuesFullError": "aerobee_store.errors",
    "Message": "aerobee_store.records.record",
    "MessageStore": "aerobee_store.message_store",
    "QueueBytes": "aerobee_store.message_reader",
    "ReadResult": "aerobee_store.message_reader",
    "Record": "aerobee_store.records.record",
    "RecordBatch": "aerobee_store.records.record_batch",
    "RecordNotFoundError": "aerobee_store.errors",
    "RunningFlags": "aerobee_store.running_flags",
    "ReplicaTimeoutError": "aerobee_store.errors",
    "ReplicaMissingError": "aerobee_store.errors",
    "LogMismatchError": "aerobee_store.errors",
    "TooFewReplicasError": "aerobee_store.errors",
    "StoreAccessError": "aerobee_store.errors",
    "StoreBusyError": "aerobee_store.errors",
    "StoreClosedError": "aerobee_store.errors",
    "StoreConfig": "aerobee_store.config",
    "StoreDirectoryError": "aerobee_store.errors",
    "StoreError": "aerobee_store.errors",
    "StoreFailedError": "aerobee_store.errors",
    "StoreFullError": "aerobee_store.errors",
    "StoreLockedError": "aerobee_store.errors",
    "Segment": "aerobee_store.store_status",
    "StoreStatus": "aerobee_store.store_status",
    "SyncTimeoutError": "aerobee_store.errors",
    "SystemClock": "aerobee_store.clock",
}
"""The module that defines each name."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
