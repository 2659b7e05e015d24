"""Replication frames, tested with the recorded streams of released RocketMQ brokers."""

from __future__ import annotations

import struct

import pytest

from aerobee_broker.replication.frames import (
    Epoch,
    MasterHandshake,
    MasterReader,
    Protocol,
    ReplicaHandshake,
    ReplicaReader,
    ReplicationFormatError,
    Unit,
    encode_report,
    encode_unit,
)
from tests.support import golden_remoting

_STREAMS = golden_remoting.streams()
_PROTOCOLS: dict[str, Protocol] = {name: "plain" if name.startswith("default") else "epochs" for name in _STREAMS}
_SIZES = (1, 7, 12, 1000, 1 << 20)


@pytest.mark.parametrize("name", _STREAMS)
@pytest.mark.parametrize("size", _SIZES)
def test_golden_streams_are_read_however_they_are_cut(name: str, size: int) -> None:
    """Split anywhere, the streams are decoded, and the decoded frames encode to the same bytes."""
    stream, protocol = _STREAMS[name], _PROTOCOLS[name]
    master, replica = MasterReader(protocol), ReplicaReader()
    units = [unit for part in _parts(stream.master_to_slave, size) for unit in master.feed(part)]
    reports = [report for part in _parts(stream.slave_to_master, size) for report in replica.feed(part)]
    assert replica.protocol == protocol
    head = b"" if master.handshake is None else master.handshake.encode()
    assert head + b"".join(encode_unit(unit, protocol) for unit in units) == stream.master_to_slave
    head = b"" if replica.handshake is None else replica.handshake.encode()
    assert head + b"".join(encode_report(report, protocol) for report in reports) == stream.slave_to_master
    end = 0
    for unit in units:
        if unit.body:
            assert not end or unit.offset == end
            end = unit.offset + len(unit.body)
    assert reports[-1] == end


def test_epochs_and_confirmed_offsets_of_the_golden_streams() -> None:
    """The epochs in the handshakes and the epoch and offset of the units are those of the recordings."""
    found = {}
    for name in ("autoswitch-first", "autoswitch-rejoin", "autoswitch-diverged"):
        reader = MasterReader("epochs")
        units = reader.feed(_STREAMS[name].master_to_slave)
        assert reader.handshake is not None
        found[name] = reader.handshake, units[-1].confirmed, units[-1].epoch
    assert found["autoswitch-first"][0].epochs == (Epoch(1, 0),)
    assert found["autoswitch-rejoin"][0].epochs == (Epoch(1, 0), Epoch(2, 669))
    assert found["autoswitch-diverged"][0].epochs == (Epoch(1, 0), Epoch(2, 669))
    assert [epoch for _, _, epoch in found.values()] == [1, 2, 2]
    first = MasterReader("epochs")
    bodies = [unit for unit in first.feed(_STREAMS["autoswitch-first"].master_to_slave) if unit.body]
    assert (bodies[0].offset, len(bodies[0].body), bodies[0].confirmed) == (0, 223, 0)


def test_a_report_of_four_gigabytes_is_not_taken_for_a_handshake() -> None:
    """A report of 4 GiB begins like a handshake. The next report, or a pause, shows which one it is."""
    report = 1 << 32
    alone = ReplicaReader()
    assert alone.feed(encode_report(report, "plain")) == []
    assert alone.settle() == [report]
    followed = ReplicaReader()
    assert followed.feed(encode_report(report, "plain") + encode_report(report + 5, "plain")) == [report, report + 5]
    handshake = ReplicaReader()
    assert handshake.feed(ReplicaHandshake(7, from_last_file=True).encode() + encode_report(5, "epochs")) == [5]
    assert handshake.handshake == ReplicaHandshake(7, from_last_file=True)


@pytest.mark.parametrize(
    ("protocol", "data", "message"),
    [
        ("plain", struct.pack(">qi", 0, -1), "-1 bytes"),
        ("plain", struct.pack(">qi", 0, (4 << 20) - 11), "4194293 bytes"),
        ("epochs", struct.pack(">iiqi", 2, 0, 0, -1), "state 2"),
        ("epochs", struct.pack(">iiqi", 1, 13, 0, -1), "13 bytes"),
        ("epochs", struct.pack(">iiqi", 1, -12, 0, -1), "-12 bytes"),
        ("epochs", struct.pack(">iiqi", 1, 1 << 30, 0, -1), "bytes"),
        ("epochs", struct.pack(">iiqi", 1, 12, 0, 5) + struct.pack(">iq", 4, 0), "last epoch is 5"),
        ("epochs", MasterHandshake(0, ()).encode() + struct.pack(">iiqiqq", 3, 0, 0, 0, 0, 0), "state 3"),
    ],
)
def test_invalid_frames_of_a_master(protocol: Protocol, data: bytes, message: str) -> None:
    """Invalid frames are refused before any large allocation."""
    with pytest.raises(ReplicationFormatError, match=message):
        MasterReader(protocol).feed(data)


def test_invalid_reports() -> None:
    """A replica may report only in the transfer state."""
    with pytest.raises(ReplicationFormatError, match="state 3"):
        ReplicaReader().feed(ReplicaHandshake(1).encode() + struct.pack(">iq", 3, 0))


def test_a_heartbeat_is_a_unit_without_a_body() -> None:
    """Both protocols use such units as heartbeats."""
    for protocol, unit in (("plain", Unit(5, b"")), ("epochs", Unit(5, b"", 2, 1, 4))):
        reader = MasterReader("plain" if protocol == "plain" else "epochs")
        start = b"" if protocol == "plain" else MasterHandshake(5, (Epoch(2, 1),)).encode()
        assert reader.feed(start + encode_unit(unit, "plain" if protocol == "plain" else "epochs")) == [unit]


def _parts(data: bytes, size: int) -> list[bytes]:
    return [data[begin : begin + size] for begin in range(0, len(data), size)]
