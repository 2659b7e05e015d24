"""Repairs a store: a dry run first, the real run on request.

The store is verified, and the findings determine the actions. All of them are tried on a temporary overlay of the disk;
the differences from the real disk are reported as actions. With `apply` the same is done on the real disk, and verified
again.

    finding                                           action
    index: wrong chains, entries or counts            remove its files and rebuild them from the log
    queue: dangling or invalid units, missing file    remove its files and rebuild them from the log
    timer: any                                        remove wheel and timer log, and the checkpoint if it is invalid;
                                                      the broker rebuilds them from the timer topic
    file of a queue or of the index with an invalid   move it to `quarantine`, and rebuild the queue or the index
    name or size
    invalid checkpoint                                remove it and write a new one
    other: end of the log, queues, index              recover as after a crash (recovery.py), but from the whole log

    kind of action                                    effect
    cut-log                                           zero the bytes after the end of the log, such as a torn record
    set-aside                                         move a file to `quarantine`
    remove-file  make-file                            remove or create a whole file
    add-units  correct-units  drop-units              change the units of one file of a queue
    write-index                                       write an index file, or rebuild its chains
    write-checkpoint                                  write the checkpoint
    close-in-order                                    remove `abort`: the next start need not recover

Damage within the log is not changed, and is listed in `left`. A blank is valid only at the end of a segment. A damaged
record could therefore only be replaced by another record, which RocketMQ would serve to consumers. This store skips
damage; RocketMQ truncates the log at the damage at its next start after a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from aerobee_store.disk.file_system import DiskFileSystem, File, FileSystem
from aerobee_store.disk.store_directory import ID_FILE
from aerobee_store.errors import StoreDirectoryError
from aerobee_store.log.mapped_file import file_name
from aerobee_store.message_store import MessageStore
from aerobee_store.queues.batch_consume_queue import BATCH_UNIT_DTYPE
from aerobee_store.queues.consume_queue import UNIT_DTYPE
from aerobee_store.queues.index_file import HEADER, HEADER_SIZE
from aerobee_store.records.decimals import decimal
from aerobee_store.tools.actions import Action, GivenSizes, Moment, Sizes, locked, sizes_of
from aerobee_store.tools.findings import FINDINGS_MAX, Finding
from aerobee_store.tools.overlay_disk import LockedDisk, OverlayDisk, OverlayFile
from aerobee_store.tools.rebuild import batch_topics
from aerobee_store.tools.store_files import Progress, QueueKey, StoreFiles, StoreState
from aerobee_store.tools.verify import verify_files

LOST_FOR_GOOD: Final = frozenset({"log-damaged", "segment-missing", "queue-offset-gap", "checksum-damaged"})
"""Kinds of findings that cannot be repaired."""
LEFT_TO_PEOPLE: Final = frozenset({"configuration-file", "configuration-changed", "segment-file"})
"""Kinds of findings that only an operator who knows the cause should resolve."""

_QUEUE_BEYOND_OPENING: Final = frozenset({"unit-stray", "unit-invalid"})
_INDEX_BY_OPENING: Final = frozenset({"index-behind", "index-ahead", "index-missing", "index-file"})
_STEP: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The findings, the actions (performed or planned), and the remaining damage, which cannot be repaired."""

    state: StoreState
    applied: bool
    sizes: Sizes
    found: list[Finding] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """One JSON object."""
        return {
            "applied": self.applied,
            "state": self.state,
            "sizes": self.sizes.to_json(),
            "found": [finding.to_json() for finding in self.found],
            "actions": [action.to_json() for action in self.actions],
            "left": [finding.to_json() for finding in self.left],
        }


@dataclass(frozen=True, slots=True)
class _Plan:
    """Files to remove before the store is opened. Absolute paths."""

    set_aside: list[Path]
    remove: list[Path]
    forget_checkpoint: bool


