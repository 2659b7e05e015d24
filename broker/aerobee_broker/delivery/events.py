"""What can change in the delivery of a queue, as values: made by QueueDelivery, kept by the journal, applied at start.

Every event says what is, not by how much something changed, so applying one twice, or over a newer commit offset, is
harmless: what is finished stays finished, until a Reset begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Run(NamedTuple):
    """`size` messages from `offset` on, all delivered for the `attempt`-th time; 0: passed over, delivered later."""

    offset: int
    size: int
    attempt: int


class Entry(NamedTuple):
    """One message that is not finished. `nonce` 0: ready for redelivery after `attempt` deliveries; else in flight."""

    offset: int
    attempt: int
    nonce: int
    invisible_until_ms: int
    client_id: str | None


@dataclass(frozen=True, slots=True)
class Delivered:
    """Messages went out under one nonce. What is in begin <= offset < cursor and in no run is finished (filtered out).

    Offsets below `begin` were delivered or passed over before. `client_id`: invisible as long as that client lives, at
    most until `invisible_until_ms`; None: until then whatever happens to the client.
    """

    begin: int
    cursor: int
    runs: tuple[Run, ...]
    nonce: int
    invisible_until_ms: int
    client_id: str | None

    @property
    def passes_over(self) -> bool:
        """Whether messages of an orderly group wait behind others of their message group."""
        return any(not run.attempt for run in self.runs)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Offsets, as half-open ranges, that are finished."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """A message in flight got another time and another nonce."""

    offset: int
    attempt: int
    nonce: int
    invisible_until_ms: int


@dataclass(frozen=True, slots=True)
class State:
    """All of begin <= offset < end: what `entries` does not name is finished, and so is all below `commit_offset`."""

    commit_offset: int
    begin: int
    end: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Reset:
    """The group goes on at `offset`, whatever was before: all below is finished, nothing above was delivered."""

    offset: int


QueueEvent = Delivered | Acknowledged | Changed | State | Reset
