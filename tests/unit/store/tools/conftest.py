"""A small store with several segments, queue files and index files, and its content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerobee_store import Appended, Message, MessageStore, StoreConfig

COUNT = 120


@dataclass(frozen=True, slots=True)
class Stored:
    """A closed store and the places of its messages."""

    directory: Path
    config: StoreConfig
    messages: list[Message]
    places: list[Appended]

    def segment(self, physical_offset: int) -> Path:
        start = physical_offset - physical_offset % self.config.segment_size
        return self.directory / "commitlog" / f"{start:020d}"

    def patch(self, path: Path, position: int, data: bytes) -> None:
        """Overwrite some bytes of a file."""
        with path.open("r+b") as file:
            file.seek(position)
            file.write(data)

    def patch_log(self, physical_offset: int, data: bytes) -> None:
        self.patch(self.segment(physical_offset), physical_offset % self.config.segment_size, data)

    def patch_unit(self, topic: str, queue_id: int, queue_offset: int, data: bytes) -> None:
        size = self.config.queue_file_size
        start = queue_offset * 20 - queue_offset * 20 % size
        path = self.directory / "consumequeue" / topic / str(queue_id) / f"{start:020d}"
        self.patch(path, queue_offset * 20 - start, data)

    def find(self, topic: str, queue_id: int, queue_offset: int) -> Appended:
        for message, place in zip(self.messages, self.places, strict=True):
            if (message.topic, message.queue_id, place.queue_offset) == (topic, queue_id, queue_offset):
                return place
        raise LookupError(queue_offset)


class SteppingClock:
    """A clock that advances half a second with each query."""

    def __init__(self) -> None:
        self._now = 1_700_000_000_000

    def now_ms(self) -> int:
        self._now += 500
        return self._now

    def monotonic(self) -> float:
        return self._now / 1000


def message(number: int) -> Message:
    """Return message `number`: topics A and B, two queues each, a unique key and a second one, varying body sizes."""
    return Message(
        topic="AB"[number % 2],
        queue_id=number // 2 % 2,
        body=bytes([number % 251]) * (number * 7 % 400),
        properties={"UNIQ_KEY": f"id{number}", "KEYS": f"order{number} lot{number % 5}", "TAGS": f"tag{number % 3}"},
        born_timestamp=1_700_000_000_000 + number,
        born_host=("10.0.0.1", 5000),
    )


def snapshot(directory: Path) -> dict[str, tuple[str, int]]:
    """Return content and modification time of every file."""
    return {
        str(path.relative_to(directory)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    """A store with COUNT messages, closed in order."""
    config = StoreConfig.tiny(tmp_path / "data")
    messages = [message(number) for number in range(COUNT)]
    with MessageStore.open(config, clock=SteppingClock()) as store:
        places = [store.append([each])[0] for each in messages]
        store.flush()
    return Stored(config.directory, config, messages, places)
