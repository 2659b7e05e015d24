"""Listeners of a simulated disk that take pictures of it, beside the promises made by then."""

from __future__ import annotations

import threading
from collections.abc import Callable

from aerobee_store.testing import Operation

Listener = Callable[[Operation], None]


def one_at_a_time(listener: Listener) -> Listener:
    """Let no other thread begin an operation while `listener` runs.

    Otherwise another thread could send and write messages between the copy of the promises and that of the disk. It may
    still end one operation that it has begun, so copy the promises first: the disk may have more than was promised.
    """
    lock = threading.Lock()

    def called(operation: Operation) -> None:
        with lock:
            listener(operation)

    return called
