"""Compares the timer's files with the timer topic: every waiting message needs a unit, every unit a message, and the
wheel must lead to the units.

    kind                    severity  what was found
    timer-file              both      a file of the timer log with an unexpected name, size or directory; a wheel with
                                      an unexpected size
    timer-checkpoint        both      an invalid checkpoint, or one that is ahead of the files
    timer-unit-invalid      error     invalid units in the part of the timer log that should be durable
    timer-unit-wrong        error     a unit without a message of the timer topic, or with another time or topic than
                                      its message
    timer-unit-missing      error     waiting messages without a unit
    timer-slot              error     a slot that does not lead to its units, or has a wrong count
    timer-chain             error     a unit that does not refer to the previous one in its slot

Due messages do not count as waiting. Units and slots before the checkpoint's time are complete and never read again.
The wheel and its chains are checked only after a clean stop; otherwise a start rebuilds them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from aerobee_store.log.mapped_file import file_name
from aerobee_store.records import properties as p
from aerobee_store.records.decimals import decimal
from aerobee_store.records.message_fields import TIMER_QUEUE_ID, TIMER_TOPIC
from aerobee_store.records.properties import java_hash
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.timer.checkpoint import TIMER_CHECKPOINT_SIZE, TimerCheckpoint, TimerCheckpointFile
from aerobee_store.timer.log import BLANK_SIZE_MIN, DELETE, ROLL, UNIT_DTYPE, UNIT_SIZE, Units, is_blank, valid_units
from aerobee_store.timer.wheel import SLOT_DTYPE, SLOT_SIZE
from aerobee_store.tools.damage import Damage
from aerobee_store.tools.findings import Finding, Findings, Severity
from aerobee_store.tools.store_files import StoreFiles

_CHUNK: Final = 1 << 14  # units read at once
_PRECISIONS_MS: Final = (1000, 500, 200, 100)  # RocketMQ's

Integers = npt.NDArray[np.int64]


class TimerCheck:
    """Takes the log batch by batch, then `finish`."""

    def __init__(self, files: StoreFiles, damage: Damage, findings: Findings) -> None:
        self._files = files
        self._damage = damage
        self._findings = findings
        self._file = TimerCheckpointFile(files.disk, files.directory / "config" / "timercheck")
        # Read before the log: everything to which it refers then exists.
        self._checkpoint = self._file.load()
        # Of each message of the timer topic: physical offset, size, queue offset, time of its slot, topic hash, key.
        self._messages = array("q")
        self.units = 0

    def take(self, batch: RecordBatch) -> None:
        """Note the messages of the timer topic."""
        if TIMER_TOPIC not in batch.topics:
            return
        for row in np.flatnonzero(batch.topic_index == batch.topics.index(TIMER_TOPIC)).tolist():
            record = batch.record(row)
            values = record.properties
            number = decimal(values.get(p.TIMER_OUT_MS))
            out_ms = -1 if number is None else number
            # A copy stored again on the way has the key of the first message; without a key nothing is known.
            key = java_hash(values.get(p.UNIQ_KEY, "")) << 1 | (p.TIMER_DELETE_UNIQ_KEY in values)
            hash_ = java_hash(values.get(p.REAL_TOPIC, ""))
            known = out_ms if values.get(p.UNIQ_KEY) else -1
            self._messages.extend((record.physical_offset, record.size, record.queue_offset, out_ms, hash_, key, known))

    def finish(self, latest: int) -> None:
        """Compare. `latest`: the latest store time of the log."""
        files = self._files
        if not (files.timer_log or self._checkpoint or (files.directory / "timerwheel").exists()):
            return
        messages = np.frombuffer(self._messages, np.int64).reshape(-1, 7)
        checkpoint = self._checked_checkpoint(messages)
        if checkpoint is None or not files.timer_log:
            return
        positions, units = self._read(checkpoint)
        self.units = len(units)
        if files.live:
            # Slots were finished in the meantime, and their files may have been removed.
            now = self._file.load() or checkpoint
            checkpoint = replace(checkpoint, read_time_ms=now.read_time_ms)
        self._check_units(units, positions, messages, max(latest, checkpoint.read_time_ms))
        self._check_missing(units, messages, checkpoint, latest)
        if files.state == "stopped" and (checkpoint.clean or checkpoint.begin is None):
            self._check_wheel(positions, units, checkpoint)

    # --- checkpoint and log -----------------------------------------------------------------------------------

    def _checked_checkpoint(self, messages: Integers) -> TimerCheckpoint | None:
        path = "config/timercheck"
        full = self._files.directory / path
        rebuilt = "the next start rebuilds the timer's files from the timer topic"
        if self._checkpoint is None:
            what = f"{self._files.disk.size(full)} invalid bytes" if full.exists() else "missing"
            self._report("timer-checkpoint", path, f"{what}; {rebuilt}", severity="warning")
            return None
        checkpoint = self._checkpoint
        if (size := self._files.disk.size(full)) != TIMER_CHECKPOINT_SIZE:
            self._report("timer-checkpoint", path, f"{size} bytes, not {TIMER_CHECKPOINT_SIZE}", severity="warning")
        queue = self._files.queues.get((TIMER_TOPIC, TIMER_QUEUE_ID))
        end = queue.end() if queue is not None else 0
        if self._files.state == "crashed" and len(messages):
            end = max(end, int(messages[-1, 2]) + 1)  # the next start adds the units that were not written
        if checkpoint.queue_offset > end and not self._files.live:
            self._report(
                "timer-checkpoint", path, f"refers to message {checkpoint.queue_offset}, but the topic ends at {end}"
            )
        sizes = self._files.timer_log
        log_end = max((start + size for start, size in sizes.items()), default=0)
        if checkpoint.log_position > log_end:
            self._report(
                "timer-checkpoint",
                path,
                f"refers to position {checkpoint.log_position}, but the timer log ends at {log_end}; {rebuilt}",
                severity="error" if sizes else "warning",
            )
            return None
        return checkpoint

    def _read(self, checkpoint: TimerCheckpoint) -> tuple[Integers, Units]:
        """The valid units and their positions; invalid ones before the checkpoint's position are reported."""
        found: list[tuple[Integers, Units]] = []
        before = None
        # RocketMQ's position is older than the rest of its checkpoint: units continue after it.
        end = checkpoint.log_position if checkpoint.begin is not None else 1 << 62
        for start, size in self._files.timer_log.items():
            if start >= end:
                break
            if before is not None and start != before:
                self._report("timer-file", f"timerlog/{file_name(start)}", f"the previous file ends at {before}")
            before = start + size
            for positions, units in self._read_file(start, size, min(end, start + size), checkpoint.log_position):
                found.append((positions, units))
        empty = np.zeros(0, np.int64), np.zeros(0, UNIT_DTYPE)
        return (
            np.concatenate([positions for positions, _ in found] or [empty[0]]),
            np.concatenate([units for _, units in found] or [empty[1]]),
        )

    def _read_file(self, start: int, size: int, end: int, durable: int) -> Iterator[tuple[Integers, Units]]:
        path = self._files.directory / "timerlog" / file_name(start)
        capacity = max(0, (size - BLANK_SIZE_MIN) // UNIT_SIZE)
        count = min(capacity, (end - start) // UNIT_SIZE)
        try:
            file = self._files.disk.open(path)
        except FileNotFoundError:
            return  # all of its slots are finished
        try:
            for first in range(0, count, _CHUNK):
                data = file.read(min(_CHUNK, count - first) * UNIT_SIZE, first * UNIT_SIZE)
                units = np.frombuffer(data, UNIT_DTYPE, len(data) // UNIT_SIZE)
                positions = start + (first + np.arange(len(units))) * UNIT_SIZE
                valid = valid_units(units, positions)
                wrong = ~valid & (positions < durable)
                if wrong.any():
                    self._report(
                        "timer-unit-invalid",
                        self._files.relative(path),
                        f"no unit at position {int(positions[int(wrong.argmax())])}, but the checkpoint says that the "
                        f"log is durable up to {durable}",
                        count=int(np.count_nonzero(wrong)),
                    )
                beyond = ~valid & (positions >= durable)
                if beyond.any():
                    last = int(beyond.argmax())
                    yield positions[:last][valid[:last]], units[:last][valid[:last]]
                    return
                yield positions[valid], units[valid]
            blank_at = capacity * UNIT_SIZE
            if durable >= start + size and not is_blank(file.read(BLANK_SIZE_MIN, blank_at), size - blank_at):
                self._report(
                    "timer-unit-invalid", self._files.relative(path), f"no blank at position {start + blank_at}"
                )
        finally:
            file.close()

    # --- units and messages -----------------------------------------------------------------------------------

    def _check_units(self, units: Units, positions: Integers, messages: Integers, reached_ms: int) -> None:
        """Check that every unit agrees with its message. `reached_ms`: the latest time that the clock has reached."""
        offsets = units["physical_offset"].astype(np.int64)
        row = np.minimum(np.searchsorted(messages[:, 0], offsets), max(len(messages) - 1, 0))
        there = np.zeros(len(units), bool)
        if len(messages):
            there = (messages[row, 0] == offsets) & (messages[row, 1] == units["message_size"])
        for number in np.flatnonzero(~there & (offsets >= self._files.log_begin)).tolist():
            place = int(offsets[number])
            if not self._damage.within(place, place + 1):
                self._report_unit(positions, number, "no message of the timer topic begins there", place)
        if not there.any():
            return
        numbers = np.flatnonzero(there)
        found, message = units[numbers], messages[row[numbers]]
        for number in numbers[message[:, 4] != found["topic_hash"]].tolist():
            self._report_unit(positions, number, "its message is for another topic", int(offsets[number]))
        precision = self._precision_ms
        times = found["write_time"] + found["delay"]
        step, wanted = times // precision, message[:, 3] // precision
        # A message that arrived late is on a later slot, and one far ahead on an intermediate slot. If the clock was
        # set back, the timer had reached a later time than the message's arrival.
        reached = np.maximum(found["write_time"], reached_ms)
        wrong = (step < wanted) | ((step > wanted) & (times > reached + precision))
        wrong &= (found["magic"] & ROLL) == 0
        for number in numbers[wrong & (message[:, 3] >= 0)].tolist():
            self._report_unit(positions, number, "its message is due at another time", int(offsets[number]))

    @property
    def _precision_ms(self) -> int:
        checkpoint = self._checkpoint
        return checkpoint.precision_ms if checkpoint is not None and checkpoint.precision_ms > 0 else _PRECISIONS_MS[0]

    def _check_missing(self, units: Units, messages: Integers, checkpoint: TimerCheckpoint, latest: int) -> None:
        if not len(messages):
            return
        # Messages due after the last message of the log cannot have been delivered. Of copies stored again on the way,
        # the last one counts.
        waits = (messages[:, 6] > max(latest, checkpoint.read_time_ms)) & (messages[:, 2] < checkpoint.queue_offset)
        _, last = np.unique(messages[::-1, 5], return_index=True)
        is_last = np.zeros(len(messages), bool)
        is_last[len(messages) - 1 - last] = True
        missing = waits & is_last & ~np.isin(messages[:, 0], units["physical_offset"].astype(np.int64))
        for offset, _, queue_offset, out_ms, *_ in messages[missing].tolist():
            self._findings.add(
                Finding(
                    kind="timer-unit-missing",
                    path="timerlog",
                    detail=f"the message due at {out_ms} has no unit and would not be delivered",
                    physical_offset=offset,
                    topic=TIMER_TOPIC,
                    queue_id=TIMER_QUEUE_ID,
                    queue_offset=queue_offset,
                )
            )

    # --- wheel ------------------------------------------------------------------------------------------------

    def _check_wheel(self, positions: Integers, units: Units, checkpoint: TimerCheckpoint) -> None:
        path = self._files.directory / "timerwheel"
        times = (units["write_time"] + units["delay"]).astype(np.int64)
        if not path.exists():
            # A wheel exists only if messages wait; otherwise the next start makes none.
            if (times // self._precision_ms * self._precision_ms >= checkpoint.read_time_ms).any():
                self._report("timer-file", "timerwheel", "missing; the next start rebuilds it", severity="warning")
            return
        data = self._files.disk.read_bytes(path)
        slots = np.frombuffer(data, SLOT_DTYPE, len(data) // SLOT_SIZE)
        if len(data) % SLOT_SIZE or not len(slots):
            self._report(
                "timer-file", "timerwheel", f"{len(data)} bytes are not a multiple of the slot size {SLOT_SIZE}"
            )
            return
        precision = checkpoint.precision_ms or _precision_of(slots, times)
        waits = np.flatnonzero(times // precision * precision >= checkpoint.read_time_ms)
        order = waits[np.argsort(times[waits] // precision, kind="stable")]
        step, position, unit = times[order] // precision, positions[order], units[order]
        wanted = self._check_chains(step, position, unit)
        self._check_slots(slots, wanted, precision, checkpoint)

    def _check_chains(self, step: Integers, position: Integers, unit: Units) -> dict[int, tuple[int, int, int]]:
        """Check that each unit refers to the previous one of its slot; return the expected first, last and count of
        each slot."""
        new = np.append(True, step[1:] != step[:-1]) if len(step) else np.zeros(0, bool)
        previous = np.where(new, -1, np.roll(position, 1))
        for number in np.flatnonzero(unit["previous"] != previous).tolist():
            self._report(
                "timer-chain",
                self._log_path(int(position[number])),
                f"the unit at position {int(position[number])} refers to {int(unit['previous'][number])} as the "
                f"previous one, which is at {int(previous[number])}",
            )
        begins = np.flatnonzero(new)
        counts = np.add.reduceat(np.where(unit["magic"] & DELETE, -1, 1), begins) if len(begins) else begins
        firsts = position[begins]
        lasts = position[np.append(begins[1:], len(step)) - 1] if len(begins) else firsts
        return dict(
            zip(step[begins].tolist(), zip(firsts.tolist(), lasts.tolist(), counts.tolist(), strict=True), strict=True)
        )

    def _check_slots(
        self,
        slots: npt.NDArray[np.void],
        wanted: dict[int, tuple[int, int, int]],
        precision: int,
        checkpoint: TimerCheckpoint,
    ) -> None:
        used = np.flatnonzero(slots["time"] > 0)
        for number in used[slots["time"][used] % len(slots) != used].tolist():
            self._report_slot(
                number,
                f"has time {int(slots['time'][number])}, which belongs to slot "
                f"{int(slots['time'][number]) % len(slots)}",
            )
        for number in used[slots["time"][used] * precision >= checkpoint.read_time_ms].tolist():
            time, first, last, pending, _ = slots[number].tolist()
            units_of = wanted.pop(time, None)
            # RocketMQ's own count is not exact after a recovery.
            told = (first, last, pending if checkpoint.begin is not None or units_of is None else units_of[2])
            if told != units_of and time % len(slots) == number:
                self._report_slot(
                    number,
                    f"with time {time * precision} links {last} to {first} and counts {pending}; its units "
                    + (f"link {units_of[1]} to {units_of[0]} and count {units_of[2]}" if units_of else "are missing"),
                )
        for time, (first, last, count) in wanted.items():
            self._report_slot(
                time % len(slots), f"lacks the {count} messages of time {time * precision}, {first}..{last}"
            )

    # --- the step of the wheel --------------------------------------------------------------------------------

    def _log_path(self, position: int) -> str:
        start = max((start for start in self._files.timer_log if start <= position), default=0)
        return f"timerlog/{file_name(start)}"

    def _report_unit(self, positions: Integers, number: int, why: str, physical_offset: int) -> None:
        position = int(positions[number])
        self._findings.add(
            Finding(
                kind="timer-unit-wrong",
                path=self._log_path(position),
                detail=f"the unit at position {position}: {why}",
                physical_offset=physical_offset,
            )
        )

    def _report_slot(self, number: int, detail: str) -> None:
        self._report("timer-slot", "timerwheel", f"slot {number} {detail}")

    def _report(self, kind: str, path: str, detail: str, *, severity: Severity = "error", count: int = 1) -> None:
        self._findings.add(Finding(kind=kind, severity=severity, path=path, detail=detail, count=count))


def _precision_of(slots: npt.NDArray[np.void], times: Integers) -> int:
    """The step of a wheel written by RocketMQ: the step with which slots match the times of units."""
    used = slots["time"][slots["time"] > 0].astype(np.int64)
    matching = [int(np.count_nonzero(np.isin(times // precision, used))) for precision in _PRECISIONS_MS]
    return _PRECISIONS_MS[matching.index(max(matching))]
