"""The golden stores: directories written by Apache RocketMQ, and manifests of their content.

`tests/golden/cases/README.md` explains the cases and every field of a manifest.
"""

from __future__ import annotations

import base64
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

POP_SIZES: Final[Mapping[str, object]] = {"store.segment_size": 16 << 20, "store.queue_file_size": 300_000 * 20}
"""Sizes of the files in the stores of `unpack_pop`, as settings of a broker."""
_BLOCK_SIZE: Final = 4096
CASES_DIRECTORY: Final = Path(__file__).parents[1] / "golden" / "cases"

Host = tuple[str, int]


@dataclass(frozen=True, slots=True)
class GoldenMessage:
    """One record as a manifest describes it."""

    physical_offset: int
    size: int
    version: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    flag: int
    born_timestamp: int
    born_host: Host
    store_timestamp: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    body: bytes | None
    """None above 256 bytes; then `body_size` and `body_sha256` describe it."""
    body_size: int
    body_sha256: str | None
    properties: Mapping[str, str]
    raw_properties: bytes
    properties_are_irregular: bool
    """Joining `properties` does not give `raw_properties`: an open pair, a nameless one, ..."""


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """An unpacked case. `store` is the directory to open; it may be written to."""

    name: str
    store: Path
    manifest: Mapping[str, Any]
    messages: tuple[GoldenMessage, ...]

    @property
    def config(self) -> Mapping[str, Any]:
        """Store settings under RocketMQ's names; the caller must pass the sizes when opening the store."""
        config: Mapping[str, Any] = self.manifest["config"]
        return config

    @property
    def segment_size(self) -> int:
        return int(self.manifest["log"]["segmentSize"])

    @property
    def abort(self) -> bool:
        """Whether the store must be treated as after a crash."""
        return bool(self.manifest["abort"])

    @property
    def damaged(self) -> Mapping[int, str]:
        """Physical offsets of unreadable records, and how each was damaged."""
        damage = self.manifest.get("damage") or {"records": []}
        return {record["physicalOffset"]: record["what"] for record in damage["records"]}

    @property
    def intact(self) -> tuple[GoldenMessage, ...]:
        """The messages that are still readable."""
        damaged = self.damaged
        return tuple(message for message in self.messages if message.physical_offset not in damaged)

    @property
    def split_batches(self) -> frozenset[int]:
        """Physical offsets of the records that were appended as parts of split batches."""
        return frozenset(offset for batch in self.manifest["log"].get("batches", []) for offset in batch)

    def segments(self) -> dict[int, bytes]:
        """The log: first physical offset of each segment -> its bytes."""
        return {
            offset: (self.store / "commitlog" / f"{offset:020d}").read_bytes()
            for offset in self.manifest["log"]["segments"]
        }


def names(*, with_messages: bool = True) -> list[str]:
    """The available cases, sorted: those with a log, or those of configuration files."""
    found = sorted(path.parent.name for path in CASES_DIRECTORY.glob("*/manifest.json"))
    return [name for name in found if ("messages" in manifest(name)) == with_messages]


@cache
def manifest(name: str) -> Mapping[str, Any]:
    """The manifest of a case. It is shared: do not change it."""
    content: Mapping[str, Any] = json.loads((CASES_DIRECTORY / name / "manifest.json").read_text(encoding="utf-8"))
    return content


def load(name: str, directory: Path) -> GoldenCase:
    """Unpack a case into `directory`."""
    store = unpack(name, directory)
    return GoldenCase(name, store, manifest(name), _messages(name))


def unpack(name: str, directory: Path) -> Path:
    """Unpack the files of a case into `directory`, and return the store's directory."""
    return _unpacked(CASES_DIRECTORY / name / "store.tar.gz", directory)


def unpack_pop(name: str, directory: Path) -> Path:
    """Likewise a store in which POP consumers had messages: `tests/golden/test_golden_pop.py`."""
    return _unpacked(CASES_DIRECTORY.parent / "pop" / f"{name}.tar.xz", directory)


def _unpacked(file: Path, directory: Path) -> Path:
    for place in _places(file):
        target = os.path.join(directory, place.path)  # a path as an object costs more than the file
        if place.data is None:
            os.makedirs(target, exist_ok=True)
            continue
        with open(target, "wb", buffering=0) as written:
            for position, content in place.data:
                os.pwrite(written.fileno(), content, position)
            os.ftruncate(written.fileno(), place.size)
        os.utime(target, (place.modified, place.modified))
    return directory / "store"


class _Place(NamedTuple):
    """A directory, or a file with the blocks in it that are not all zeros: RocketMQ leaves holes for those, too."""

    path: str
    modified: float
    size: int
    data: list[tuple[int, bytes]] | None


@cache
def _places(file: Path) -> list[_Place]:
    """What is in an archive, read once in a process: hundreds of tests unpack the same twenty."""
    places = []
    with tarfile.open(file) as archive:
        for member in archive:
            assert member.isdir() or member.isfile(), member
            source = archive.extractfile(member)
            data = None if source is None else [*_blocks(source.read())]
            places.append(_Place(member.name, member.mtime, member.size, data))
    return places


def _blocks(content: bytes) -> Iterator[tuple[int, bytes]]:
    for position in range(0, len(content), _BLOCK_SIZE):
        block = content[position : position + _BLOCK_SIZE]
        if block.count(0) != len(block):
            yield position, block


@cache
def _messages(name: str) -> tuple[GoldenMessage, ...]:
    return tuple(_message(fields) for fields in manifest(name).get("messages", []))


def _message(fields: Mapping[str, Any]) -> GoldenMessage:
    stored_body = fields["body"]
    body = base64.b64decode(stored_body) if isinstance(stored_body, str) else None
    properties: Mapping[str, str] = fields["properties"]
    if irregular := "propertiesRaw" in fields:
        raw_properties = base64.b64decode(fields["propertiesRaw"])
    else:
        raw_properties = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
    return GoldenMessage(
        physical_offset=fields["physicalOffset"],
        size=fields["size"],
        version=fields["version"],
        topic=fields["topic"],
        queue_id=fields["queueId"],
        queue_offset=fields["queueOffset"],
        sys_flag=fields["sysFlag"],
        flag=fields["flag"],
        born_timestamp=fields["bornTimestamp"],
        born_host=_host(fields["bornHost"]),
        store_timestamp=fields["storeTimestamp"],
        store_host=_host(fields["storeHost"]),
        reconsume_times=fields["reconsumeTimes"],
        prepared_transaction_offset=fields["preparedTransactionOffset"],
        body_crc=fields["bodyCrc"],
        body=body,
        body_size=stored_body["length"] if body is None else len(body),
        body_sha256=stored_body["sha256"] if body is None else None,
        properties=properties,
        raw_properties=raw_properties,
        properties_are_irregular=irregular,
    )


def _host(text: str) -> Host:
    address, _, port = text.rpartition(":")
    return address.strip("[]"), int(port)
