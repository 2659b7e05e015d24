"""Epochs: the parts of the log by the master that wrote them, their file, and the offset at which two logs begin to
differ.

Every master writes in its own epoch, with a higher number than all before, beginning at the end of its log. Two logs
therefore agree up to the end of the newest epoch that both have with the same beginning, or to the end of the shorter
log. Anything a replica has beyond that was never confirmed by enough brokers.

The file is RocketMQ's `epochFileCheckpoint`. It has one text line each for the number of epochs, the CRC-32 of all
following lines, and every epoch as `number-start`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from zlib_ng.zlib_ng import crc32

from aerobee_broker.errors import BrokerError
from aerobee_broker.replication.frames import EPOCHS_MAX, Epoch
from aerobee_store.disk.file_system import FileSystem, replace_file

FILE_NAME: Final = "epochFileCheckpoint"


class EpochFileError(BrokerError):
    """The file of the epochs is damaged. The copy beside it, `.bak`, has the state before the last change."""


def encode(epochs: Sequence[Epoch]) -> bytes:
    """The content of the file."""
    lines = "".join(f"{epoch.number}-{epoch.start}\n" for epoch in epochs).encode()
    return f"{len(epochs)}\n{crc32(lines)}\n".encode() + lines


def decode(data: bytes) -> tuple[Epoch, ...]:
    """The epochs in the content of the file. Raises EpochFileError."""
    count, _, rest = data.partition(b"\n")
    crc, _, lines = rest.partition(b"\n")
    try:
        found = tuple(Epoch(*map(int, line.split(b"-"))) for line in lines.splitlines())
        if int(crc) != crc32(lines) or int(count) != len(found):
            raise ValueError(
                f"the checksum {int(crc)} for {int(count)} epochs does not match the {len(found)} epochs found"
            )
    except (ValueError, TypeError) as error:
        raise EpochFileError(f"{FILE_NAME} is damaged: {error}; replace it with {FILE_NAME}.bak") from None
    return found


def common_end(own: Sequence[Epoch], own_end: int, others: Sequence[Epoch], others_end: int) -> int | None:
    """The physical offset up to which two logs agree.

    `own_end`, `others_end`: the ends of the logs. None: without a common epoch the offset is unknown.
    """
    theirs = {epoch.number: number for number, epoch in enumerate(others)}
    for number in range(len(own) - 1, -1, -1):
        place = theirs.get(own[number].number)
        if place is None or others[place].start != own[number].start:
            continue
        end = own[number + 1].start if number + 1 < len(own) else own_end
        other_end = others[place + 1].start if place + 1 < len(others) else others_end
        return min(end, other_end)
    return None


class Epochs:
    """The epochs of one store, saved in its directory. Blocking: a change is on disk when the call returns."""

    def __init__(self, file_system: FileSystem, directory: Path) -> None:
        """Raises EpochFileError and OSError."""
        self._file_system = file_system
        self._path = directory / FILE_NAME
        self._epochs: tuple[Epoch, ...] = ()
        if file_system.exists(self._path):
            self._epochs = decode(file_system.read_bytes(self._path))

    @property
    def all(self) -> tuple[Epoch, ...]:
        """All epochs, oldest first."""
        return self._epochs

    @property
    def last(self) -> int:
        """The number of the newest epoch; 0 if there is none."""
        return self._epochs[-1].number if self._epochs else 0

    def at(self, physical_offset: int) -> Epoch | None:
        """The epoch of the byte at this offset."""
        found = None
        for epoch in self._epochs:
            if epoch.start > physical_offset:
                break
            found = epoch
        return found

    def end_of(self, physical_offset: int) -> int | None:
        """The end of the epoch of this byte; None for the last epoch."""
        return next((epoch.start for epoch in self._epochs if epoch.start > physical_offset), None)

    def begin(self, number: int, start: int) -> None:
        """Begin the epoch of a new master. Empty epochs are kept, because their numbers must not be used again."""
        assert number > self.last, "epochs only increase"
        self._save((*self._epochs, Epoch(number, start)))

    def follow(self, epochs: Iterable[Epoch], own_end: int) -> None:
        """Take over the master's epochs up to the end of this log."""
        found = tuple(epoch for epoch in epochs if epoch.start <= own_end)
        if found != self._epochs:
            self._save(found)

    def _save(self, epochs: tuple[Epoch, ...]) -> None:
        epochs = epochs[-EPOCHS_MAX:]
        if self._epochs:
            self._file_system.write_new(self._path.with_suffix(".bak"), encode(self._epochs))
        replace_file(self._file_system, self._path, encode(epochs))
        self._epochs = epochs
