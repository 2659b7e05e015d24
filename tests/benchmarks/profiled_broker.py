"""A broker that samples its own stack by CPU time from SIGUSR1 on, and writes the samples when it ends.

    python -m tests.benchmarks.profiled_broker FILE serve ...

One line per stack: functions as `module:name`, outermost first, separated by `;`, and the number of samples.
Samples show the event loop's thread; while it waits, CPU time of other threads counts as its wait.
"""

from __future__ import annotations

import atexit
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

from aerobee_broker.cli import main

_SECONDS: Final = 0.001  # CPU time between samples; the kernel may take more
_samples: Counter[tuple[tuple[str, str], ...]] = Counter()


def _sample(_number: int, frame: FrameType | None) -> None:
    stack = []
    while frame is not None:
        code = frame.f_code
        stack.append((frame.f_globals.get("__name__", ""), code.co_qualname))
        frame = frame.f_back
    _samples[tuple(reversed(stack))] += 1


def _begin(_number: int, _frame: FrameType | None) -> None:
    _samples.clear()
    signal.setitimer(signal.ITIMER_PROF, _SECONDS, _SECONDS)


def _end(file: Path) -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    lines = [f"{';'.join(':'.join(part) for part in stack)} {count}\n" for stack, count in _samples.items()]
    file.write_text("".join(lines))


if __name__ == "__main__":
    atexit.register(_end, Path(sys.argv[1]))
    signal.signal(signal.SIGPROF, _sample)
    signal.signal(signal.SIGUSR1, _begin)
    sys.exit(main(sys.argv[2:]))
