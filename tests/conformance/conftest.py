"""The broker that most items share, and the table at the end of a run."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import pytest

from aerobee_client.testing import BrokerProcess, run_broker
from tests.conformance.items import COUNT, COVERED_ELSEWHERE, SECTIONS, TITLES
from tests.conformance.raw_client import RawClient
from tests.support.in_process_broker import in_process_broker
from tests.support.travelling_clock import TravellingClock

_NUMBER = re.compile(r"::test_(\d{3})_")
_HERE: Final = Path(__file__).parent

# Small files, so that a hundred topics cost little, and segments that hold the largest bodies.
CONFIG: Final = """
[store]
segment_size = "32MiB"
queue_file_size = 20000
index_slot_count = 1000
index_entry_count = 4000
disk_clean_ratio = 1.0
disk_force_clean_ratio = 1.0
disk_full_ratio = 1.0
[topics]
queue_count = 4
"""


def item_number(nodeid: str) -> int | None:
    """The number of the item that a test is about."""
    match = _NUMBER.search(nodeid)
    return int(match[1]) if match else None


# --- The broker ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of `aerobee serve`."""
    config = tmp_path_factory.mktemp("config") / "aerobee.toml"
    config.write_text(CONFIG)
    return ["--dev", "--config", str(config)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, arguments: list[str]) -> Iterator[BrokerProcess]:
    """One broker for the tests of a module that leave it alone; each has topics and groups of its own."""
    with run_broker(tmp_path_factory.mktemp("aerobee"), arguments) as running:
        yield running


@pytest.fixture
def own_broker(tmp_path_factory: pytest.TempPathFactory, arguments: list[str]) -> Iterator[BrokerProcess]:
    """A broker that the test may stop, kill and restart."""
    with run_broker(tmp_path_factory.mktemp("aerobee"), arguments) as running:
        yield running


@pytest.fixture
async def channel(broker: BrokerProcess) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(broker.endpoint) as channel:
        yield channel


@pytest.fixture
def client(channel: grpc.aio.Channel) -> RawClient:
    """A client that the broker has never heard of."""
    return RawClient(channel)


@pytest.fixture
async def strict_client(tmp_path: Path) -> AsyncIterator[RawClient]:
    """A client of a broker on which nothing comes into being by itself."""
    async with in_process_broker(tmp_path / "store", dev=False) as broker:
        yield RawClient(broker.channel)


@dataclass(frozen=True, slots=True)
class Traveller:
    """A client of a broker whose time moves as the test says."""

    client: RawClient
    clock: TravellingClock


@pytest.fixture
async def traveller(tmp_path: Path) -> AsyncIterator[Traveller]:
    """A broker in the test's own loop; everything comes into being with its first use."""
    clock = TravellingClock()
    async with in_process_broker(tmp_path / "store", clock=clock) as broker:
        yield Traveller(RawClient(broker.channel), clock)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of the test's own; the topic comes into being with its first use."""
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", request.node.name.removeprefix("test_"))[:100].strip("-")


@pytest.fixture
def group(topic: str) -> str:
    """A group name of the test's own."""
    return f"{topic[:100]}-readers"


# --- The table ----------------------------------------------------------------------------------------------


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How each item stands, once the whole checklist was run; a part of it needs no table."""
    outcomes: dict[int, set[str]] = {}
    elsewhere: dict[str, set[str]] = {}
    reasons: dict[int, str] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            number = item_number(report.nodeid) if report.nodeid.startswith("tests/conformance/") else None
            if number is not None:
                outcomes.setdefault(number, set()).add("failed" if outcome == "error" else outcome)
                if outcome == "skipped" and isinstance(report.longrepr, tuple):
                    reasons[number] = report.longrepr[2].removeprefix("Skipped: ")
            else:
                elsewhere.setdefault(report.nodeid.partition("[")[0], set()).add(outcome)
    if len(outcomes) < COUNT // 2:
        return
    states: dict[int, str] = {}
    for number in range(1, COUNT + 1):
        found = outcomes.get(number, set())
        for nodeid in COVERED_ELSEWHERE.get(number, ()):
            found |= elsewhere.get(nodeid, set())
        if found & {"failed", "error"}:
            states[number] = "failed"
        elif "passed" in found:
            states[number] = "passed"
        elif number in COVERED_ELSEWHERE:
            states[number] = "elsewhere"
        elif number in reasons:
            states[number] = "not applicable"
        else:
            states[number] = "not run"
    columns = ["passed", "failed", "not applicable", "elsewhere"]
    if "not run" in states.values():
        columns.append("not run")
    write = terminalreporter.write_line
    terminalreporter.section("conformance")
    write(f"{'items':>9}  {'about':<36}" + "".join(f"{name:>16}" for name in columns))
    for first, last, about, _ in (*SECTIONS, (1, COUNT, "all", "")):
        counts = [sum(states[number] == name for number in range(first, last + 1)) for name in columns]
        write(f"{f'{first}-{last}':>9}  {about:<36}" + "".join(f"{count or '.':>16}" for count in counts))
    for name in ("failed", "not run"):
        for number in (number for number, state in states.items() if state == name):
            write(f"{name}: {number} {TITLES[number]}")
    by_reason: dict[str, list[int]] = {}
    for number, state in states.items():
        if state == "not applicable":
            by_reason.setdefault(reasons[number], []).append(number)
    for reason, numbers in by_reason.items():
        write(f"not applicable: {_ranges(numbers)}: {reason}")
    listed = [number for number, state in states.items() if state == "elsewhere"]
    if listed:
        files = sorted({nodeid.partition("::")[0] for number in listed for nodeid in COVERED_ELSEWHERE[number]})
        write(f"elsewhere: {_ranges(listed)}: by {', '.join(files)}")


def _ranges(numbers: list[int]) -> str:
    """1, 2, 3, 5 as `1-3, 5`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
