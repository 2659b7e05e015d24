"""Rebuilds consume queues and index from the log alone.

They are built beside the old ones, in `rebuild.new`, and replace them when they are complete and synced:

    1. build in rebuild.new, sync
    2. write `abort`, remove `checkpoint`: a start would now read the whole log in any case
    3. move the old ones to rebuild.old, the new ones to their place
    4. write the checkpoint, remove `abort`; skipped for a store that was not closed cleanly
    5. remove rebuild.old

A crash before 2 leaves the store unchanged; after a crash later, the next start completes the rebuild. Files that were
moved and not replaced yet are restored by the next start or rebuild. Remaining files in rebuild.new and rebuild.old are
removed by the next rebuild.

Information that is not in the log is kept: an empty queue keeps its last file, because only that file records the next
offset. Units of expired messages at the beginning of a queue become filler units.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from aerobee_store.disk.file_system import DiskFileSystem, FileSystem
from aerobee_store.disk.store_directory import REBUILD_OLD, REBUILT_NAMES, put_back
from aerobee_store.durability.checkpoint import Checkpoint
from aerobee_store.errors import StoreDirectoryError
from aerobee_store.log.log_scan import LogEnd
from aerobee_store.log.mapped_file import file_name
from aerobee_store.queues.batch_consume_queue import AnyQueue, BatchConsumeQueue
from aerobee_store.queues.consume_queue import ConsumeQueue
from aerobee_store.queues.index_file import IndexService
from aerobee_store.queues.multi_dispatch import AS_RECORDED
from aerobee_store.queues.record_units import batch_queue_units, queue_units
from aerobee_store.queues.topic_removal import DeletedTopics
from aerobee_store.records.record_batch import RecordBatch
from aerobee_store.tools.actions import Action, GivenSizes, Sizes, locked, sizes_of
from aerobee_store.tools.damage import finding_of
from aerobee_store.tools.findings import Finding
from aerobee_store.tools.log_walk import bytes_behind, log_scan, walk
from aerobee_store.tools.overlay_disk import OverlayDisk
from aerobee_store.tools.store_files import Progress, QueueFiles, QueueKey, StoreFiles, StoreState
from aerobee_store.tools.table_check import topics_of

NEW: Final = "rebuild.new"
OLD: Final = REBUILD_OLD
_CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """The result, or the plan. `left`: damage of the log, which no rebuild can repair."""

    state: StoreState
    applied: bool
    sizes: Sizes
    records: int
    log_begin: int
    log_end: int
    queues: int
    units: int
    index_files: int
    index_entries: int
    actions: list[Action] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """One JSON object."""
        return {
            "applied": self.applied,
            "state": self.state,
            "records": self.records,
            "logBegin": self.log_begin,
            "logEnd": self.log_end,
            "queues": self.queues,
            "units": self.units,
            "indexFiles": self.index_files,
            "indexEntries": self.index_entries,
            "sizes": self.sizes.to_json(),
            "actions": [action.to_json() for action in self.actions],
            "left": [finding.to_json() for finding in self.left],
        }


def rebuild(
    directory: Path,
    *,
    queues: bool = True,
    index: bool = True,
    apply: bool = False,
    sizes: GivenSizes | None = None,
    progress: Progress | None = None,
) -> RebuildReport:
    """Rebuild queues, index or both from the log of a stopped store; without `apply` only print the changes.

    `sizes` are needed only if no file shows them. `progress` is called with bytes of the log.

    Raises StoreLockedError for a store in use, StoreDirectoryError for an invalid store, OSError of the disk.
    """
    if not (queues or index):
        raise ValueError("queues, index or both")
    files = StoreFiles.find(directory)
    try:
        with locked(directory, create=apply):
            if apply and put_back(DiskFileSystem(), directory):
                files.close()
                files = StoreFiles.find(directory)
            if not files.segments:
                raise StoreDirectoryError(
                    f"{directory / 'commitlog'}: the log has no segments; nothing to rebuild from"
                )
            _check_replaceable(directory, _names(queues=queues, index=index))
            disk: FileSystem
            if apply:
                disk = DiskFileSystem()
                for name in (NEW, OLD):
                    shutil.rmtree(directory / name, ignore_errors=True)
            else:
                disk = OverlayDisk()
            return _Rebuild(files, sizes_of(files, sizes or GivenSizes()), disk, queues, index, apply, progress).run()
    finally:
        files.close()


def batch_topics(files: StoreFiles) -> set[str]:
    """The batch topics: those with batch consume queues, and those with the attribute in the broker's table."""
    found = {topic for topic, _ in files.batch_queues}
    for topic, entry in (topics_of(files) or {}).items():
        attributes = entry.get("attributes") if isinstance(entry, dict) else None
        if isinstance(attributes, dict) and attributes.get("queue.type") == "BatchCQ":
            found.add(topic)
    return found


