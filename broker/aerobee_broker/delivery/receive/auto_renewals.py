"""Clients whose messages stay invisible while the client lives (auto-renew), and the answers that delivered them."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable
from typing import Final

from aerobee_broker.config import Settings
from aerobee_broker.delivery.state.subscriptions import Queue
from aerobee_broker.recent import Recent
from aerobee_store.clock import Clock

_ATTEMPTS_PER_CLIENT_MAX: Final = 64  # answers that a client may report as lost; it repeats its latest
_PRUNED_SIZE: Final = 64  # queues of a client, at which, and at each power of two above, finished ones are forgotten


class AutoRenewals:
    """All such clients, by id."""

    def __init__(self, clock: Clock, settings: Settings, connected: Container[str] | None) -> None:
        self._clock = clock
        self._settings = settings
        self._connected = connected
        self._queues: dict[str, set[Queue]] = {}  # of a client
        # for each client, the nonces of the attempts that returned messages, latest last
        self._attempts: dict[str, Recent[int, None]] = {}
        self._returning: set[str] = set()  # clients from before the restart
        self._returning_until = 0.0  # of the monotonic clock

    def restore(self, queues: Iterable[Queue]) -> None:
        """After a start: clients with messages in flight have some time to reconnect."""
        for queue in queues:
            for flight in queue.delivery.in_flight.values():
                if flight.client_id is not None:
                    self._queues.setdefault(flight.client_id, set()).add(queue)
                    attempts = self._attempts_of(flight.client_id)
                    attempts[flight.nonce ^ queue.key.queue_id] = None  # all attempts, because the latest is unknown
        self._returning = set(self._queues)
        self._returning_until = self._clock.monotonic() + self._settings.current.delivery.client_return_seconds

    def is_connected(self, client_id: str) -> bool:
        """Whether the client is known to be alive."""
        return self._connected is None or client_id in self._connected

    def note(self, client_id: str, queue: Queue, attempt: int | None) -> None:
        """Note that the client has messages of this queue, from this attempt if it named one."""
        queues = self._queues.setdefault(client_id, set())
        queues.add(queue)
        if len(queues) >= _PRUNED_SIZE and len(queues).bit_count() == 1:
            queues -= {each for each in queues if each.dropped or not each.delivery.in_flight}
        if attempt is None:
            return
        self._attempts_of(client_id)[attempt] = None

    def _attempts_of(self, client_id: str) -> Recent[int, None]:
        attempts = self._attempts.get(client_id)
        if attempts is None:
            attempts = self._attempts[client_id] = Recent(_ATTEMPTS_PER_CLIENT_MAX)
        return attempts

    def knows(self, client_id: str, attempt: int) -> bool:
        """Whether this attempt has returned messages before."""
        return attempt in self._attempts.get(client_id, ())

    def of_attempt(self, client_id: str, topic: str, group: str, attempt: int) -> list[tuple[Queue, list[int], int]]:
        """(queue, offsets, nonce) of the messages in flight from this attempt's answer."""
        parts = []
        for queue in self._queues.get(client_id, ()):
            if (queue.topic, queue.key.group) == (topic, group) and not queue.dropped:
                nonce = attempt ^ queue.key.queue_id
                flights = queue.delivery.in_flight.items()
                if offsets := [offset for offset, flight in flights if flight.nonce == nonce]:
                    parts.append((queue, offsets, nonce))
        return parts

    def gone(self, client_id: str) -> list[Queue]:
        """The client is gone: its messages soon become visible. Returns the changed queues."""
        until_ms = self._clock.now_ms() + int(self._settings.current.delivery.client_gone_seconds * 1000)
        self._returning.discard(client_id)
        self._attempts.pop(client_id, None)
        queues = list(self._queues.pop(client_id, ()))
        for queue in queues:
            queue.delivery.release_client(client_id, until_ms)
        return queues

    def absent(self) -> tuple[list[str], float | None]:
        """Clients that have not reconnected in time after a start, and the seconds until the next check; None: no
        further check."""
        if not self._returning:
            return [], None
        left = self._returning_until - self._clock.monotonic()
        if left > 0:
            return [], left
        absent = [client_id for client_id in self._returning if not self.is_connected(client_id)]
        self._returning.clear()
        return absent, None


def attempt_nonce(client_id: str, group: str, topic: str, attempt_id: str) -> int:
    """The nonce of queue 0 for the messages of this attempt; for other queues it is XORed with their queue id.

    Derived from the attempt instead of random, so that the journal needs no field for the attempt. Queue ids have at
    most 32 bits: with the lowest other bit set, no nonce is 0.
    """
    text = "\0".join((client_id, group, topic, attempt_id)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) | 1 << 32