def repair(
    directory: Path,
    *,
    apply: bool = False,
    sizes: GivenSizes | None = None,
    findings_max: int = FINDINGS_MAX,
    progress: Progress | None = None,
) -> RepairReport:
    """Repair a stopped store; without `apply` only print the actions. `progress` is called with bytes of the log.

    Raises StoreLockedError for a store in use, StoreDirectoryError for an invalid or unusable store (the text tells
    which file to move away), OSError of the disk.
    """
    sizes = sizes or GivenSizes()
    files = StoreFiles.find(directory)
    try:
        with locked(directory, create=apply):
            before = verify_files(files, sizes.index_counts, findings_max=findings_max, progress=progress)
            used = sizes_of(files, sizes)
            left = [each for each in before.findings if each.kind in LOST_FOR_GOOD | LEFT_TO_PEOPLE]
            plan = _plan(files, before.findings)
            if not _is_needed(files, before.findings, plan):
                return RepairReport(before.state, apply, used, before.findings, [], left)
            # New index files are named after this time, so that the dry run and the real run use the same names.
            clock = Moment(max((files.disk.modified_ms(segment.path) for segment in files.segments), default=0))
            overlay = OverlayDisk()
            try:
                with _unlogged():  # the log would report changes that were not made
                    _mend(overlay, files, used, plan, clock)
                actions = _actions(overlay, files)
            finally:
                overlay.close()
            if apply:
                _mend(LockedDisk(), files, used, plan, clock)
                left = _errors_left(directory, sizes, findings_max)
            return RepairReport(before.state, apply, used, before.findings, actions, left)
    finally:
        files.close()


def _errors_left(directory: Path, sizes: GivenSizes, findings_max: int) -> list[Finding]:
    files = StoreFiles.find(directory)
    files.state = "stopped"  # the store looks live only because this process holds its lock
    try:
        report = verify_files(files, sizes.index_counts, findings_max=findings_max)
    finally:
        files.close()
    return [each for each in report.findings if each.severity == "error"]


def _is_needed(files: StoreFiles, findings: list[Finding], plan: _Plan) -> bool:
    mended = LOST_FOR_GOOD | LEFT_TO_PEOPLE
    return (
        files.state == "crashed"
        or bool(plan.set_aside or plan.remove or plan.forget_checkpoint)
        or any(each.severity == "error" and each.kind not in mended for each in findings)
    )


def _plan(files: StoreFiles, findings: list[Finding]) -> _Plan:
    set_aside = {path: each.kind for each in findings if (path := _unreadable_file(files, each)) is not None}
    errors = [each.kind for each in findings if each.severity == "error"]
    remove = [
        path
        for name, (topic, queue_id) in sorted(_queues_to_rebuild(files, findings, set_aside))
        for path in sorted((files.directory / name / topic / str(queue_id)).iterdir())
    ]
    if "index-file" in set_aside.values() or any(
        kind.startswith("index-") and kind not in _INDEX_BY_OPENING for kind in errors
    ):
        remove += files.index_files
    if any(kind.startswith("timer-") for kind in errors):
        remove += _timer_files(files, with_checkpoint="timer-checkpoint" in errors)
    return _Plan(sorted(set_aside), [path for path in remove if path not in set_aside], "checkpoint" in errors)


def _unreadable_file(files: StoreFiles, finding: Finding) -> Path | None:
    """The file of a queue or of the index that cannot be read, if the finding names one."""
    if finding.kind not in ("queue-file", "index-file") or finding.path is None:
        return None
    path = files.directory / finding.path
    return path if path.is_file() else None


