"""`python -m tests.benchmarks.pairs OTHER [NAME ...]`: processor time of a call beside another checkout.

For each way in turn, brokers of both trees get the same load from this one, one after the other, again and again; the
order alternates. Only the broker's own processor time counts, so other work on the machine changes little, and the
median of the ratios says what a change cost. The other tree needs no environment of its own, for example
`git worktree add ../before v1.0`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Final

import uvloop

from aerobee_broker.config import Address
from aerobee_broker.listening.certificates import Issued, development_certificate
from tests.benchmarks import acknowledge, bulk_load, remoting_send, unary_send
from tests.benchmarks.processes import ANY_DISK, Server, server
from tests.benchmarks.report import machine, nanoseconds, table

HERE: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = ("proto", "store", "broker", "client", "pipeline")
_RECORDS: Final = 2000
Way = Callable[[Server, float], float]
"""Loads a broker for about so many seconds; returns the seconds of its processor for one message."""


@cache
def _certificate() -> Issued:
    return development_certificate("localhost")


@contextmanager
def _broker(tree: Path) -> Iterator[Server]:
    """A broker of this tree with an empty store, sync flush and both protocols, in plaintext and in TLS."""
    sources = {"PYTHONPATH": ":".join(str(tree / package) for package in _PACKAGES)}
    with tempfile.TemporaryDirectory(dir=HERE / "build") as directory:
        store, files = Path(directory) / "store", (Path(directory) / "broker.crt", Path(directory) / "broker.key")
        for path, content in zip(files, (_certificate().certificate, _certificate().key), strict=True):
            path.write_bytes(content)
        arguments = ["-m", "aerobee_broker", "serve", "--dev", "--store", str(store), "--flush", "sync"]
        arguments += ["--tls-cert", str(files[0]), "--tls-key", str(files[1])]
        for port in ("listen", "metrics", "listen-remoting"):
            arguments += [f"--{port}", "127.0.0.1:0"]
        with server(arguments, ANY_DISK | sources) as running:
            yield running


def _send(in_flight: int, running: Server, seconds: float) -> float:
    return unary_send.measure(running, in_flight, seconds).cpu_per_call


def _send_in_tls(in_flight: int, running: Server, seconds: float) -> float:
    return unary_send.measure(running, in_flight, seconds, authority=_certificate().authority).cpu_per_call


def _append(running: Server, seconds: float, *, authority: bytes = b"") -> float:
    requests = bulk_load.plain_requests(8, _RECORDS)
    uvloop.run(bulk_load.append(running.endpoint, requests[:1], 1, seconds / 8, authority=authority))
    before = running.cpu_seconds()
    run = uvloop.run(bulk_load.append(running.endpoint, requests, 8, seconds, authority=authority))
    return (running.cpu_seconds() - before) / (run.requests * _RECORDS)


def _append_in_tls(running: Server, seconds: float) -> float:
    return _append(running, seconds, authority=_certificate().authority)


def _read_in_tls(running: Server, seconds: float) -> float:
    """Of a KiB of records."""
    requests = bulk_load.plain_requests(8, _RECORDS)
    uvloop.run(bulk_load.append(running.endpoint, requests, 8, 1.0))
    before, size = running.cpu_seconds(), 0
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        size += uvloop.run(bulk_load.read(running.endpoint, 64 << 20, authority=_certificate().authority)).bytes
    return (running.cpu_seconds() - before) / (size / 1024)


def _acknowledge(one_by_one: bool, running: Server, seconds: float) -> float:
    return acknowledge.measure(running, round((1500 if one_by_one else 6000) * seconds), one_by_one).cpu


def _remoting(in_flight: int, running: Server, seconds: float) -> float:
    address = Address.parse(running.remoting)
    uvloop.run(remoting_send.measure(address, seconds / 8, in_flight, unary_send.BODY_SIZE))
    before = running.cpu_seconds()
    per_second, _ = uvloop.run(remoting_send.measure(address, seconds, in_flight, unary_send.BODY_SIZE))
    return (running.cpu_seconds() - before) / (per_second * seconds)


WAYS: Final[Mapping[str, tuple[str, Way]]] = {
    "send-1": ("SendMessage, 1 in flight", partial(_send, 1)),
    "send-64": ("SendMessage, 64 in flight", partial(_send, 64)),
    "tls-send-1": ("SendMessage in TLS, 1 in flight", partial(_send_in_tls, 1)),
    "tls-send-64": ("SendMessage in TLS, 64 in flight", partial(_send_in_tls, 64)),
    "tls-append": (f"AppendRecords of {_RECORDS} in TLS, each record", _append_in_tls),
    "tls-read": ("ReadRecords in TLS, each KiB", _read_in_tls),
    "append": (f"AppendRecords of {_RECORDS}, each record", _append),
    "receive": ("received by 32 and acknowledged together, each message", partial(_acknowledge, False)),
    "acknowledge": ("received by 32 and acknowledged one a call, each message", partial(_acknowledge, True)),
    "remoting-1": ("remoting send, 1 in flight", partial(_remoting, 1)),
    "remoting-64": ("remoting send, 64 in flight", partial(_remoting, 64)),
}


def compare(way: Way, other: Path, rounds: int, seconds: float) -> tuple[float, float, list[float]]:
    """The median processor time here and there, and the ratio of each round."""
    here: list[float] = []
    there: list[float] = []
    for number in range(rounds):
        pair = [(HERE, here), (other, there)]
        for tree, found in pair if number % 2 else reversed(pair):
            with _broker(tree) as running:
                found.append(way(running, seconds))
    ratios = sorted(mine / theirs for mine, theirs in zip(here, there, strict=True))
    return statistics.median(here), statistics.median(there), ratios


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pairs", description=__doc__)
    parser.add_argument("other", type=Path, help="the root of another checkout")
    parser.add_argument("names", nargs="*", choices=[[], *WAYS], help="which ways (all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    options = parser.parse_args(arguments)
    (HERE / "build").mkdir(exist_ok=True)
    print(machine())
    rows = []
    for name in options.names or WAYS:
        title, way = WAYS[name]
        here, there, ratios = compare(way, options.other.resolve(), options.rounds, options.seconds)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        rows.append((title, nanoseconds(here), nanoseconds(there), f"{statistics.median(ratios):.3f}", spread))
        print(*rows[-1], sep=" | ", flush=True)
    table("The broker's processor time, sync flush", ("way", "here", "other", "median ratio", "of rounds"), rows)


if __name__ == "__main__":
    main()