class _Rebuild:
    def __init__(
        self,
        files: StoreFiles,
        sizes: Sizes,
        disk: FileSystem,
        with_queues: bool,
        with_index: bool,
        apply: bool,
        progress: Progress | None,
    ) -> None:
        self._files = files
        self._sizes = sizes
        self._disk = disk
        self._with_queues = with_queues
        self._with_index = with_index
        self._apply = apply
        self._progress = progress
        self._new = files.directory / NEW
        self._batch_topics = batch_topics(files)
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._batch_queues: dict[QueueKey, BatchConsumeQueue] = {}
        self._index = IndexService(disk, self._new / "index", sizes.index_slot_count, sizes.index_entry_count)
        self._deleted = DeletedTopics(files.disk, files.directory)
        self._records = self._units = 0
        self._last_timestamp = 0
        self._actions: list[Action] = []
        self._left: list[Finding] = []

    def run(self) -> RebuildReport:
        self._deleted.load()
        end = self._walk()
        self._left += bytes_behind(self._files, end)
        if self._with_queues:
            self._keep_ends()
            for (topic, queue_id), queue in sorted(self._queues.items()):
                self._report_queue(topic, queue_id, queue, "consumequeue", self._files.queues)
            for (topic, queue_id), batch_queue in sorted(self._batch_queues.items()):
                self._report_queue(topic, queue_id, batch_queue, "batchconsumequeue", self._files.batch_queues)
            self._report_dropped()
        entries = sum(file.next_entry - 1 for file in self._index.files)
        if self._with_index:
            self._actions.append(
                Action(
                    kind="write-index",
                    path="index",
                    count=entries,
                    detail=f"{entries} entries in {len(self._index.files)} files, in place of "
                    f"{len(self._files.index_files)} files",
                )
            )
        report = self._report(end.position, entries)
        self._close(sync=self._apply)
        if self._apply:
            self._swap(end.position)
        elif isinstance(self._disk, OverlayDisk):
            self._disk.close()
        return report

    def _report(self, log_end: int, index_entries: int) -> RebuildReport:
        return RebuildReport(
            state=self._files.state,
            applied=self._apply,
            sizes=self._sizes,
            records=self._records,
            log_begin=self._files.log_begin,
            log_end=log_end,
            queues=len(self._queues) + len(self._batch_queues),
            units=self._units,
            index_files=len(self._index.files),
            index_entries=index_entries,
            actions=self._actions,
            left=self._left,
        )

    # --- reading the log --------------------------------------------------------------------------------------

    def _walk(self) -> LogEnd:
        begin = self._files.log_begin
        total = sum(segment.file.data_end(0) for segment in self._files.segments)
        for found in walk(self._files, log_scan(self._files), begin):
            if isinstance(found, LogEnd):
                return found
            if isinstance(found, RecordBatch):
                self._take(found)
                position = int(found.physical_offset[-1]) + int(found.size[-1])
            else:
                self._left.append(finding_of(found, self._files, [], 0))
                position = found.end
            if self._progress is not None:
                self._progress(min(position - begin, total), total)
        raise AssertionError("a walk ends with the end of the log")

    def _take(self, batch: RecordBatch) -> None:
        self._records += len(batch)
        self._last_timestamp = int(batch.store_timestamp[-1])
        if self._with_queues:
            self._take_units(batch)
        if self._with_index:
            rows, hashes = batch.index_hashes()
            if len(rows):
                stored = batch.store_timestamp[rows]
                # Named by the time of a message, so that a repeated rebuild makes the same name.
                self._index.put(hashes, batch.physical_offset[rows], stored, int(stored[0]))

    def _take_units(self, batch: RecordBatch) -> None:
        for found in queue_units(batch, AS_RECORDED):
            if found.topic in self._batch_topics:
                continue
            counts = found.units["physical_offset"] >= self._deleted.end_of(found.topic)
            offsets, units = found.queue_offsets[counts], found.units[counts]
            breaks = (np.flatnonzero(np.diff(offsets) != 1) + 1).tolist()
            for first, last in zip([0, *breaks], [*breaks, len(units)], strict=True):
                if first < last:
                    self._put(self._queue(found.topic, found.queue_id), int(offsets[first]), units[first:last])
        for topic, queue_id, batch_units in batch_queue_units(batch):
            batch_units = batch_units[batch_units["physical_offset"] >= self._deleted.end_of(topic)]
            if len(batch_units):
                added, dropped = self._batch_queue(topic, queue_id).complete(batch_units, unsynced=False)
                self._units += added - dropped

    def _put(self, queue: ConsumeQueue, queue_offset: int, units: np.ndarray[tuple[int], np.dtype[np.void]]) -> None:
        if queue.files and queue_offset < queue.max_offset:
            # Decreasing offsets: the topic was deleted and created again, and its earlier messages are gone.
            self._units -= queue.max_offset - max(queue_offset, queue.min_offset)
            if queue_offset <= queue.min_offset:
                queue.destroy()
            else:
                queue.truncate(queue_offset)
        queue.put(queue_offset, units.tobytes())
        self._units += len(units)

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            directory = self._new / "consumequeue" / topic / str(queue_id)
            queue = ConsumeQueue(self._disk, directory, topic, queue_id, self._sizes.queue_file_size)
            queue.begin_at(self._deleted.next_offset(topic, queue_id))
            self._queues[topic, queue_id] = queue
        return queue

    def _batch_queue(self, topic: str, queue_id: int) -> BatchConsumeQueue:
        queue = self._batch_queues.get((topic, queue_id))
        if queue is None:
            directory = self._new / "batchconsumequeue" / topic / str(queue_id)
            queue = BatchConsumeQueue(self._disk, directory, topic, queue_id, self._sizes.batch_queue_file_size)
            queue.begin_at(self._deleted.next_offset(topic, queue_id))
            self._batch_queues[topic, queue_id] = queue
        return queue

    # --- information that is not in the log -------------------------------------------------------------------

    def _keep_ends(self) -> None:
        """Queues without messages in the log keep their last file."""
        for name, old in (("consumequeue", self._files.queues), ("batchconsumequeue", self._files.batch_queues)):
            for (topic, queue_id), files in sorted(old.items()):
                if (topic, queue_id) in self._queues or (topic, queue_id) in self._batch_queues:
                    continue
                end = files.end()
                last = files.read(end - 1, 1)[0] if end > files.first else None
                path = f"{name}/{topic}/{queue_id}"
                if last is None or not 0 <= int(last["physical_offset"]) < self._files.log_begin:
                    continue
                start = max(start for start in files.starts if start <= (end - 1) * files.dtype.itemsize)
                target = self._new / path / file_name(start)
                self._disk.make_directory(target.parent)
                copy = self._disk.create(target, files.size_of(start))
                first = start // files.dtype.itemsize
                copy.write([files.read(first, end - first).tobytes()], 0)
                if self._apply:
                    copy.sync()
                    self._disk.sync_directory(target.parent)
                copy.close()
                self._actions.append(
                    Action(
                        kind="keep-queue",
                        path=path,
                        topic=topic,
                        queue_id=queue_id,
                        detail="the log no longer has messages of it; its last file is kept for the next offset",
                    )
                )

    # --- actions ----------------------------------------------------------------------------------------------

    def _report_queue(
        self,
        topic: str,
        queue_id: int,
        queue: AnyQueue,
        name: str,
        old: dict[QueueKey, QueueFiles],
    ) -> None:
        path = f"{name}/{topic}/{queue_id}"
        before = old.get((topic, queue_id))
        first, last = _numbers(queue)
        if before is None:
            self._actions.append(
                Action(
                    kind="write-queue",
                    path=path,
                    topic=topic,
                    queue_id=queue_id,
                    count=last - first,
                    detail=f"{last - first} units; there was no queue",
                )
            )
            return
        differing = 0
        for begin in range(first, last, _CHUNK):
            units = queue.units(begin, min(_CHUNK, last - begin))
            differing += int(np.count_nonzero(before.read(begin, len(units)) != units))
        removed = max(0, before.end() - last)
        self._actions.append(
            Action(
                kind="write-queue",
                path=path,
                topic=topic,
                queue_id=queue_id,
                count=last - first,
                detail=f"{last - first} units, {differing} of them changed"
                + (f"; {removed} after them removed" if removed else ""),
            )
        )

    def _report_dropped(self) -> None:
        kept = {action.path for action in self._actions}
        for name, old in (("consumequeue", self._files.queues), ("batchconsumequeue", self._files.batch_queues)):
            for (topic, queue_id), files in sorted(old.items()):
                path = f"{name}/{topic}/{queue_id}"
                if path not in kept and files.starts:
                    self._actions.append(
                        Action(
                            kind="drop-queue",
                            path=path,
                            topic=topic,
                            queue_id=queue_id,
                            detail="the log has no message of it, and its last unit refers to none",
                        )
                    )

    # --- replacing the old files ------------------------------------------------------------------------------

    def _close(self, *, sync: bool) -> None:
        queues: list[AnyQueue] = [*self._queues.values(), *self._batch_queues.values()]
        for queue in queues:
            if sync:
                for file in queue.take_dirty():
                    file.sync()
            queue.close()
        if sync:
            for file in self._index.take_dirty():
                file.sync()
        self._index.close()

    def _swap(self, log_end: int) -> None:
        disk, directory = self._disk, self._files.directory
        old, abort = directory / OLD, directory / "abort"
        checkpoint = Checkpoint(disk, directory / "checkpoint")
        with suppress(StoreDirectoryError):
            checkpoint.load()
        orderly = not disk.exists(abort)
        disk.make_directory(self._new)
        disk.make_directory(old)
        if orderly:
            disk.write_new(abort, b"")
            disk.sync_directory(directory)
        with suppress(FileNotFoundError):
            disk.unlink(directory / "checkpoint")
        disk.sync_directory(directory)
        for name in _names(queues=self._with_queues, index=self._with_index):
            if disk.exists(directory / name):
                disk.rename(directory / name, old / name)
            if disk.exists(self._new / name):
                disk.rename(self._new / name, directory / name)
        for path in (old, self._new, directory):
            disk.sync_directory(path)
        if orderly:
            self._save_checkpoint(checkpoint, log_end)
            disk.unlink(abort)
            disk.sync_directory(directory)
        for path in (old, self._new):
            shutil.rmtree(path)
        disk.sync_directory(directory)

    def _save_checkpoint(self, before: Checkpoint, log_end: int) -> None:
        after = Checkpoint(self._disk, self._files.directory / "checkpoint")
        after.physic_timestamp = before.physic_timestamp
        after.logics_timestamp = self._last_timestamp if self._with_queues else before.logics_timestamp
        after.index_timestamp = self._last_timestamp if self._with_index else before.index_timestamp
        after.master_flushed_offset = before.master_flushed_offset
        after.confirm_offset = min(before.confirm_offset, log_end)
        after.derived_offset = before.derived_offset
        if self._with_queues and self._with_index:
            after.derived_offset = log_end
        after.save(after.encoded())


def _names(*, queues: bool, index: bool) -> list[str]:
    """The directories of a store that are replaced."""
    return [name for name in REBUILT_NAMES if (index if name == "index" else queues)]


def _check_replaceable(directory: Path, names: Sequence[str]) -> None:
    """A directory on another disk could not be replaced atomically, and would end up on this disk."""
    for name in names:
        for path in (directory / name, *(directory / name).glob("*"), *(directory / name).glob("*/*")):
            if path.is_dir() and (path.is_symlink() or path.is_mount()):
                raise StoreDirectoryError(
                    f"{path}: a link or mount point, which a rebuild cannot replace; move the files "
                    f"into the store for the rebuild, or use a backup"
                )


def _numbers(queue: AnyQueue) -> tuple[int, int]:
    """The number of the first unit, and the number after the last."""
    if isinstance(queue, BatchConsumeQueue):
        return queue.unit_numbers
    return queue.min_offset, queue.max_offset
