"""Which master wrote which part of the log: the epochs, their file, and where two logs begin to differ.

Every master writes in an epoch of its own, with a higher number than all before, from the end of its log on. So two
logs agree as far as their epochs do: within the newest epoch that both have, with the same beginning, up to the end of
the shorter one. What a replica has behind that was never confirmed by enough brokers.

The file is RocketMQ's `epochFileCheckpoint`: lines of text, the number of epochs, the CRC-32 of all following lines,
and for each epoch `number-start`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from zlib_ng.zlib_ng import crc32

from aerobee_broker.errors import BrokerError
from aerobee_broker.replication.frames import EPOCHS_MAX, Epoch
from aerobee_store.disk.file_system import FileSystem

FILE_NAME: Final = "epochFileCheckpoint"


class EpochFileError(BrokerError):
    """The file of the epochs cannot be read. The copy beside it, `.bak`, has the state before the last change."""


def encode(epochs: Sequence[Epoch]) -> bytes:
    """The content of the file."""
    lines = "".join(f"{epoch.number}-{epoch.start}\n" for epoch in epochs).encode()
    return f"{len(epochs)}\n{crc32(lines)}\n".encode() + lines


def decode(data: bytes) -> tuple[Epoch, ...]:
    """The epochs in the content of the file. EpochFileError."""
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
    """How far a log agrees with another: the physical offset behind the last common byte.

    `own_end`, `others_end`: where the logs end. None: they have no epoch in common, and nobody can say.
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
    """The epochs of one store, kept in its directory. Blocking: a change is on disk when the call returns."""

    def __init__(self, file_system: FileSystem, directory: Path) -> None:
        """EpochFileError, OSError."""
        self._file_system = file_system
        self._path = directory / FILE_NAME
        self._epochs: tuple[Epoch, ...] = ()
        if file_system.exists(self._path):
            self._epochs = decode(file_system.read_bytes(self._path))

    @property
    def all(self) -> tuple[Epoch, ...]:
        """Oldest first."""
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
        """Where the epoch of this byte ends; None: it is the last one."""
        return next((epoch.start for epoch in self._epochs if epoch.start > physical_offset), None)

    def begin(self, number: int, start: int) -> None:
        """A master begins to write. Epochs in which nothing was written are kept: their number must not come again."""
        assert number > self.last, "epochs only go up"
        self._save((*self._epochs, Epoch(number, start)))

    def follow(self, epochs: Iterable[Epoch], own_end: int) -> None:
        """Take over the epochs of the master as far as the own log goes."""
        found = tuple(epoch for epoch in epochs if epoch.start <= own_end)
        if found != self._epochs:
            self._save(found)

    def _save(self, epochs: tuple[Epoch, ...]) -> None:
        epochs = epochs[-EPOCHS_MAX:]
        temporary = self._path.with_suffix(".tmp")
        if self._epochs:
            self._file_system.write_new(self._path.with_suffix(".bak"), encode(self._epochs))
        self._file_system.write_new(temporary, encode(epochs))
        self._file_system.rename(temporary, self._path)
        self._file_system.sync_directory(self._path.parent)
        self._epochs = epochs