def _queues_to_rebuild(
    files: StoreFiles, findings: list[Finding], set_aside: Mapping[Path, str]
) -> set[tuple[str, QueueKey]]:
    """The queues, each after the name of its folder, that opening rebuilds only once their files are gone."""
    queues: set[tuple[str, QueueKey]] = set()
    for path, kind in set_aside.items():
        if kind == "queue-file" and (queue_id := decimal(path.parent.name)) is not None:
            name = path.relative_to(files.directory).parts[0]
            queues.add((name, (path.parent.parent.name, queue_id)))
    for each in findings:
        if _is_beyond_opening(files, each) and each.topic is not None and each.queue_id is not None:
            name = each.path.split("/")[0] if each.path is not None else "consumequeue"
            queues.add((name, (each.topic, each.queue_id)))
    for name, found in (("consumequeue", files.queues), ("batchconsumequeue", files.batch_queues)):
        for key, queue in found.items():
            ends = [start + queue.size_of(start) for start in queue.starts]
            if ends[:-1] != queue.starts[1:]:
                queues.add((name, key))
    return queues


def _timer_files(files: StoreFiles, *, with_checkpoint: bool) -> list[Path]:
    log = files.directory / "timerlog"
    wheel = files.directory / "timerwheel"
    checkpoint = files.directory / "config" / "timercheck"
    return [
        *(log / file_name(start) for start in files.timer_log),
        *([wheel] if wheel.exists() else []),
        *([checkpoint] if with_checkpoint else []),
    ]


def _is_beyond_opening(files: StoreFiles, finding: Finding) -> bool:
    """Whether opening cannot repair a queue, because it only adds units after the existing beginning."""
    if finding.kind in _QUEUE_BEYOND_OPENING:
        return True
    if finding.kind != "unit-missing" or finding.severity != "error":
        return False
    if finding.path is not None and finding.path.startswith("batchconsumequeue"):
        return True
    assert finding.topic is not None
    assert finding.queue_id is not None
    assert finding.queue_offset is not None
    queue = files.queues.get((finding.topic, finding.queue_id))
    return queue is not None and finding.queue_offset < queue.first


def _mend(disk: FileSystem, files: StoreFiles, sizes: Sizes, plan: _Plan, clock: Moment) -> None:
    directory = files.directory
    if (plan.set_aside or plan.remove) and not disk.exists(directory / "abort"):
        # If the repair is interrupted, the next start reads the whole log.
        disk.write_new(directory / "abort", b"")
        disk.sync_directory(directory)
    if plan.set_aside or plan.remove or plan.forget_checkpoint:
        with suppress(FileNotFoundError):
            disk.unlink(directory / "checkpoint")
        disk.sync_directory(directory)
    for path in plan.set_aside:
        _set_aside(disk, directory, path)
    for path in plan.remove:
        disk.unlink(path)
    for parent in sorted({path.parent for path in plan.remove}):
        disk.sync_directory(parent)
    topics = batch_topics(files)
    config = replace(
        sizes.config(directory),
        commit_log_paths=files.log_paths.paths,
        read_only_commit_log_paths=files.log_paths.read_only,
    )
    store = MessageStore.open(config, file_system=disk, clock=clock, is_batch_topic=topics.__contains__, whole_log=True)
    store.close()


@contextmanager
def _unlogged() -> Iterator[None]:
    logger = logging.getLogger("aerobee_store")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _set_aside(disk: FileSystem, directory: Path, path: Path) -> None:
    quarantine = directory / "quarantine"
    disk.make_directory(quarantine)
    name = "-".join(path.relative_to(directory).parts)
    target, number = quarantine / name, 0
    while disk.exists(target):
        number += 1
        target = quarantine / f"{name}-{number}"
    disk.rename(path, target)
    disk.sync_directory(quarantine)
    disk.sync_directory(path.parent)


# --- differences ----------------------------------------------------------------------------------------------------


