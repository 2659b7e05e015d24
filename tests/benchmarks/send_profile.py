"""A picture of the broker's CPU time during durable sends.

    python -m tests.benchmarks.send_profile docs/send-profile.svg

A box's width is the share of samples, by CPU time, of a function and its callees; the callees are
below it. The load is that of `make bench-front`: grpc-go if Go is installed, otherwise grpcio.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

from tests.benchmarks import front, unary_send
from tests.benchmarks.processes import Server, server
from tests.benchmarks.report import microseconds

_WIDTH: Final = 1200
_ROW: Final = 17
_SHARE_MIN: Final = 0.006  # narrower boxes are left out
_LETTER: Final = 6.2  # approximate width in pixels
_COLOURS: Final = {
    "aerobee_broker.front": "#8fb8de",
    "aerobee_broker.services": "#b5d6a7",
    "aerobee_broker": "#f2d388",
    "aerobee_store": "#e8a598",
}


@dataclass
class _Function:
    samples: int = 0
    calls: dict[tuple[str, str], _Function] = field(default_factory=dict)


def run(picture: Path, directory: Path, in_flight: int = 64, seconds: float = 10.0) -> None:
    """Measure and draw."""
    with tempfile.TemporaryDirectory(dir=directory) as place, ExitStack() as stack:
        samples = Path(place).resolve() / "samples"
        arguments = [
            "-m",
            "tests.benchmarks.profiled_broker",
            str(samples),
            "serve",
            "--dev",
            "--store",
            f"{place}/store",
        ]
        arguments += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
        load = front.go_load(Path(place)) if shutil.which("go") is not None else unary_send.measure
        target: Server = stack.enter_context(server(arguments))
        load(target, in_flight, 1.0)
        os.kill(target.process.pid, signal.SIGUSR1)
        measured = load(target, in_flight, seconds)
        target.process.send_signal(signal.SIGTERM)
        target.process.wait()
        root = _tree(samples.read_text())
    text = f"durable sends, {in_flight} in flight: {microseconds(measured.cpu_per_call)} of processor time each"
    picture.write_text(_drawn(root, f"{text}, {root.samples} samples"))
    print(f"{text}; {picture}")


def _tree(samples: str) -> _Function:
    """All stacks merged into a tree below the event loop."""
    root = _Function()
    for line in samples.splitlines():
        names, _, count = line.rpartition(" ")
        stack = [(module, name) for module, _, name in (part.partition(":") for part in names.split(";"))]
        while stack and stack[0] != ("asyncio.runners", "Runner.run"):
            stack.pop(0)
        at = root
        at.samples += int(count)
        for function in stack[1:]:
            at = at.calls.setdefault(function, _Function())
            at.samples += int(count)
    return root


def _drawn(root: _Function, title: str) -> str:
    boxes: list[str] = []
    depth_max = _draw(boxes, root, 0, 0.0, _WIDTH / max(root.samples, 1), root.samples)
    height = (depth_max + 3) * _ROW
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="4" y="13" font-size="13">{escape(title)}</text>'
    )
    return "\n".join((head, *boxes, "</svg>")) + "\n"


def _draw(boxes: list[str], function: _Function, depth: int, left: float, scale: float, total: int) -> int:
    """Draw the callees of `function`, the widest first; return the depth reached."""
    reached = depth
    own = function.samples - sum(called.samples for called in function.calls.values())
    parts = sorted(function.calls.items(), key=lambda call: -call[1].samples)
    if not depth:  # the loop itself has no box
        parts.append((("", "event loop, system calls, sync thread"), _Function(own)))
    for (module, name), called in parts:
        if called.samples < total * _SHARE_MIN:
            continue
        width = called.samples * scale
        colour = next((shade for prefix, shade in _COLOURS.items() if module.startswith(prefix)), "#dddddd")
        label = f"{name.replace('.<locals>', '')} {called.samples / total:.0%}"
        short = name.rpartition(".")[2]
        texts = (label, f"{short} {called.samples / total:.0%}", short, "")
        shown = next(text for text in texts if len(text) * _LETTER < width)
        y = (depth + 1) * _ROW
        boxes.append(
            f'<g><title>{escape(f"{module}: {label}")}</title><rect x="{left:.1f}" y="{y}" width="{width:.1f}" '
            f'height="{_ROW - 1}" fill="{colour}"/><text x="{left + 2:.1f}" y="{y + 12}">{escape(shown)}</text></g>'
        )
        reached = max(reached, _draw(boxes, called, depth + 1, left, scale, total))
        left += width
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.send_profile", description=__doc__)
    parser.add_argument("picture", type=Path, help="the SVG file to write")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--directory", type=Path, default=Path("build"), help="where the store goes (./build)")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    run(options.picture, options.directory, options.in_flight, options.seconds)


if __name__ == "__main__":
    main()
