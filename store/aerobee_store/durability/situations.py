"""The situations in which recovery may find a store, as data: recovery records each one that occurs, and a test walks
all of them.

A torn tail and damage look alike; the checkpoint's offset distinguishes them. Bytes before it were synced. Bytes after
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
        "the same, and the index is not complete according to the checkpoint",
        "the last indexed record",
    )
    CLEAN_WITHOUT_INDEX = "clean", "the same, and there is no index", "the first segment"
    CLEAN_QUEUES_AHEAD = (
        "clean",
        "the last unit names no record: the queues are ahead of the log, or the unit is damaged",
        "as after a crash",
    )
    CRASH = "crash", "a checkpoint", "the segment of the offset up to which queues and index are synced"
    CRASH_WITHOUT_INDEX = "crash", "a checkpoint, and no index", "the first segment"
    CRASH_ROCKETMQ = (
        "crash",
        "a checkpoint of RocketMQ",
        "the last segment that begins with a valid record from before the checkpoint's time, but at the latest the "
        "one that the queues or the synced index reach",
    )
    CRASH_UNKNOWN = "crash", "nothing", "the first segment"

    def __init__(self, stop: str, known: str, place: str) -> None:
        self.stop = stop
        self.known = known
        self.place = place


class Found(Enum):
    """Each thing that recovery may find, and its action: (finding, action). Nothing that still parses is deleted."""

    RECORD = "a valid record", "compare or add its unit and index entries"
    BLANK = "a blank that reaches the end of its segment", "continue with the next segment"
    END = "zeros, and no valid record after them", "end the log here"
    TORN_WRITE = "other bytes, and no valid record after them", "end the log here: the last write is torn"
    DAMAGE = (
        "other bytes or a missing segment, and valid records after them",
        "note and report the damaged range, skip it, and keep the records after it",
    )
    TORN_TAIL = (
        "the same after the checkpoint's synced offset, if the machine may have stopped",
        "end the log here: later writes reached the disk before earlier ones; move what follows to the quarantine",
    )
    WRONG_UNIT = "a unit with another place than that of its record", "correct the unit"
    TORN_QUEUE = "an end of a queue with further units after it", "read the log from there, after any stop"
    LOST_QUEUE_FILES = (
        "a queue that lacks files: between others, or it begins later or ends earlier than is known (queue_bounds.py)",
        "remove its other files, and read the whole log",
    )
    LOST_BEGINNING = (
        "a log that begins later than is known (queue_bounds.py)",
        "report the lost range, and serve the rest",
    )
    GAP = "a gap in the offsets of a queue", "add filler units"
    OTHER_QUEUES = "a record that names other queues", "add units there, too, at the offsets in the record"
    DELETED_TOPIC = "a record of a topic that was deleted after it", "add no unit"
    NO_INNER_BATCH = "a record of a batch topic without an inner batch", "add no unit, like RocketMQ"
    WRONG_BATCH_UNITS = (
        "units of a batch queue that differ from the records",
        "drop them and all later ones, and add new ones",
    )
    UNITS_AFTER_END = (
        "a unit or index entry at or after the end of the log",
        "drop it; read the log again for a queue with other units after it, or with an end before the read part",
    )
    BYTES_AFTER_END = (
        "bytes after the end of the log",
        "zero and sync them before the first append, because they could parse as records after the next crash",
    )
    SEGMENT_AFTER_END = (
        "a whole segment after the end without any valid record",
        "move it to the quarantine if it has content",
    )
    CUT_ORDERED = (
        "the order to cut the log at an offset (log_cut.py)",
        "end the log there, and move what follows to the quarantine",
    )

    def __init__(self, found: str, done: str) -> None:
        self.found = found
        self.done = done


Situation = Beginning | Found
