"""Recorded frames of released RocketMQ programs are all decoded, and our encodings of them decode the same."""

from __future__ import annotations

import struct

import pytest

from aerobee_broker.remoting_wire.frame import LANGUAGES, Command, FrameReader, encode, encode_binary
from aerobee_store.tables import java_json
from tests.support import golden_remoting

_FRAMES = golden_remoting.frames()
_NOT_JSON = {11, 12, 25, 26, 33, 36, 60, 200050, 310, 320, 10, 325, 326, 39, 309, 361}
"""Bodies of these codes are records, messages, properties or, for 60, seven numbers."""


def test_all_frames_are_here() -> None:
    """The archive holds the frames listed in the manifest."""
    assert len(_FRAMES) == 291
    assert len(golden_remoting.streams()) == 5


def test_every_golden_header_is_decoded() -> None:
    """Codes, flags, fields and bodies equal those found by the recording tool, in both header formats."""
    for golden in _FRAMES:
        (command,) = FrameReader().feed(golden.data)
        header = golden.header
        assert command.code == header["code"], golden.file
        assert command.opaque == header["opaque"], golden.file
        assert command.flag == header["flag"], golden.file
        assert command.version == header["version"], golden.file
        language = header["language"]  # a number in a binary header
        assert command.language == (LANGUAGES[language] if isinstance(language, int) else language), golden.file
        assert command.remark == (header.get("remark") or (None if golden.is_binary else header.get("remark")))
        assert command.fields == (header.get("extFields") or {}), golden.file
        assert command.body == golden.body, golden.file


def test_every_golden_frame_survives_us() -> None:
    """A frame encoded again by us, in each header format that can hold its code, decodes the same."""
    for golden in _FRAMES:
        (command,) = FrameReader().feed(golden.data)
        assert FrameReader().feed(encode(command)) == [command], golden.file
        if -(2**15) <= command.code < 2**15:
            (again,) = FrameReader().feed(encode_binary(command))
            # A binary header drops empty values.
            assert again.fields == {key: value for key, value in command.fields.items() if value}, golden.file
            assert (again.code, again.opaque, again.body) == (command.code, command.opaque, command.body)


def test_golden_json_frames_are_written_byte_for_byte_as_java_does() -> None:
    """Our encoder reproduces Java's JSON frames byte for byte, except those with extFields.

    The order of extFields is that of a Java hash table, which is not reproduced.
    """
    count = 0
    for golden in _FRAMES:
        if golden.is_binary or golden.header.get("extFields") is not None or "Go" in golden.link:
            continue
        assert encode(FrameReader().feed(golden.data)[0]) == golden.data, golden.file
        count += 1
    assert count > 20


def test_all_frames_split_anywhere() -> None:
    """All recorded frames as one stream decode the same in pieces of several sizes."""
    data = b"".join(golden.data for golden in _FRAMES)
    whole = FrameReader().feed(data)
    for size in (1, 7, 1000, 65536):
        reader, found = FrameReader(), list[Command]()
        for at in range(0, len(data), size):
            found += reader.feed(data[at : at + size])
        assert found == whole
        assert reader.waiting_size == 0


def test_golden_json_bodies_are_read_and_written() -> None:
    """Bodies with bare integer keys or object keys are parsed, and our encodings of them parse the same."""
    count = 0
    for golden in _FRAMES:
        if not golden.body_size or golden.request_code in _NOT_JSON or not golden.body.startswith((b"{", b"[")):
            continue
        value = java_json.loads(golden.body, object_keys=True)
        written = java_json.dumps(value, pretty=False)
        assert java_json.loads(written, object_keys=True) == value, golden.file
        count += 1
    assert count > 60


@pytest.mark.parametrize("name", ["default-5.3.3", "default-4.9.7"])
def test_streams_of_replication_have_whole_units(name: str) -> None:
    """The recorded replication streams end with a complete unit: offset, size, and that many bytes."""
    data = golden_remoting.streams()[name].master_to_slave
    at = 0
    while at < len(data):
        _, size = struct.unpack_from(">qi", data, at)
        at += 12 + size
    assert at == len(data)