def _actions(disk: OverlayDisk, files: StoreFiles) -> list[Action]:
    directory = files.directory
    actions: list[Action] = []
    for source, target in disk.renamed:
        actions.append(
            Action(
                kind="set-aside",
                path=files.relative(source),
                detail=f"moved to {files.relative(target)}",
                size=source.stat().st_size,
            )
        )
    moved = {source for source, _ in disk.renamed} | {target for _, target in disk.renamed}
    real = DiskFileSystem()
    for file in disk.changed():
        if file.path in moved or not disk.exists(file.path) or file.path.name == ID_FILE:
            continue
        before = file.original()
        if before is None and real.exists(file.path):
            before = real.open(file.path, writable=False)
        try:
            actions += _changes(files.relative(file.path), before, file)
        finally:
            if before is not None:
                before.close()
    for path in disk.removed:
        if disk.exists(path) or path in moved:
            continue
        if path == directory / "abort":
            actions.append(
                Action(kind="close-in-order", path="abort", detail="removed: the next start need not recover")
            )
        else:
            actions.append(
                Action(kind="remove-file", path=files.relative(path), detail="removed", size=path.stat().st_size)
            )
    return actions


def _changes(path: str, before: File | None, after: OverlayFile) -> list[Action]:
    """The actions that turn one file into the other."""
    kind = "commitlog" if Path(path).is_absolute() else path.split("/")[0]  # only the log may be elsewhere
    if kind in ("consumequeue", "batchconsumequeue"):
        return _unit_changes(path, before, after, np.dtype(UNIT_DTYPE if kind == "consumequeue" else BATCH_UNIT_DTYPE))
    if before is not None and _same(before, after):
        return []
    if kind == "index":
        entries = _entries(after)
        was = f"; it had {_entries(before)}" if before is not None else ""
        return [Action(kind="write-index", path=path, detail=f"{entries} entries{was}", count=entries)]
    if kind == "checkpoint":
        return [Action(kind="write-checkpoint", path=path, detail="everything is synced up to the end of the log")]
    if kind == "commitlog" and before is not None:
        begin = min(begin for begin, _ in after.written)
        end = max(end for _, end in after.written)
        return [
            Action(
                kind="cut-log",
                path=path,
                physical_offset=int(Path(path).name) + begin,
                size=end - begin,
                detail="the bytes after the end of the log are zeroed",
            )
        ]
    return [Action(kind="make-file", path=path, detail=f"{after.size} bytes", size=after.size)]


def _unit_changes(path: str, before: File | None, after: OverlayFile, dtype: np.dtype[np.void]) -> list[Action]:
    _, topic, queue_id, name = path.split("/")
    new = np.frombuffer(after.read(after.size, 0), dtype)
    old = np.zeros(len(new), dtype)
    if before is not None:
        data = before.read(min(before.size, after.size), 0)
        old[: len(data) // dtype.itemsize] = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
    was, now = ((units["size"] > 0) & (units["physical_offset"] >= 0) for units in (old, new))
    differs = old != new
    first_number = int(name) // dtype.itemsize
    actions = []
    for kind, rows, words in (
        ("add-units", now & ~was & differs, "that were missing"),
        ("correct-units", now & was & differs, "with a wrong physical offset"),
        ("drop-units", ~now & differs, "without a message in the log"),
    ):
        numbers = np.flatnonzero(rows)
        if len(numbers):
            number = int(numbers[0])
            offset = first_number + number
            if "base_offset" in (dtype.names or ()):
                offset = int((new if kind != "drop-units" else old)[number]["base_offset"])
            actions.append(
                Action(
                    kind=kind,
                    path=path,
                    topic=topic,
                    queue_id=int(queue_id),
                    queue_offset=offset,
                    count=len(numbers),
                    detail=f"{len(numbers)} {words}, the first of queue offset {offset}",
                )
            )
    return actions


def _same(one: File, other: File) -> bool:
    if one.size != other.size:
        return False
    end = max(one.data_end(0), other.data_end(0))
    return all(one.read(_STEP, begin) == other.read(_STEP, begin) for begin in range(0, end, _STEP))


def _entries(file: File) -> int:
    header = file.read(HEADER_SIZE, 0)
    if len(header) < HEADER_SIZE:
        raise StoreDirectoryError(f"{file.path}: too small for an index file")
    return max(0, int(HEADER.unpack(header)[5]) - 1)
