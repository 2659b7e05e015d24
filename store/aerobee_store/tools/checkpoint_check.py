"""Compares the checkpoint with the log."""

from __future__ import annotations

from collections.abc import Iterator

from aerobee_store.durability.checkpoint import CHECKPOINT_SIZE, Checkpoint
from aerobee_store.errors import StoreDirectoryError
from aerobee_store.tools.findings import Finding, Severity
from aerobee_store.tools.store_files import StoreFiles


def load_checkpoint(files: StoreFiles) -> Checkpoint:
    """The checkpoint; all zeros if there is none."""
    checkpoint = Checkpoint(files.disk, files.directory / "checkpoint")
    checkpoint.load()
    return checkpoint


def check_checkpoint(files: StoreFiles, last_timestamp: int, log_end: int) -> Iterator[Finding]:
    """The problems of the checkpoint. `last_timestamp`: the latest store time in the log, 0 without records."""

    def finding(detail: str, severity: Severity = "error") -> Finding:
        return Finding(kind="checkpoint", severity=severity, path="checkpoint", detail=detail)

    path = files.directory / "checkpoint"
    if not path.exists():
        if last_timestamp and not files.live:
            yield finding("missing; the next start reads the whole log", "warning")
        return
    try:
        size = files.disk.size(path)
        checkpoint = load_checkpoint(files)
    except StoreDirectoryError as error:
        yield finding(str(error))
        return
    if size != CHECKPOINT_SIZE:
        yield finding(f"{size} bytes, not {CHECKPOINT_SIZE}", "error" if size < 40 else "warning")
    times = {
        "log": checkpoint.physic_timestamp,
        "queues": checkpoint.logics_timestamp,
        "index": checkpoint.index_timestamp,
    }
    for name, time in times.items():
        if time < 0:
            yield finding(f"the time of the {name} is {time}")
        elif last_timestamp and time > last_timestamp and not files.live:
            verb = "were" if name == "queues" else "was"
            yield finding(
                f"the {name} {verb} synced up to store time {time}, but the last message of the log was stored at "
                f"{last_timestamp}: messages at the end have been lost, now or before an earlier recovery",
                "warning",
            )
    if checkpoint.derived_offset is not None and checkpoint.derived_offset > log_end and not files.live:
        yield finding(f"queues and index were synced up to {checkpoint.derived_offset}, but the log ends at {log_end}")
    if not 0 <= checkpoint.confirm_offset <= log_end and not files.live:
        yield finding(f"the last confirmed record is at {checkpoint.confirm_offset}, the log ends at {log_end}")
