"""Who has messages that stay invisible for as long as the client lives (auto-renew), and in which answers they went."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Container, Iterable
from typing import Final

from aerobee_broker.config import Settings
from aerobee_broker.delivery.subscriptions import Queue
from aerobee_store.clock import Clock

_ATTEMPTS_PER_CLIENT_MAX: Final = 64  # answers of which a client may say that they were lost; it repeats its latest


class AutoRenewals:
    """All such clients, by id."""

    def __init__(self, clock: Clock, settings: Settings, connected: Container[str] | None) -> None:
        self._clock = clock
        self._settings = settings
        self._connected = connected
        self._queues: dict[str, set[Queue]] = {}  # of a client
        # Of each client the attempts (their nonces) that brought something, latest last.
        self._attempts: dict[str, OrderedDict[int, None]] = {}
        self._returning: set[str] = set()  # clients from before the restart
        self._returning_until = 0.0  # of the monotonic clock

    def restore(self, queues: Iterable[Queue]) -> None:
        """After a start: all whose messages are in flight have some time to show up again."""
        for queue in queues:
            for flight in queue.delivery.in_flight.values():
                if flight.client_id is not None:
                    self._queues.setdefault(flight.client_id, set()).add(queue)
                    attempts = self._attempts.setdefault(flight.client_id, OrderedDict())
                    attempts[flight.nonce ^ queue.key.queue_id] = None  # all: which is the latest is not known
        self._returning = set(self._queues)
        self._returning_until = self._clock.monotonic() + self._settings.current.delivery.client_return_seconds

    def is_connected(self, client_id: str) -> bool:
        """Whether the client is known to be alive."""
        return self._connected is None or client_id in self._connected

    def note(self, client_id: str, queue: Queue, attempt: int | None) -> None:
        """The client has messages of this queue, brought by this attempt if it named one."""
        self._queues.setdefault(client_id, set()).add(queue)
        if attempt is None:
            return
        attempts = self._attempts.setdefault(client_id, OrderedDict())
        attempts[attempt] = None
        attempts.move_to_end(attempt)
        if len(attempts) > _ATTEMPTS_PER_CLIENT_MAX:
            attempts.popitem(last=False)

    def knows(self, client_id: str, attempt: int) -> bool:
        """Whether this attempt has brought something before."""
        return attempt in self._attempts.get(client_id, ())

    def of_attempt(self, client_id: str, topic: str, group: str, attempt: int) -> list[tuple[Queue, list[int], int]]:
        """(queue, offsets, nonce) of what is in flight of this attempt's answer."""
        parts = []
        for queue in self._queues.get(client_id, ()):
            if (queue.topic, queue.key.group) == (topic, group) and not queue.dropped:
                nonce = attempt ^ queue.key.queue_id
                flights = queue.delivery.in_flight.items()
                if offsets := [offset for offset, flight in flights if flight.nonce == nonce]:
                    parts.append((queue, offsets, nonce))
        return parts

    def gone(self, client_id: str) -> list[Queue]:
        """The client does not live any more: its messages are soon visible. Returns the queues that changed."""
        until_ms = self._clock.now_ms() + int(self._settings.current.delivery.client_gone_seconds * 1000)
        self._returning.discard(client_id)
        self._attempts.pop(client_id, None)
        queues = list(self._queues.pop(client_id, ()))
        for queue in queues:
            queue.delivery.release_client(client_id, until_ms)
        return queues

    def absent(self) -> tuple[list[str], float | None]:
        """Who has not shown up in time after a start, and in how many seconds to ask again; None: never."""
        if not self._returning:
            return [], None
        left = self._returning_until - self._clock.monotonic()
        if left > 0:
            return [], left
        absent = [client_id for client_id in self._returning if not self.is_connected(client_id)]
        self._returning.clear()
        return absent, None


def attempt_nonce(client_id: str, group: str, topic: str, attempt_id: str) -> int:
    """The nonce of queue 0 for what this attempt brings; of the others it is this, exclusive or their queue id.

    Made from the attempt, and not random, so that the journal tells what it brought without a field for it. Queue
    ids have at most 32 bits: with the lowest of the others set, no nonce is 0.
    """
    text = "\0".join((client_id, group, topic, attempt_id)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) | 1 << 32
