"""The golden remoting frames, recorded between released RocketMQ programs. See tests/golden/remoting/README.md."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

_DIRECTORY: Final = Path(__file__).parents[1] / "golden" / "remoting"


@dataclass(frozen=True, slots=True)
class GoldenFrame:
    """One recorded frame. `header` was decoded by the recording tool, with the field names of the wire."""

    file: str
    case: str
    seq: int
    connection: int
    link: str
    is_request: bool
    request_code: int
    is_binary: bool
    header: dict[str, Any]
    body_size: int
    data: bytes

    @property
    def body(self) -> bytes:
        return self.data[len(self.data) - self.body_size :]

    @property
    def is_signed(self) -> bool:
        return "-acl" in self.file


@cache
def frames() -> tuple[GoldenFrame, ...]:
    """All frames, in the order of the manifest."""
    found = _files()
    return tuple(
        GoldenFrame(
            file=entry["file"],
            case=entry["case"],
            seq=entry["seq"],
            connection=entry["connection"],
            link=entry["link"],
            is_request=entry["kind"] == "request",
            request_code=entry["requestCode"],
            is_binary=entry["serialize"] == 1,
            header=entry["header"],
            body_size=entry["bodyLength"],
            data=found[entry["file"]],
        )
        for entry in _manifest()["frames"]
    )


def requests(code: int, case: str | None = None) -> list[GoldenFrame]:
    """The recorded requests with a code, from one case or all."""
    return [f for f in frames() if f.is_request and f.request_code == code and case in (None, f.case)]


def answer_to(request: GoldenFrame) -> GoldenFrame | None:
    """The recorded answer to a recorded request, if it was kept."""
    for found in frames():
        if (
            not found.is_request
            and found.connection == request.connection
            and found.header["opaque"] == request.header["opaque"]
            and found.request_code == request.request_code
            and (found.seq > 100_000) == (request.seq > 100_000)
        ):
            return found
    return None


@dataclass(frozen=True, slots=True)
class GoldenStream:
    """One replication connection: all bytes that each side sent."""

    name: str
    slave_to_master: bytes
    master_to_slave: bytes


@cache
def streams() -> dict[str, GoldenStream]:
    """The replication connections, by name."""
    found = _files()
    return {
        entry["name"]: GoldenStream(
            entry["name"], found[entry["slaveToMaster"]["file"]], found[entry["masterToSlave"]["file"]]
        )
        for entry in _manifest()["streams"]
    }


@cache
def _manifest() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((_DIRECTORY / "manifest.json").read_text(encoding="utf-8"))
    return content


@cache
def _files() -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    with tarfile.open(_DIRECTORY / "frames.tar.gz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None, "the archive holds files alone"
            contents[member.name] = file.read()
    return contents
