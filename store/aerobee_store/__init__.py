"""The store: Apache RocketMQ's file formats, written and recovered by one process. See docs/ARCHITECTURE.md.

It is a library without gRPC, metrics server or event-loop policy: a directory is all it needs.
"""

from aerobee_store.clock import Clock, SystemClock
from aerobee_store.config import StoreConfig
from aerobee_store.errors import (
    ConfigError,
    CorruptRecordError,
    InvalidMessageError,
    LightQueuesFullError,
    RecordNotFoundError,
    StoreAccessError,
    StoreBusyError,
    StoreClosedError,
    StoreDirectoryError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreLockedError,
    SyncTimeoutError,
)
from aerobee_store.message_reader import ReadResult
from aerobee_store.message_store import MessageStore
from aerobee_store.message_writer import Appended, AppendedBatch
from aerobee_store.records.record import Message, Record
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.running_flags import RunningFlags
from aerobee_store.store_status import StoreStatus

__all__ = [
    "Appended",
    "AppendedBatch",
    "Clock",
    "ConfigError",
    "CorruptRecordError",
    "InvalidMessageError",
    "LightQueuesFullError",
    "Message",
    "MessageStore",
    "ReadResult",
    "Record",
    "RecordBatch",
    "RecordNotFoundError",
    "RunningFlags",
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
]
