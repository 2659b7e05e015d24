"""Takes pictures of the console in Chromium: each page light, dark and on a phone, and that of the documentation.

python -m tests.console.pictures [DIRECTORY]     into build/console by default
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, sync_playwright

from aerobee_client import Client, connect
from aerobee_client.testing import run_broker
from tests.console.scenario import make_shop, order
from tests.console.support import console_of
from tests.console.test_browser import FLAGS, NARROW, PAGES, WIDE
from tests.support.programs import DEBIAN

ROOT: Final = Path(__file__).parents[2]
DOCUMENTATION: Final = ROOT / "docs" / "images" / "console.png"
_TRAFFIC_SECONDS: Final = 75.0
_BEFORE_SECONDS: Final = 60.0  # until the first picture, so that its charts show something
_SEED: Final = 7


async def traffic(endpoint: str) -> None:
    """A shop, and some life in it."""
    async with connect(endpoint) as client:
        await make_shop(client)
        ends = time.monotonic() + _TRAFFIC_SECONDS
        await asyncio.gather(_produce(client, ends), _consume(client, ends))


async def _produce(client: Client, ends: float) -> None:
    chosen = random.Random(_SEED)
    producer, number = client.producer(), 100
    while time.monotonic() < ends:
        await asyncio.gather(*(producer.send(order(number + each)) for each in range(chosen.randint(4, 16))))
        number += 16
        await asyncio.sleep(0.25)


async def _consume(client: Client, ends: float) -> None:
    chosen = random.Random(_SEED)
    consumer = client.simple_consumer("billing", "orders")
    while time.monotonic() < ends:
        for message in await consumer.receive(max_count=16):
            if chosen.random() < 0.95:
                await consumer.ack(message)
        await asyncio.sleep(0.2)


def take(browser: Browser, address: str, path: str, file: Path, *, size: Any, scheme: Any, whole: bool = True) -> None:
    """One picture."""
    context = browser.new_context(viewport=size, color_scheme=scheme, base_url=address)
    page = context.new_page()
    page.goto(path)
    page.wait_for_timeout(500)  # fonts and the tail
    page.screenshot(path=file, full_page=whole)
    context.close()


def main() -> int:
    """Write all of them. Returns the exit code."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "console"
    directory.mkdir(parents=True, exist_ok=True)
    DOCUMENTATION.parent.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as store,
        run_broker(Path(store)) as broker,
        ThreadPoolExecutor(1) as thread,
        console_of(broker.endpoint) as address,
        sync_playwright() as playwright,
    ):
        shopping = thread.submit(lambda: asyncio.run(traffic(broker.endpoint)))
        browser = playwright.chromium.launch(executable_path=f"/usr/bin/{DEBIAN['chromium']}", args=[*FLAGS])
        time.sleep(_BEFORE_SECONDS)
        take(browser, address, "/", DOCUMENTATION, size={**WIDE, "height": 760}, scheme="light", whole=False)
        shopping.result()
        for path in PAGES:
            name = path.partition("?")[0].strip("/").replace("/", "-") or "overview"
            for kind, size, scheme in (("light", WIDE, "light"), ("dark", WIDE, "dark"), ("phone", NARROW, "dark")):
                take(browser, address, path, directory / f"{name}-{kind}.png", size=size, scheme=scheme)
        browser.close()
    print(f"pictures are in {directory}, the one of the documentation is {DOCUMENTATION.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
