"""The ledger: the memory that waits in this process on behalf of peers, in total and for each of them.

Whatever a peer makes the process keep is charged here at its size in memory when it comes into being, and released
here. Bytes are of one of these kinds:

    requests     whole requests, until they are answered                     a `ByteBudget`
    answers      answers that are made, or that the peer has not taken       a `ByteBudget`
    connections  sockets and what belongs to each connection itself
    received     input that is not a whole request yet, or waits for its turn
    encrypted    input of TLS connections that waits for its turn to be decrypted, and the buffers of TLS
    unsent       output that the system has not taken, besides answers
    calls        open calls and what is remembered of their connection, besides their bytes
    handshakes   TLS handshakes in progress
    registered   groups and subscriptions that a connection has registered
    routes       routes of brokers that a connection has registered
    settings     settings of clients
    commands     commands to clients that wait in their Telemetry streams
    clients      known client ids
    values       values of a name server

A call waits for the bytes of a budget. All other kinds are *held*: they are in memory when they are counted, so they
have no call that could wait. Past `held_max`, or when all bytes together are past `total_max`, the worst offenders are
dropped: those whose account is not known before all others, then those of the host that holds most, then those that
hold most themselves. What is dropped ends its connection, or forgets a part.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal, get_args

from aerobee_broker.config.limits import LimitsConfig
from aerobee_broker.limits.byte_budget import ByteBudget
from aerobee_store.malloc import return_freed_memory

_log = logging.getLogger(__name__)

Kind = Literal[
    "connections",
    "received",
    "encrypted",
    "unsent",
    "calls",
    "handshakes",
    "registered",
    "routes",
    "settings",
    "commands",
    "clients",
    "values",
]
HELD_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_TRIMMED_SIZE: Final = 8 << 20  # bytes of dropped peers after which freed memory is returned to the kernel
_LEFT_AFTER_DROPS: Final = 7 / 8  # of a bound: the peers are compared once for many bytes


def _nothing() -> None:
    pass


class Holdings:
    """What one peer holds: a connection, or a table of the broker that many clients fill. Event loop only."""

    __slots__ = ("_is_open", "_ledger", "_sizes", "drop", "host", "is_known", "is_table", "name", "size")

    def __init__(self, ledger: Ledger, name: str, host: str, drop: Callable[[], object], *, is_table: bool) -> None:
        self._ledger = ledger
        self._sizes: dict[Kind, int] = {}
        self._is_open = True
        self.name: Final = name
        """The owner of its bytes in the budgets."""
        self.host = host
        self.drop = drop
        self.is_table: Final = is_table
        self.size = 0
        """Bytes held, without those of budgets."""
        self.is_known = False
        """Whether the peer has proved an account."""

    def set(self, kind: Kind, size: int) -> None:
        """Charge this many bytes of a kind instead of those charged so far. Does nothing after `close`."""
        change = size - self._sizes.get(kind, 0)
        if change and self._is_open:
            self._sizes[kind] = size
            self.size += change
            self._ledger.held_changed(kind, change)

    def add(self, kind: Kind, change: int) -> None:
        """Charge so many bytes of a kind more, or less."""
        self.set(kind, self._sizes.get(kind, 0) + change)

    def size_of(self, kind: Kind) -> int:
        """The charged bytes of a kind."""
        return self._sizes.get(kind, 0)

    def close(self) -> None:
        """Release everything; the peer is gone."""
        for kind in tuple(self._sizes):
            self.set(kind, 0)
        self._is_open = False
        self.drop = _nothing  # it belongs to the peer, and would keep it until the next collection of garbage
        self._ledger.forget(self)


class Ledger:
    """The one total, with the budgets and the peers under it."""

    def __init__(self, limits: LimitsConfig | None = None, *, name: str = "limits.waiting_bytes_max") -> None:
        """`name` says in the log which limit it is."""
        limits = limits or LimitsConfig()
        self._name = name
        self.total_max: Final = limits.waiting_bytes_max
        self.held_max: Final = max(self.total_max - limits.request_bytes_max // 2, self.total_max // 4)
        """Held bytes leave some of the total to requests, however many peers hold them."""
        self.requests: Final = ByteBudget(
            "requests in progress",
            total_max=limits.request_bytes_max,
            owner_max=limits.request_bytes_per_client_max,
            total=self,
        )
        self.answers: Final = ByteBudget(
            "messages for clients",
            total_max=limits.answer_bytes_max,
            owner_max=limits.answer_bytes_per_client_max,
            total=self,
        )
        self.held = 0
        self.held_of_kind: Final[dict[str, int]] = dict.fromkeys(HELD_KINDS, 0)
        self.dropped = 0
        """Peers, since the start."""
        self._peers: dict[Holdings, None] = {}
        self._leaving: dict[Holdings, None] = {}  # dropped, and not gone yet
        self._dropped_size = 0  # bytes, since memory was returned to the kernel
        self._waiting: set[ByteBudget] = set()

    def open(self, name: str, host: str, drop: Callable[[], object]) -> Holdings:
        """Begin to count for a connection: `close` it in the end. `drop` ends it soon; it must not raise."""
        return self._open(Holdings(self, name, host, drop, is_table=False))

    def open_table(self, name: str, shrink: Callable[[], object]) -> Holdings:
        """Begin to count for a table that many clients fill. `shrink` frees a part of it at once."""
        return self._open(Holdings(self, name, "", shrink, is_table=True))

    def _open(self, peer: Holdings) -> Holdings:
        self._peers[peer] = None
        return peer

    @property
    def used(self) -> int:
        """All bytes that wait."""
        return self.held + self.requests.used + self.answers.used

    def used_by(self, peer: Holdings) -> int:
        """All bytes that wait for a peer."""
        return peer.size + self.requests.used_by(peer.name) + self.answers.used_by(peer.name)

    def sizes(self) -> dict[str, int]:
        """The bytes of each kind."""
        return self.held_of_kind | {"requests": self.requests.used, "answers": self.answers.used}

    # --- For holdings -----------------------------------------------------------------------------------------

    def held_changed(self, kind: Kind, change: int) -> None:
        """Count a change of what a peer holds."""
        self.held += change
        self.held_of_kind[kind] += change
        if change > 0:
            self.grew()
        else:
            self.freed()

    def forget(self, peer: Holdings) -> None:
        """A peer is gone."""
        self._peers.pop(peer, None)
        if peer in self._leaving:
            del self._leaving[peer]
            if not self._leaving and self._dropped_size > _TRIMMED_SIZE:
                self._dropped_size = 0
                asyncio.get_running_loop().run_in_executor(None, return_freed_memory)

    # --- For budgets: see `byte_budget.Total` -----------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        return self.held + self.requests.used + self.answers.used + size <= self.total_max

    def waits(self, budget: ByteBudget) -> None:
        self._waiting.add(budget)

    def freed(self) -> None:
        if self._waiting:
            self._waiting -= {budget for budget in tuple(self._waiting) if not budget.advance()}

    def grew(self) -> None:
        if self.held > self.held_max or self.held + self.requests.used + self.answers.used > self.total_max:
            self._drop_worst()

    # --- The worst offenders ----------------------------------------------------------------------------------

    def _drop_worst(self) -> None:
        """Drop peers until what stays is well below the bounds."""
        held = self.held - sum(peer.size for peer in self._leaving)
        if held > self.held_max:
            self._drop(_held_by, held - self.held_max * _LEFT_AFTER_DROPS)
        used = self.used - sum(map(self.used_by, self._leaving))
        if used > self.total_max:
            self._drop(self.used_by, used - self.total_max * _LEFT_AFTER_DROPS)

    def _drop(self, size_of: Callable[[Holdings], int], excess: float) -> None:
        """Drop the worst peers until this many bytes are freed."""
        of_host: Counter[str] = Counter()
        sizes: dict[Holdings, int] = {}
        for peer in self._peers:
            if size := size_of(peer):
                of_host[peer.host] += size
                sizes[peer] = size
        freed = count = 0
        for peer in sorted(sizes, key=lambda peer: (peer.is_known, -of_host[peer.host], -sizes[peer])):
            if freed >= excess:
                break
            if peer.is_table:
                freed += self._shrink(peer, size_of, excess - freed)
            else:
                del self._peers[peer]
                self._leaving[peer] = None
                peer.drop()
                freed += sizes[peer]
            count += 1
        self.dropped += count
        self._dropped_size += freed
        if count:
            _log.warning(
                "dropped peers=%d bytes=%d cause=clients make the process keep %d bytes, and the limit %s is %d",
                *(count, freed, self.used, self._name, self.total_max),
            )

    @staticmethod
    def _shrink(table: Holdings, size_of: Callable[[Holdings], int], excess: float) -> int:
        """Make a table smaller until this many bytes are freed, or it frees no more. Returns the bytes."""
        before = left = size_of(table)
        while before - left < excess:
            table.drop()
            if size_of(table) >= left:
                break
            left = size_of(table)
        return before - left


def _held_by(peer: Holdings) -> int:
    return peer.size
