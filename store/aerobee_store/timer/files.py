"""The three files of RocketMQ's timer together: wheel, log, and the checkpoint of their progress.

They are derived from the timer topic in the commit log. After a crash, the units after the checkpoint are rebuilt from
the topic's messages, and the wheel from the units. If a file is missing or damaged, everything is rebuilt from the
topic. After a clean stop the wheel is used as it is, and damage of the log is found when the log is read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from aerobee_store.deferred import deferred
from aerobee_store.disk.file_system import File, FileSystem
from aerobee_store.errors import TimerLogDamagedError
from aerobee_store.records.message_fields import TIMER_TOPIC
from aerobee_store.timer.checkpoint import TimerCheckpoint, TimerCheckpointFile
from aerobee_store.timer.log import DELETE, UNIT_SIZE, TimerLog, TimerUnit, Units
from aerobee_store.timer.wheel import SLOT_COUNT, Slot, TimerWheel

if TYPE_CHECKING:
    import numpy as np
else:
    np = deferred("numpy")


_log = logging.getLogger(__name__)

LOG_FILE_SIZE: Final = 100 << 20


class TimerRecovery(Struct, frozen=True):
    """The result of opening. `complete`: all units before `checkpoint.queue_offset` exist; otherwise the timer topic
    must be read from its beginning."""

    checkpoint: TimerCheckpoint | None
    complete: bool


class TimerFiles:
    """`timerwheel`, `timerlog/` and `config/timercheck` of a store. Nothing is created before the first unit.

    Event loop only, except `save`, which blocks.
    """

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        *,
        precision_ms: int = 1000,
        slot_count: int = SLOT_COUNT,
        log_file_size: int = LOG_FILE_SIZE,
    ) -> None:
        self.wheel = TimerWheel(file_system, directory / "timerwheel", slot_count=slot_count, precision_ms=precision_ms)
        self.log = TimerLog(file_system, directory / "timerlog", log_file_size)
        self._checkpoint = TimerCheckpointFile(file_system, directory / "config" / "timercheck")
        self._counter = 0

    def open(self) -> TimerRecovery:
        """Load the files, and rebuild the wheel unless it was closed cleanly. Blocking."""
        checkpoint = self._checkpoint.load()
        self.log.load()
        complete = checkpoint is not None and self.log.covers(self._log_begin(checkpoint), checkpoint.log_position)
        if checkpoint is not None and complete:
            self._counter = checkpoint.counter
            self.log.cut(self._log_end(checkpoint))
            trusted = checkpoint.clean and checkpoint.precision_ms == self.wheel.precision_ms
            if not (trusted and self.wheel.load() and self.wheel.checksum() == checkpoint.wheel_crc):
                if trusted and checkpoint.wheel_crc:  # nothing was pending, and there was no wheel
                    _log.warning("timer wheel is missing or damaged, rebuilding it from the timer log")
                self.wheel.clear()
                complete = self._rebuild_wheel(checkpoint.read_time_ms)
        if not complete:
            if checkpoint is not None or self.log.end:
                _log.warning("timer files are missing or damaged, rebuilding them topic=%s", TIMER_TOPIC)
            self.clear()
        return TimerRecovery(checkpoint, complete)

    def clear(self) -> None:
        """Remove every unit, to read the timer topic again."""
        self.wheel.clear()
        self.log.clear()

    @property
    def used(self) -> bool:
        """Whether a checkpoint is needed."""
        return self.wheel.used or self.log.end > 0

    def add(self, slot_time_ms: int, unit: TimerUnit) -> None:
        """Append a unit and link it to its slot; `unit.previous` is set here."""
        slot = self.wheel.get(slot_time_ms)
        previous = slot.last if slot is not None else -1
        position = self.log.append(unit._replace(previous=previous), slot_time_ms)
        count = -1 if unit.magic & DELETE else 1
        if slot is None:
            slot = Slot(slot_time_ms, position, position, count)
        else:
            slot = Slot(slot_time_ms, slot.first, position, slot.pending + count, slot.magic)
        self.wheel.put(slot)

    def units(self, slot_time_ms: int) -> Iterator[TimerUnit]:
        """The units of a slot, latest first. TimerLogDamagedError if one of them is missing."""
        slot = self.wheel.get(slot_time_ms)
        position = slot.last if slot is not None else -1
        while position >= 0:
            unit = self.log.read(position)
            yield unit
            position = unit.previous

    def write(self) -> list[File]:
        """Move everything to the page cache; returns the files to sync before the next `save`."""
        self.log.write()
        self.wheel.write()
        return self.log.take_dirty() + self.wheel.take_dirty()

    def next_checkpoint(
        self, read_time_ms: int, queue_offset: int, begin: int, now_ms: int, *, clean: bool
    ) -> TimerCheckpoint:
        """The checkpoint for `save`, valid once all files returned by `write` are synced."""
        self._counter += 1
        return TimerCheckpoint(
            read_time_ms=read_time_ms,
            log_begin=self.log.needed_from(read_time_ms),
            log_position=self.log.end,
            queue_offset=queue_offset,
            begin=begin,
            precision_ms=self.wheel.precision_ms,
            clean=clean,
            timestamp_ms=now_ms,
            counter=self._counter,
        )

    def save(self, files: list[File], checkpoint: TimerCheckpoint) -> None:
        """Sync the files, then write the checkpoint. Blocking; OSError is final."""
        for file in files:
            file.sync()
        if checkpoint.clean:
            checkpoint = replace(checkpoint, wheel_crc=self.wheel.checksum())
        self._checkpoint.save(checkpoint)

    def drop_finished(self, saved: TimerCheckpoint) -> None:
        """Remove the files that the saved checkpoint does not need."""
        self.log.remove_before(saved.log_begin or 0)

    def close(self) -> None:
        self.log.close()
        self.wheel.close()

    def _log_begin(self, checkpoint: TimerCheckpoint) -> int:
        """From where the units are needed. RocketMQ's checkpoint does not have it, so its wheel is asked."""
        if checkpoint.log_begin is not None:
            return checkpoint.log_begin
        needed = self.wheel.first_position(checkpoint.read_time_ms) if self.wheel.load() else None
        self.wheel.close()
        return min(checkpoint.log_position, self.log.begin if needed is None else needed)

    def _log_end(self, checkpoint: TimerCheckpoint) -> int:
        """The end of the units to which the checkpoint's queue offset refers."""
        if checkpoint.begin is not None:
            return checkpoint.log_position
        # RocketMQ reads the synced end of the log and the queue offset, then syncs the log and writes the checkpoint:
        # the position is one round older than the offset, and the units in between are durable too.
        end = self.log.begin
        with suppress(TimerLogDamagedError):  # the bytes after the last unit
            for position, units in self.log.scan():
                end = position + len(units) * UNIT_SIZE
        return max(end, checkpoint.log_position)

    def _rebuild_wheel(self, read_time_ms: int) -> bool:
        """Link every unfinished unit to its slot again. False if the log has damage before its end."""
        slots: dict[int, list[int]] = {}
        try:
            for position, units in self.log.scan():
                self._collect(slots, position, units, read_time_ms)
        except TimerLogDamagedError as error:
            _log.warning("%s", error)
            return False
        for time_ms, (first, last, count) in slots.items():
            self.wheel.put(Slot(time_ms, first, last, count))
        self.wheel.write()
        return True

    def _collect(self, slots: dict[int, list[int]], position: int, units: Units, read_time_ms: int) -> None:
        times = units["write_time"] + units["delay"]
        times = times - times % self.wheel.precision_ms
        positions = position + np.arange(len(units)) * UNIT_SIZE
        counts = np.where(units["magic"] & DELETE, -1, 1)
        pending = times >= read_time_ms - read_time_ms % self.wheel.precision_ms
        times, positions, counts = times[pending], positions[pending], counts[pending]
        found, inverse = np.unique(times, return_inverse=True)
        sums = np.zeros(len(found), np.int64)
        np.add.at(sums, inverse, counts)
        last = np.zeros(len(found), np.int64)
        np.maximum.at(last, inverse, positions)
        first = np.full(len(found), np.iinfo(np.int64).max)
        np.minimum.at(first, inverse, positions)
        for time_ms, begin, end, count in zip(
            found.tolist(), first.tolist(), last.tolist(), sums.tolist(), strict=True
        ):
            slot = slots.get(time_ms)
            if slot is None:
                slots[time_ms] = [begin, end, count]
            else:
                slot[1] = end
                slot[2] += count
