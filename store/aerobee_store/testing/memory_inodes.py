"""Files and directories of a disk in memory: their current content, their durable content, and the states after a
crash."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

SECTOR_SIZE: Final = 512
BLOCK_SIZE: Final = 4096
"""Disk space is allocated in blocks of this size."""
_ZEROS: Final = bytes(BLOCK_SIZE)


class HoleWrittenError(AssertionError):
    """A map was written where no space had been allocated: on a full disk this kills the process (SIGBUS)."""


class Inode:
    """The bytes of one file: its current and its durable content."""

    __slots__ = ("blocks", "data", "durable", "history", "lost", "mapped", "modified_ms", "seen", "sizes")

    def __init__(self, size: int, modified_ms: int) -> None:
        self.data = bytearray(size)
        self.durable = b""
        self.sizes = [0, size]  # every size since the last sync, including the size at that sync
        self.history: list[tuple[int, int, bytes]] = []  # (sequence, sector, content) since the last sync
        self.blocks: set[int] = set()
        self.lost: dict[int, bytes] = {}  # dropped by a failed sync
        self.mapped = False
        self.seen = b""  # of a mapped file: its bytes at the last operation of the disk
        self.modified_ms = modified_ms

    def sector(self, number: int) -> bytes:
        return bytes(self.data[number * SECTOR_SIZE : (number + 1) * SECTOR_SIZE])

    def durable_sector(self, number: int) -> bytes:
        return self.durable[number * SECTOR_SIZE : (number + 1) * SECTOR_SIZE]

    def note_stores(self, sequence: int) -> None:
        """Stores through a map since the last check are unsynced writes like any other."""
        if self.data == self.seen:
            return
        seen, self.seen = self.seen, bytes(self.data)
        for number in range(-(-len(self.data) // SECTOR_SIZE)):
            sector = self.sector(number)
            if sector != seen[number * SECTOR_SIZE : (number + 1) * SECTOR_SIZE]:
                self.history.append((sequence, number, sector))

    def check_holes(self, path: str) -> None:
        """A map bypasses `write`: its changes must be in existing blocks."""
        if not self.mapped:
            return
        for block in range(-(-len(self.data) // BLOCK_SIZE)):
            if block not in self.blocks and has_data(self.data, block):
                raise HoleWrittenError(f"{path}: block {block} was written through a map and never reserved")

    def after_crash(self, source: random.Random) -> Inode:
        """The file as a power failure could leave it."""
        found = Inode(0, self.modified_ms)
        size = source.choice(self.sizes) if len(set(self.sizes)) > 1 else len(self.data)
        content = bytearray(size)
        newest = source.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        versions: dict[int, list[bytes]] = {}
        for _, number, sector in self.history:
            versions.setdefault(number, []).append(sector)
        unchanged = self.data == self.durable
        if unchanged and not versions:
            written = self.data[:size]
            content[: len(written)] = written
            found.settle(content)
            return found
        for number in range(-(-size // SECTOR_SIZE)):
            old, new = self.durable_sector(number), self.sector(number)
            if ((unchanged or old == new) and number not in versions) or source.random() < newest:
                sector = new
            else:
                sector = source.choice([old, *versions.get(number, [])])
            begin = number * SECTOR_SIZE
            kept = sector[: size - begin]
            content[begin : begin + len(kept)] = kept
        found.settle(content)
        return found

    def after_kill(self) -> Inode:
        """The file as the next process finds it while the machine stays up; no more of it is durable than before."""
        found = Inode(0, self.modified_ms)
        found.data = bytearray(self.data)
        found.durable = self.durable
        found.sizes = list(self.sizes)
        found.history = list(self.history)
        found.blocks = set(self.blocks)
        found.lost = dict(self.lost)
        return found  # its maps died with the process

    def settle(self, content: bytearray) -> None:
        """Set the content, all of it durable."""
        self.data = content
        self.durable = bytes(content)
        self.sizes = [len(content)]
        self.blocks = {block for block in range(-(-len(content) // BLOCK_SIZE)) if has_data(content, block)}


class Directory:
    """The entries of one directory, current and on the disk."""

    __slots__ = ("durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}


Node = Inode | Directory


class NameChange(NamedTuple):
    """One directory entry changes. `joined`: only together with the change before it (a rename)."""

    directory: Directory
    name: str
    entry: Node | None
    joined: bool

    def apply(self, entries: dict[str, Node]) -> None:
        """Apply the change to these entries."""
        if self.entry is None:
            entries.pop(self.name, None)
        else:
            entries[self.name] = self.entry


def has_data(content: bytearray, block: int) -> bool:
    """Whether a block of a file is not all zeros."""
    begin = block * BLOCK_SIZE
    return not content.startswith(_ZEROS[: len(content) - begin], begin)


def tree_after_crash(root: Directory, changes: Sequence[NameChange], source: random.Random) -> Directory:
    """Everything below a directory as a power failure could leave it. `changes`: of names, since they were synced."""
    names = _names_after_crash(root, changes, source)
    copies = _Copies(lambda inode: inode.after_crash(source), lambda entry: (names[id(entry)], names[id(entry)]))
    return copies.directory(root)


def tree_after_kill(root: Directory, changes: Sequence[NameChange]) -> tuple[Directory, list[NameChange]]:
    """The same after `kill -9`, with everything as written; and the changes that are not synced."""
    copies = _Copies(Inode.after_kill, lambda entry: (entry.entries, entry.durable))
    after = copies.directory(root)
    return after, [
        NameChange(
            copies.directory(change.directory),
            change.name,
            None if change.entry is None else copies.entry(change.entry),
            change.joined,
        )
        for change in changes
    ]


class _Copies:
    """Copies of the files and directories of a tree, each made once: a file with two names, or a renamed file, remains
    one file."""

    def __init__(
        self,
        inode_after: Callable[[Inode], Inode],
        names_after: Callable[[Directory], tuple[dict[str, Node], dict[str, Node]]],
    ) -> None:
        """`names_after`: the entries of a directory, and which of them are durable."""
        self._inode_after = inode_after
        self._names_after = names_after
        self._inodes: dict[int, Inode] = {}
        self._directories: dict[int, Directory] = {}

    def entry(self, entry: Node) -> Node:
        if isinstance(entry, Directory):
            return self.directory(entry)
        if id(entry) not in self._inodes:
            self._inodes[id(entry)] = self._inode_after(entry)
        return self._inodes[id(entry)]

    def directory(self, entry: Directory) -> Directory:
        made = self._directories.get(id(entry))
        if made is None:
            made = self._directories[id(entry)] = Directory()
            entries, durable = self._names_after(entry)
            made.entries = {name: self.entry(child) for name, child in entries.items()}
            made.durable = {name: self.entry(child) for name, child in durable.items()}
        return made


def _names_after_crash(
    root: Directory, changes: Sequence[NameChange], source: random.Random
) -> dict[int, dict[str, Node]]:
    """The entries of each directory: the synced ones, plus either the first of the later changes, or some of them."""
    tree: dict[int, dict[str, Node]] = {}

    def collect(directory: Directory) -> None:
        if id(directory) not in tree:
            tree[id(directory)] = dict(directory.durable)
            for entry in [*directory.durable.values(), *directory.entries.values()]:
                if isinstance(entry, Directory):
                    collect(entry)

    collect(root)
    for change in changes:
        collect(change.directory)
        if isinstance(change.entry, Directory):
            collect(change.entry)  # a later change may have removed it
    if source.random() < 0.5:
        cut = source.randint(0, len(changes))
        if cut < len(changes) and changes[cut].joined:
            cut += 1
        changes = changes[:cut]
        chance = 1.0
    else:
        chance = source.choice((0.2, 0.5, 0.8))
    left_out: set[tuple[int, str]] = set()  # a later change of a name cannot exist without the earlier one
    before_happened = True
    for change in changes:
        key = (id(change.directory), change.name)
        happens = key not in left_out and source.random() < chance
        if change.joined:
            # The old name of a renamed file never disappears without the new one.
            happens = before_happened and key not in left_out
        if happens:
            change.apply(tree[id(change.directory)])
        else:
            left_out.add(key)
        before_happened = happens
    return tree
