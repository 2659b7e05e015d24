"""Draws the tables of docs/performance.md: for each section with a table, bars in docs/images/performance/.

    python -m tests.support.performance_plots             write the plots
    python -m tests.support.performance_plots --check     fail if a plot differs from its table, or a section has none

The figures are read from the page, so a new measurement is written there and nowhere else. `PLOTS` says which cells are
drawn: a bar is a row's cell in a column, or one of several numbers in the cell.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

_DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = _DOCS / "performance.md"
PLACE: Final = _DOCS / "images" / "performance"
_NUMBER: Final = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_WIDTH: Final = 740
_LEFT: Final = 250  # where bars begin; labels are left of it
_RIGHT: Final = 90  # space for the number beside the longest bar
_BAR: Final = 14
_LETTER: Final = 6.5  # approximate width in pixels
_STYLE: Final = """<style>
text { font: 12px system-ui, sans-serif; fill: #1f2933; }
.title { font-weight: 600; }
.s0 { fill: #3b7dbf; } .s1 { fill: #e0a030; } .s2 { fill: #c25b4e; } .s3 { fill: #6b9a5b; }
@media (prefers-color-scheme: dark) { text { fill: #e4e7eb; } }
</style>"""


@dataclass(frozen=True)
class Panel:
    """Bars with one scale.

    `rows` names the groups of bars: the first words of the table's row and the place of a number in its cells. `series`
    names the bars of a group: the column, and how many numbers later. A cell without that number has no bar.
    """

    title: str  # with the unit
    rows: Mapping[str, tuple[str, int]]
    series: Mapping[str, tuple[int, int]]


def _rows(*names: str) -> dict[str, tuple[str, int]]:
    """Rows that are called as in the table."""
    return {name: (name, 0) for name in names}


_IN_FLIGHT: Final = {f"{count} in flight": (count, 0) for count in ("1", "16", "64", "256")}
_FRONTS: Final = {"native front": (1, 0), "grpcio's front": (2, 0)}
_FIGURE: Final = {"": (1, 0)}
_BROKERS: Final = _rows(
    "Aerobee, AppendRecords, plain topic", "Aerobee, AppendRecords, batch topic", "Aerobee, SendMessage of 500", "Kafka"
)
PLOTS: Final[Mapping[str, Sequence[Panel]]] = {
    "Single sends": (
        Panel(
            "durable sends per second",
            _IN_FLIGHT,
            {"native front": (2, 0), "grpcio's front": (3, 0), "RocketMQ 5.5": (4, 0)},
        ),
        Panel(
            "processor time of the server for each, us",
            _IN_FLIGHT,
            {"native front": (2, 1), "grpcio's front": (3, 1), "RocketMQ 5.5": (4, 1)},
        ),
    ),
    "Where the time of a send goes": (
        Panel(
            "one durable send by itself: us of each step",
            {
                "HTTP/2": ("HTTP/2", 0),
                "call, checks, append": ("the call", 0),
                "answer to a PING": ("grpc-go's PING", 0),
                "write, waking the disk thread": ("the write", 0),
                "fdatasync": ("`fdatasync`", 0),
                "waking the event loop": ("waking the event loop", 0),
                "dispatch": ("dispatch", 0),
                "answer": ("the answer", 0),
                "client": ("the client", 0),
            },
            _FIGURE,
        ),
    ),
    "Clients, deliveries and waiting": (
        Panel(
            "messages per second",
            {
                "aerobee_client: sent": ("`aerobee_client`", 0),
                "received and acknowledged": ("the same: received by 16 and", 0),
                "official Python SDK: sent": ("the official Python SDK", 0),
                "received and acknowledged one by one": ("the same: received by 16, ack", 0),
            },
            {"sync flush": (1, 0), "async flush": (1, 1)},
        ),
        Panel(
            "a backlog received by grpc-go: messages per second",
            {"acknowledged together": ("a backlog", 0), "acknowledged one a call": ("the same, one a call", 0)},
            _FIGURE,
        ),
    ),
    "Delayed messages": (
        Panel(
            "lateness, ms",
            {
                "while a million arrive": ("lateness of those", 0),
                "while a million wait": ("lateness while a million", 0),
            },
            {"p50": (1, 0), "p99": (1, 1)},
        ),
    ),
    "The store alone": (
        Panel(
            "batches of 500: ns per record",
            {
                "parse and check": ("batches of 500", 0),
                "place": ("batches of 500", 1),
                "write": ("batches of 500", 2),
            },
            _FIGURE,
        ),
        Panel(
            "records per second with the wait for the disk",
            {"4 batches in flight": ("with the wait", 0), "one by one, 64 in flight": ("one by one", 0)},
            {"sync flush": (1, 0), "async flush": (1, 1)},
        ),
        Panel(
            "opening after a crash, s",
            {"with a checkpoint": ("opening 1 GiB", 2), "without a checkpoint": ("scan after a crash", 0)},
            {"1 GiB": (1, 0), "10 GiB": (1, 1)},
        ),
    ),
    "Bulk records": (
        Panel(
            "messages per second",
            {
                "AppendRecords, plain topic, sync": ("AppendRecords, plain", 0),
                "AppendRecords, plain topic, async": ("plain topic: async", 0),
                "AppendRecords, batch topic, sync": ("batch topic: sync", 0),
                "AppendRecords, batch topic, async": ("batch topic: async", 0),
                "SendMessage of 500, sync": ("SendMessage of 500", 0),
                "SendMessage of 500, async": ("SendMessage of 500", 1),
                "ReadRecords": ("ReadRecords", 0),
            },
            _FRONTS,
        ),
    ),
    "Beside Kafka": (
        Panel("messages per second", _BROKERS, _FIGURE),
        Panel("processor time of the broker for each, us", _BROKERS, {"": (2, 0)}),
        Panel("time of a request, ms", _BROKERS, {"p50": (3, 0), "p99": (3, 1)}),
    ),
    "Ten minutes of appends": (
        Panel(
            "time until acknowledged, ms",
            {"p50": ("acknowledged", 0), "p99": ("acknowledged", 1), "p99.9": ("acknowledged", 2)},
            {"first run": (1, 0), "second run": (2, 0)},
        ),
        Panel(
            "own memory of the broker, MiB",
            {"at first": ("own memory", 0), "half-way": ("own memory", 1), "at last": ("own memory", 2)},
            {"first run": (1, 0), "second run": (2, 0)},
        ),
    ),
    "Replication": (
        Panel(
            "sends per second, with a replica",
            _rows("single sends, older protocol", "single sends, gRPC"),
            {"1 in flight": (1, 0), "16": (2, 0), "64": (3, 0)},
        ),
    ),
    "A million waiting FIFO messages": (
        Panel(
            "until a message behind a stuck group is received: processor time, s",
            {"in a broker that runs": ("one message group", 0), "after a restart": ("the same after", 0)},
            _FIGURE,
        ),
    ),
}


def sections(page: str) -> dict[str, str]:
    """The text of each section by its heading."""
    _, *parts = re.split(r"^## ", page, flags=re.MULTILINE)
    return {heading: text for heading, _, text in (part.partition("\n") for part in parts)}


def table(section: str) -> list[list[str]]:
    """The cells of a section's table, row by row, without its head."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def file_name(heading: str) -> str:
    """The file of a section's plot."""
    return "-".join(re.findall(r"\w+", heading.lower())) + ".svg"


def values(panel: Panel, rows: list[list[str]]) -> Iterator[tuple[str, str, str]]:
    """Each bar: the names of its row and series, and its number as the page writes it. ValueError: there is no row."""
    for label, (start, first) in panel.rows.items():
        same_first = sorted(rows, key=lambda row: row[0] != start)  # "1" is not the row "16"
        row = next((row for row in same_first if row[0].startswith(start)), None)
        if row is None:
            raise ValueError(f"no row of the table starts with {start!r}")
        for name, (column, later) in panel.series.items():
            numbers = _NUMBER.findall(row[column])
            if len(numbers) > first + later:
                yield label, name, numbers[first + later]


def drawn(heading: str, panels: Sequence[Panel], rows: list[list[str]]) -> str:
    """The picture of a section."""
    parts: list[str] = []
    y = 0
    for panel in panels:
        y = _panel(parts, panel, list(values(panel, rows)), y)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" role="img" aria-labelledby="t">\n'
        f'<title id="t">{escape(heading)}</title>\n{_STYLE}\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _panel(parts: list[str], panel: Panel, bars: list[tuple[str, str, str]], y: int) -> int:
    """Draw a panel from `y` on; return where it ends."""
    parts.append(f'<text class="title" x="0" y="{y + 16}">{escape(panel.title)}</text>')
    x: float = _LEFT
    names = list(panel.series)
    y += 26
    if len(names) > 1:
        for index, name in enumerate(names):
            parts.append(f'<rect class="s{index}" x="{x:.0f}" y="{y}" width="10" height="10"/>')
            parts.append(f'<text x="{x + 14:.0f}" y="{y + 10}">{escape(name)}</text>')
            x += 34 + len(name) * _LETTER
        y += 20
    scale = (_WIDTH - _LEFT - _RIGHT) / max(_number(text) for _, _, text in bars)
    above = ""
    for label, name, text in bars:
        if label != above:
            y += 4 * bool(above)
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 11}" text-anchor="end">{escape(label)}</text>')
            above = label
        width = max(_number(text) * scale, 1)
        parts.append(
            f'<rect class="s{names.index(name)}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 2}"/>'
        )
        parts.append(f'<text x="{_LEFT + width + 5:.1f}" y="{y + 11}">{text}</text>')
        y += _BAR
    return y + 12


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def plots(page: str) -> dict[str, str]:
    """The plots of a page by their files. ValueError: a section has a table but no plot, or does not show it."""
    made = {}
    for heading, text in sections(page).items():
        rows = table(text)
        if not rows:
            continue
        name = file_name(heading)
        if heading not in PLOTS:
            raise ValueError(f"{heading}: say in PLOTS what is drawn of its table")
        if f"(images/performance/{name})" not in text:
            raise ValueError(f"{heading}: the section does not show images/performance/{name}")
        made[name] = drawn(heading, PLOTS[heading], rows)
    if gone := PLOTS.keys() - sections(page).keys():
        raise ValueError(f"{', '.join(sorted(gone))}: in PLOTS, but no section")
    return made


def main() -> int:
    """Write or check the plots. Returns the exit code."""
    made = plots(PAGE.read_text(encoding="utf-8"))
    there = {path.name: path.read_text(encoding="utf-8") for path in PLACE.glob("*.svg")}
    if "--check" in sys.argv:
        if there != made:
            wrong = sorted(name for name in there.keys() | made.keys() if there.get(name) != made.get(name))
            names = ", ".join(wrong)
            print(f"docs/images/performance: {names} differ from docs/performance.md; run `make map`", file=sys.stderr)
            return 1
        return 0
    for name in there.keys() - made.keys():
        (PLACE / name).unlink()
    for name, picture in made.items():
        (PLACE / name).write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
