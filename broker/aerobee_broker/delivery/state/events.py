"""Changes of a queue's delivery state as values: made by QueueDelivery, stored in the journal, applied at start.

Every event describes a state, not a difference, so applying it twice, or over a newer commit offset, is harmless:
finished messages stay finished until a Reset.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from msgspec import Struct


def new_nonce() -> int:
    """The nonce of a delivery without an attempt."""
    return secrets.randbits(64) or 1


class Run(NamedTuple):
    """`size` messages from `offset` on, delivered with this attempt number; 0: passed over, delivered later."""

    offset: int
    size: int
    attempt: int


class StateEntry(NamedTuple):
    """One unfinished message. `nonce` 0: ready for redelivery after `attempt` deliveries; otherwise in flight."""

    offset: int
    attempt: int
    nonce: int
    invisible_until_ms: int
    client_id: str | None


class Delivered(Struct, frozen=True):
    """Messages delivered under one nonce. Offsets begin <= offset < cursor in no run are finished (filtered out).

    Offsets below `begin` were delivered or passed over before. `client_id`: invisible while that client lives, at most
    until `invisible_until_ms`; None: until then, independent of the client.
    """

    begin: int
    cursor: int
    runs: tuple[Run, ...]
    nonce: int
    invisible_until_ms: int
    client_id: str | None

    @property
    def passes_over(self) -> bool:
        """Whether messages of an orderly group wait for others of their message group."""
        return any(not run.attempt for run in self.runs)


class Acknowledged(Struct, frozen=True):
    """Finished offsets, as half-open ranges."""

    ranges: tuple[tuple[int, int], ...]


class Changed(Struct, frozen=True):
    """A message in flight got a new time and a new nonce."""

    offset: int
    attempt: int
    nonce: int
    invisible_until_ms: int


class State(Struct, frozen=True):
    """The state of begin <= offset < end: offsets not in `entries` are finished, as are all below `commit_offset`."""

    commit_offset: int
    begin: int
    end: int
    entries: tuple[StateEntry, ...]


class Reset(Struct, frozen=True):
    """The group continues at `offset`: everything below is finished, nothing above was delivered."""

    offset: int


QueueEvent = Delivered | Acknowledged | Changed | State | Reset
