"""The console of a broker with 5,000 topics in Chromium: until the first paint, and what it takes while it is idle.

python -m tests.benchmarks.console [--short]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright

from aerobee_client import connect
from aerobee_client.testing import run_broker
from tests.benchmarks.report import machine, percentile, table
from tests.console.scenario import make_topics
from tests.console.support import console_process
from tests.console.test_browser import FLAGS, WIDE
from tests.support.programs import DEBIAN

TOPICS: Final = 5000
GROUPS: Final = 200
_PAGES: Final = ("/topics", "/", "/groups", "/store", "/topics/topic-2500")
_PAINTED: Final = "performance.getEntriesByName('first-contentful-paint').map(entry => entry.startTime)[0] || 0"


async def make(endpoint: str) -> None:
    """The topics with four queues each, and the groups."""
    await make_topics(endpoint, TOPICS, queue_count=4)
    async with connect(endpoint) as client:
        await asyncio.gather(*(client.admin.create_group(f"group-{number:03}") for number in range(GROUPS)))


def first_paint(browser: Browser, url: str) -> tuple[float, float]:
    """Milliseconds until a browser with an empty profile has painted something, and until the server had answered."""
    context = browser.new_context(viewport=WIDE)  # type: ignore[arg-type]  # a plain dict
    page = context.new_page()
    page.goto(url)
    page.wait_for_function(f"({_PAINTED}) > 0")
    painted = page.evaluate(_PAINTED)
    answered = page.evaluate("performance.getEntriesByType('navigation')[0].responseEnd")
    context.close()
    return painted, answered


def processor_seconds(pid: int) -> float:
    """Of all threads that live."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def share(pid: int, seconds: float) -> float:
    """Of a core, over the next seconds."""
    before = processor_seconds(pid)
    time.sleep(seconds)
    return (processor_seconds(pid) - before) / seconds


def paints(browser: Browser, address: str, loads: int) -> None:
    """Print the times of each page."""
    rows = []
    for path in _PAGES:
        first_paint(browser, address + path)
        found = [first_paint(browser, address + path) for _ in range(loads)]
        rows.append((path, *(f"{percentile([each[part] for each in found], 0.5) / 1000:.2f} s" for part in (0, 1))))
    table(f"First paint, median of {loads}", ("page", "first paint", "answered"), rows)


def run(seconds: float, loads: int) -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory() as store, run_broker(Path(store)) as broker:
        asyncio.run(make(broker.endpoint))
        with console_process(broker.endpoint) as (address, pid), sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=f"/usr/bin/{DEBIAN['chromium']}", args=[*FLAGS])
            paints(browser, address, loads)
            idle = share(pid, seconds)
            page = browser.new_page()
            page.goto(address)
            page.wait_for_function("document.querySelector('[data-live-text]').textContent == 'live'")
            looked_at = share(pid, seconds)
            status = Path(f"/proc/{pid}/status").read_text()
            browser.close()
    resident = int(status.partition("VmRSS:")[2].split()[0])
    table(
        "The process of the console",
        ("what", "figure"),
        (
            ("of a core, while nobody looks", f"{idle:.2%}"),
            ("of a core, with one overview open", f"{looked_at:.2%}"),
            ("memory after it", f"{resident / 1024:.0f} MiB"),
        ),
    )


if __name__ == "__main__":
    print(machine())
    run(*((5.0, 2) if "--short" in sys.argv else (30.0, 7)))
