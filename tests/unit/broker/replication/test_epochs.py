"""The epochs of a log, their file, and the offset where two logs begin to differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.replication.epochs import FILE_NAME, EpochFileError, Epochs, common_end, decode, encode
from aerobee_broker.replication.frames import Epoch
from aerobee_store.disk.file_system import DiskFileSystem

_GOLDEN = b"2\n776848988\n1-0\n2-741\n"  # written by RocketMQ 5.3.3


def test_the_file_is_read_and_written_as_rocketmq_does() -> None:
    """The checksum is over the lines of the epochs."""
    epochs = (Epoch(1, 0), Epoch(2, 741))
    assert decode(_GOLDEN) == epochs
    assert encode(epochs) == _GOLDEN


@pytest.mark.parametrize(
    "data", [b"", b"2\n776848988\n1-0\n2-742\n", b"1\n776848988\n1-0\n2-741\n", b"x\ny\nz\n", _GOLDEN[:-2]]
)
def test_a_damaged_file_is_refused(data: bytes) -> None:
    """The error names the backup copy."""
    with pytest.raises(EpochFileError, match=r"epochFileCheckpoint.bak"):
        decode(data)


@pytest.mark.parametrize(
    ("own", "own_end", "others", "others_end", "expected"),
    [
        ("1-0", 1115, "1-0 2-669", 892, 669),  # as recorded: 446 bytes were never replicated
        ("1-0 2-669", 800, "1-0 2-669", 892, 800),
        ("1-0 2-669", 900, "1-0 2-669", 892, 892),
        ("1-0 2-500 3-600", 700, "1-0 2-500 4-550", 900, 550),
        ("1-0 2-500", 700, "1-0 3-400", 900, 400),
        ("1-0 2-500", 700, "3-400", 900, None),
        ("1-0 2-500", 700, "1-0 2-501", 900, 500),
        ("1-0 2-500 3-500", 700, "1-0 2-500 3-500", 600, 600),
        ("1-0 2-500 3-500", 700, "1-0 2-500 4-500", 900, 500),
        ("", 0, "1-0", 900, None),
    ],
)
def test_where_two_logs_begin_to_differ(
    own: str, own_end: int, others: str, others_end: int, expected: int | None
) -> None:
    """The golden case, the same last epoch, an older common epoch, no common one, and epochs with the same start."""
    assert common_end(_epochs(own), own_end, _epochs(others), others_end) == expected


def test_an_epoch_without_a_message_is_kept(tmp_path: Path) -> None:
    """After two elections without a write in between, the number of the first is not reused."""
    epochs = Epochs(DiskFileSystem(), tmp_path)
    assert (epochs.last, epochs.at(0)) == (0, None)
    for number in (1, 2, 3):
        epochs.begin(number, 0 if number == 1 else 741)
    again = Epochs(DiskFileSystem(), tmp_path)
    assert again.all == (Epoch(1, 0), Epoch(2, 741), Epoch(3, 741))
    assert again.last == 3
    assert again.at(740) == Epoch(1, 0)
    assert again.at(741) == Epoch(3, 741)
    assert (again.end_of(0), again.end_of(741)) == (741, None)
    assert decode((tmp_path / FILE_NAME).with_suffix(".bak").read_bytes()) == again.all[:2]


def test_a_replica_takes_over_the_masters_epochs_as_far_as_its_log_goes(tmp_path: Path) -> None:
    """An epoch that begins after the end of the replica's log is recorded with its first byte."""
    epochs = Epochs(DiskFileSystem(), tmp_path)
    masters = _epochs("1-0 2-669 3-900")
    epochs.follow(masters, 700)
    assert Epochs(DiskFileSystem(), tmp_path).all == _epochs("1-0 2-669")
    epochs.follow(masters, 900)
    assert epochs.all == masters


def _epochs(text: str) -> tuple[Epoch, ...]:
    return tuple(Epoch(*map(int, part.split("-"))) for part in text.split())
