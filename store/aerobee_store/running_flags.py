"""The operations that a store refuses at the moment: RocketMQ's running flags, with its bits.

bit  flag                set by
  1  NOT_READABLE        the owner of the store
  2  NOT_WRITEABLE       the owner of the store; a failed write or sync, permanently
  4  LOGICS_QUEUE_ERROR  a queue that cannot be written, or disagrees with the log, permanently; sets NOT_WRITEABLE too
  8  INDEX_FILE_ERROR    an index file that cannot be made or written, permanently; sets NOT_WRITEABLE too
 16  DISK_FULL           retention, which also clears it, from the disk's usage
 32  FENCED              the owner of the store
128  REPLICAS_MISSING    the owner of the store: too few brokers have a copy of the log. Not in RocketMQ
 64  LOGIC_DISK_FULL     never set: retention uses the fullest disk and sets DISK_FULL, as RocketMQ does
"""

from __future__ import annotations

import enum
from typing import Final

from aerobee_store.errors import StoreAccessError, StoreError, StoreFullError, TooFewReplicasError


class RunningFlags(enum.Flag):
    """Flags that forbid reads or writes."""

    NONE = 0
    NOT_READABLE = 1
    NOT_WRITEABLE = 2
    LOGICS_QUEUE_ERROR = 4
    INDEX_FILE_ERROR = 8
    DISK_FULL = 16
    FENCED = 32
    LOGIC_DISK_FULL = 64
    REPLICAS_MISSING = 128

    @property
    def readable(self) -> bool:
        """Whether messages may be read."""
        return not self & RunningFlags.NOT_READABLE

    @property
    def writable(self) -> bool:
        """Whether messages may be appended."""
        return not self & _FORBID_WRITING


_DISK: Final = RunningFlags.DISK_FULL | RunningFlags.LOGIC_DISK_FULL
_INTERNAL_PASSES: Final = _DISK | RunningFlags.REPLICAS_MISSING
_FORBID_WRITING: Final = (
    _INTERNAL_PASSES
    | RunningFlags.NOT_WRITEABLE
    | RunningFlags.LOGICS_QUEUE_ERROR
    | RunningFlags.INDEX_FILE_ERROR
    | RunningFlags.FENCED
)


class RunningState:
    """The flags of one store and the reason for each."""

    __slots__ = ("_reasons", "flags")

    def __init__(self) -> None:
        self.flags = RunningFlags.NONE
        self._reasons: dict[RunningFlags, str] = {}

    def set(self, flag: RunningFlags, reason: str) -> None:
        """Set one flag. `reason` is for people: the cause and the next step."""
        self.flags |= flag
        self._reasons[flag] = reason

    def clear(self, flag: RunningFlags) -> None:
        """Clear one flag, if it is set."""
        self.flags &= ~flag
        self._reasons.pop(flag, None)

    @property
    def reason(self) -> str:
        """Why the store refuses messages or reads; empty if it refuses neither."""
        return "; ".join(self._reasons.values())

    def check_writable(self, *, internal: bool) -> None:
        """Raise StoreFullError, TooFewReplicasError or StoreAccessError if nothing may be appended.

        `internal`: such writes are accepted with a full disk and without replicas (see `MessageStore.append`).
        """
        forbidden = self.flags & (_FORBID_WRITING & ~_INTERNAL_PASSES if internal else _FORBID_WRITING)
        if forbidden:
            raise self._error(forbidden)

    def check_readable(self) -> None:
        """Raise StoreAccessError if nothing may be read."""
        if not self.flags.readable:
            raise self._error(RunningFlags.NOT_READABLE)

    def _error(self, forbidden: RunningFlags) -> StoreError:
        text = "; ".join(reason for flag, reason in self._reasons.items() if flag & forbidden)
        if forbidden & ~_INTERNAL_PASSES:
            return StoreAccessError(text)
        return TooFewReplicasError(text) if forbidden & RunningFlags.REPLICAS_MISSING else StoreFullError(text)
