"""Ports for servers whose address must be known before they start."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import cache


@cache
def _candidates(process_id: int) -> Iterator[int]:
    """Each process, also one that was forked, has an order of its own."""
    return iter(random.Random(process_id).sample(range(10_000, 32_768), 22_768))


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free at the moment, none twice in a process.

    They are below those that the system gives to sockets by itself, to which another test's connection may be bound
    before the port is used.
    """
    found: list[int] = []
    for port in _candidates(os.getpid()):
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no port is free")


def two_ports() -> tuple[int, int]:
    """A free port, and the one for a server that listens at both: the first is two below it (the fast port)."""
    while True:
        (port,) = free_ports(1)
        with socket.socket() as below, suppress(OSError):
            below.bind(("127.0.0.1", port - 2))
            return port - 2, port
