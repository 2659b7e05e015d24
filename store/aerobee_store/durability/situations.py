"""The situations in which recovery may find a store, as data: recovery records each one that occurs, and a test walks
all of them.

A torn tail and damage look alike; the checkpoint's offset distinguishes them. Bytes before it were synced. Bytes behind
it may or may not have been synced by the last sync. If the machine has stopped since, a hole there is nearly always a
write lost in the power cut, and the bytes after it, written later, were not synced either. If only the process has
died, no write is lost, and a hole is always damage (`store_directory.writes_may_be_lost`).
"""

from __future__ import annotations

from enum import Enum


class Beginning(Enum):
    """The place where recovery begins to read the log: (the last stop, the known facts, the place)."""

    CLEAN = "clean", "the last queue unit names a valid record of its size", "the end of that record"
    CLEAN_INDEX_BEHIND = (
        "clean",
        "the same, and the checkpoint does not say that the index is complete",
        "the last indexed record",
    )
    CLEAN_WITHOUT_INDEX = "clean", "the same, and there is no index at all", "the first segment"
    CLEAN_QUEUES_AHEAD = (
        "clean",
        "the last unit names none: the queues are ahead of the log, or the unit is damaged",
        "as after a crash",
    )
    CRASH = "crash", "a checkpoint", "the segment of the offset up to which queues and index are synced"
    CRASH_WITHOUT_INDEX = "crash", "a checkpoint, and no index", "the first segment"
    CRASH_ROCKETMQ = (
        "crash",
        "a checkpoint of RocketMQ",
        "the last segment that begins with a valid record stored before the checkpoint's time, and not behind the "
        "segment that the queues reach, or the synced index",
    )
    CRASH_UNKNOWN = "crash", "nothing", "the first segment"

    def __init__(self, stop: str, known: str, place: str) -> None:
        self.stop = stop
        self.known = known
        self.place = place


class Found(Enum):
    """The actions of recovery: (finding, action). Nothing that still parses is deleted."""

    RECORD = "a valid record", "its unit and index entries are compared or added"
    BLANK = "a blank that reaches the end of its segment", "go on with the next segment"
    END = "zeros, and no valid record behind them", "the log ends here"
    TORN_WRITE = "anything else, and no valid record behind it", "the log ends here: a torn last write"
    DAMAGE = (
        "anything else, or a missing segment, with valid records behind it",
        "the range is damaged: noted, reported, stepped over; what follows is kept",
    )
    TORN_TAIL = (
        "the same, if the machine may have stopped and all of it lies behind the checkpoint's synced offset",
        "the log ends here: of the writes that were not synced, later ones have reached the disk; what follows is set "
        "aside in `quarantine`",
    )
    WRONG_UNIT = "a unit that names another place than the record's", "put right"
    TORN_QUEUE = "an end of a queue that has more behind it", "the log is read from there, whatever the stop"
    GAP = "a gap in a queue's offsets", "filler units"
    OTHER_QUEUES = "a record that names other queues", "their units, too, at the offsets that stand in it"
    DELETED_TOPIC = "a record of a topic that was deleted after it", "no unit"
    NO_INNER_BATCH = "a record of a batch topic that is no inner batch", "no unit, as RocketMQ has it"
    WRONG_BATCH_UNITS = (
        "units of a batch queue that are not those of the records",
        "dropped with all behind them, and added anew",
    )
    UNITS_BEHIND_END = (
        "a unit or index entry at or behind the end of the log",
        "dropped; if units that are not follow it, or its queue then ends before what was read, the log is read again "
        "for its queue",
    )
    BYTES_BEHIND_END = (
        "bytes behind the end of the log",
        "zeroed and synced before the first append, or they would parse as records after the next crash",
    )
    SEGMENT_BEHIND_END = (
        "a whole segment behind the end without any valid record",
        "set aside in `quarantine`, if it holds anything",
    )
    ORDER_TO_CUT = "the order to cut the log at an offset (log_cut.py)", "the log ends there; what follows is set aside"

    def __init__(self, found: str, done: str) -> None:
        self.found = found
        self.done = done


Situation = Beginning | Found
