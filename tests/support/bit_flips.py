"""Random damage to the files of an in-memory disk, and the table of its outcomes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aerobee_store.testing import MemoryFileSystem
from tests.support import seeds
from tests.support.stored_messages import DIRECTORY

SEED: Final = seeds.seed("AEROBEE_CRASH_SEED")
VERDICTS: Final = ("detected", "repaired", "harmless", "refused", "verify", "WRONG")
_CUTS: Final = 0.1  # share of all damage
_USED: Final = 0.9  # share of the flips within a file's used part


class WrongError(AssertionError):
    """The store returned data that differs from what was stored, or did not report a loss."""


class UnseenError(Exception):
    """Data is missing without a report that only `verify` could make: its format has no checksum."""


@dataclass(frozen=True, slots=True)
class Done:
    """One damage. `kind` is the first part of the path in the store; each file of `config` is its own kind."""

    path: Path
    how: str
    position: int

    @property
    def kind(self) -> str:
        parts = self.path.relative_to(DIRECTORY).parts
        return "/".join(parts if parts[0] == "config" else parts[:1])


class Damage:
    """Damages copies of one disk; each file of the given kinds is damaged equally often."""

    def __init__(self, disk: MemoryFileSystem, source: random.Random, *, names: tuple[str, ...] = ()) -> None:
        self._source = source
        self._files = [
            (path, data, max(len(data.rstrip(b"\0")), 1))
            for path, data in sorted(disk.contents().items())
            if data and (not names or path.relative_to(DIRECTORY).parts[0] in names or path.name in names)
        ]
        assert self._files
        self._number = 0

    def do(self, disk: MemoryFileSystem) -> Done:
        """Flip a bit, or truncate a file."""
        source = self._source
        path, data, used = self._files[self._number % len(self._files)]
        self._number += 1
        if source.random() < _CUTS:
            position = source.randrange(len(data))
            disk.cut(path, position)
            return Done(path, "cut", position)
        position = source.randrange(used if source.random() < _USED else len(data))
        disk.damage(path, position, bytes([data[position] ^ 1 << source.randrange(8)]))
        return Done(path, "flip", position)


@dataclass
class Table:
    """Counts of verdicts by kind of file and of damage."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    wrongs: list[str] = field(default_factory=list)

    def add(self, done: Done, verdict: str) -> None:
        self.counts[done.kind, done.how, verdict] += 1

    def wrong(self, done: Done, error: Exception) -> str:
        """Record a violation, and return the verdict."""
        self.wrongs.append(f"seed {SEED}: {done.how} {done.path} at {done.position}: {error}")
        return "WRONG"

    def kinds(self) -> Counter[str]:
        """How often each kind of file was damaged."""
        found: Counter[str] = Counter()
        for (kind, _, _), count in self.counts.items():
            found[kind] += count
        return found

    def show(self, title: str) -> None:
        """Print the rows of the table in docs/durability.md."""
        print(f"\n{title}: {self.counts.total()} in all, seed {SEED}")
        for kind in sorted(self.kinds()):
            cells = [f"{self.counts[kind, 'cut', v]} / {self.counts[kind, 'flip', v]}" for v in VERDICTS]
            print(f"| {title} | {kind} | " + " | ".join(cells) + " |")
