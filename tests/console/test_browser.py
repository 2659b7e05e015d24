"""The console in Chromium, through a real broker and a real console: what scripts add, and how pages look to people."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from aerobee_client import Client, Message, connect
from aerobee_client.testing import BrokerProcess, run_broker
from tests.console.scenario import make_shop, make_topics
from tests.console.support import ACCOUNTS, console_of
from tests.support.programs import program

pytestmark = pytest.mark.timeout(300)

FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_MILLISECONDS: Final = 30_000  # a wait on a busy machine; no test waits so long otherwise
PAGES: Final = (
    *("/", "/topics", "/topics/orders", "/topics/orders/messages", "/topics/orders/tail", "/topics/orders/send"),
    *("/topics/orders/0/0", "/groups", "/groups/billing", "/groups/billing/reset?topic=orders&to=earliest"),
    *("/dead-letters", "/dead-letters/ledger", "/dead-letters/ledger/0", "/delayed", "/transactions"),
    *("/clients", "/store", "/settings", "/accounts", "/changes", "/search?q=a", "/nothing"),
)
TOO_WIDE: Final = """
    [...document.querySelectorAll(".scroll")].filter(each => each.scrollWidth > each.clientWidth)
        .map(each => `${each.scrollWidth} > ${each.clientWidth}: ${each.innerText.slice(0, 80)}`)
"""
LESS_OF_THE_SAME: Final = """
    const seen = {};
    for (const row of document.querySelectorAll("tbody tr")) {
        const like = [row, ...row.querySelectorAll("*")].map(each => each.tagName + "." + each.className).join();
        seen[like] = (seen[like] ?? 0) + 1;
        if (seen[like] > 3) row.remove();
    }
"""
NARROW: Final = {"width": 390, "height": 844}
WIDE: Final = {"width": 1280, "height": 800}


@dataclass(frozen=True)
class Site:
    """A broker with a shop, its console, and a browser."""

    broker: BrokerProcess
    address: str
    browser: Browser

    def call(self, work: Callable[[Client], Awaitable[object]]) -> None:
        """Do something with a client of the broker."""

        async def connected() -> None:
            async with connect(self.broker.endpoint) as client:
                await work(client)

        with ThreadPoolExecutor(1) as thread:  # this one has the event loop of the browser's driver
            thread.submit(lambda: asyncio.run(connected())).result()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One for all tests of this module."""
    chromium = str(program("chromium"))
    with (
        run_broker(tmp_path_factory.mktemp("broker")) as broker,
        console_of(broker.endpoint) as address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=[*FLAGS])
        found = Site(broker, address, browser)
        found.call(make_shop)
        yield found
        browser.close()


@pytest.fixture
def context(site: Site) -> Iterator[BrowserContext]:
    """An empty profile."""
    context = site.browser.new_context(viewport=WIDE, base_url=site.address)  # type: ignore[arg-type]  # a plain dict
    context.set_default_timeout(_MILLISECONDS)
    expect.set_options(timeout=_MILLISECONDS)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """A tab of it."""
    return context.new_page()


@dataclass(frozen=True)
class Findings:
    """What was found on all pages."""

    complaints: list[str] = field(default_factory=list)
    """Of the browser: failed scripts, and what the policy refused."""
    asked: set[str] = field(default_factory=set)
    """The addresses of all requests."""
    layout: list[str] = field(default_factory=list)
    accessibility: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def findings(site: Site) -> Findings:
    """Each page is loaded once, with axe beside its own scripts, and looked at in two widths and two colours.

    Tables may be wider than a phone, but not than a window of 1280 pixels.
    """
    found = Findings()
    with site.browser.new_context(viewport=WIDE, base_url=site.address) as context:  # type: ignore[arg-type]  # a plain dict
        context.set_default_timeout(_MILLISECONDS)
        context.add_init_script(AXE_SCRIPT)
        page = context.new_page()
        page.on("console", lambda message: found.complaints.append(message.text))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("request", lambda request: found.asked.add(request.url))
        for path in PAGES:
            page.emulate_media(color_scheme="light")
            page.goto(path)
            for size in (NARROW, WIDE):
                page.set_viewport_size(size)  # type: ignore[arg-type]  # a plain dict
                width = page.evaluate("document.documentElement.scrollWidth")
                found.layout.extend([f"{path} is {width} pixels wide"] if width > size["width"] else [])
            found.layout.extend(
                f"{path} has a table that is cut at the right: {cut}" for cut in page.evaluate(TOO_WIDE)
            )
            search = page.locator("#search").bounding_box()
            if search is None or search["y"] >= 160:
                found.layout.append(f"the search of {path} is at {search}")
            page.evaluate(f"() => {{ {LESS_OF_THE_SAME} }}")  # a third of the time went to 160 settings
            for scheme, only in (("light", ""), ("dark", ", runOnly: ['color-contrast']")):
                page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # a literal
                found.accessibility.extend(
                    f"{path}: {each['id']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0]['failureSummary']}"
                    for each in page.evaluate(f"axe.run(document, {{resultTypes: ['violations']{only}}})")["violations"]
                )
    return found


def test_every_page_is_whole_and_asks_nobody_else(site: Site, findings: Findings) -> None:
    """No script fails, the policy refuses nothing, pages fit their window, and nothing comes from elsewhere."""
    assert findings.layout == []
    assert [text for text in findings.complaints if "404" not in text] == []
    assert f"{site.address}{PAGES[-1]}" in findings.asked
    assert {url for url in findings.asked if not url.startswith(f"{site.address}/")} == set()


def test_every_page_is_accessible(findings: Findings) -> None:
    """axe finds nothing: contrast, names of fields, headings, keyboard."""
    assert findings.accessibility == []


def test_figures_are_asked_for_again(site: Site, page: Page) -> None:
    """Without loading the page anew, until somebody pauses."""
    page.goto("/topics?q=audit")
    page.evaluate("window.mark = 1")
    expect(page.locator("[data-live-text]")).to_have_text("live")
    count = page.locator("tbody tr:first-child td:nth-child(3)")
    before = int(count.inner_text())
    site.call(lambda client: client.producer().send(Message(topic="audit", body=b"one more")))
    expect(count).to_have_text(str(before + 1))
    assert page.evaluate("window.mark") == 1
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("[data-live-text]")).to_have_text("paused")


def test_the_tail_shows_messages_as_they_come(site: Site, page: Page) -> None:
    """The newest on top, as text and not as markup; a click leads to the message."""
    page.goto("/topics/audit/tail")
    expect(page.locator("[data-tail-state]")).to_contain_text("live")
    body = b"<img src=x onerror=alert(1)> tailed"
    site.call(lambda client: client.producer().send(Message(topic="audit", body=body, tag="new")))
    first = page.locator("[data-tail] li").first
    expect(first).to_contain_text(body.decode())
    first.locator("a").click()
    expect(page.locator("main h2").first).to_have_text("Its life")


def test_tables_are_sorted_and_boxes_ticked(page: Page) -> None:
    """By a click on the head of a column; one box ticks all."""
    page.goto("/groups/analytics")
    table = page.locator("table").last
    table.get_by_role("button", name="Queue", exact=True).click()
    numbers = [int(text) for text in table.locator("tbody td:nth-child(2)").all_inner_texts()]
    assert numbers == sorted(numbers)
    expect(table.locator("th").nth(1)).to_have_attribute("aria-sort", "ascending")
    page.goto("/dead-letters/ledger")
    page.locator("[data-tick-all]").check()
    assert page.locator("tbody input:checked").count() == 2


def test_the_figures_under_the_pointer(page: Page) -> None:
    """A chart says what it shows there."""
    page.goto("/")
    chart = page.locator("figure[data-chart] svg").first
    expect(chart).to_be_visible()
    place = chart.bounding_box()
    assert place is not None
    page.mouse.move(place["x"] + place["width"] * 0.6, place["y"] + place["height"] / 2)
    expect(page.locator(".hover").first).to_contain_text("acknowledged")


def test_keys_reach_everything(page: Page) -> None:
    """Search, pages of the navigation, and the content."""
    page.goto("/")
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("billing")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("billing")
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page.locator("h1")).to_have_text("Dead letters")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()


def test_pages_work_without_scripts(site: Site) -> None:
    """A topic is created and found, a message sent and read."""
    context = site.browser.new_context(base_url=site.address, java_script_enabled=False)
    page = context.new_page()
    page.goto("/topics")
    page.locator("summary").click()
    page.get_by_label("Name").last.fill("plain")
    page.get_by_role("button", name="Create").click()
    expect(page.locator(".note")).to_have_text("Topic plain was created.")
    page.get_by_role("link", name="Send").click()
    page.get_by_label("Body", exact=True).fill("no script")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("pre.content")).to_have_text("no script")
    page.goto("/topics?q=plain")
    page.get_by_role("link", name="Messages").first.click()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("Messages")
    context.close()


def test_a_new_group_begins_where_another_one_is(site: Site, page: Page) -> None:
    """From the page of the group, by its forms alone; nothing moves before the last."""
    site.call(lambda client: client.admin.create_group("second"))
    page.goto("/groups/second")
    page.get_by_text("Begin in another topic").last.click()
    page.get_by_label("Topic", exact=True).fill("orders")
    page.get_by_role("button", name="Choose the position").click()
    page.get_by_label("Position").select_option("where another group is")
    page.get_by_label("Time, offset, count or group").fill("billing")
    page.get_by_role("button", name="Show what would change").click()
    expect(page.locator("tbody tr").first).to_contain_text("begins there")
    page.get_by_role("button", name="Move the group").click()
    expect(page.locator(".note.done")).to_contain_text("Group second was moved in")
    site.call(lambda client: client.admin.delete_group("second"))


def test_a_login_in_the_browser(site: Site, tmp_path: Path) -> None:
    """A wrong key first; then the page that was asked for, and out again."""
    (tmp_path / "accounts.toml").write_text(ACCOUNTS)
    (tmp_path / "broker").mkdir()
    with (
        run_broker(tmp_path / "broker", arguments=["--accounts", str(tmp_path / "accounts.toml")]) as broker,
        console_of(broker.endpoint) as address,
    ):
        context = site.browser.new_context(base_url=address)
        page = context.new_page()
        page.goto("/topics?sort=bytes")
        for secret in ("wrong", "the operator's secret"):
            page.get_by_label("Access key").fill("operator")
            page.get_by_label("Secret key").fill(secret)
            page.get_by_role("button", name="Sign in").click()
            if secret == "wrong":
                expect(page.get_by_role("alert")).to_contain_text("the secret key is another")
        expect(page).to_have_url(f"{address}/topics?sort=bytes")
        page.get_by_role("button", name="Sign out").click()
        expect(page.locator("h1")).to_have_text("Sign in")
        context.close()


def test_five_thousand_topics(site: Site, page: Page) -> None:
    """Lists are pages of what the broker sorted: all pages open, the search finds one, and "Next" continues."""
    site.call(lambda _: make_topics(site.broker.endpoint, 5000))
    site.call(lambda client: client.producer().send(Message(topic="topic-3210", body=b"x")))
    page.goto("/topics")
    expect(page.locator("main")).to_contain_text("5,00")
    rows = page.locator("tbody tr")
    assert 20 <= rows.count() <= 200
    first = rows.first.inner_text()
    page.get_by_role("link", name="Next").click()
    expect(rows.first).not_to_have_text(first)
    page.locator("#search").fill("3210")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text("topic-3210")
    page.goto("/topics?sort=messages&down=1&q=topic-")
    expect(rows.first).to_contain_text("topic-3210")
    for path in ("/", "/groups", "/store"):
        page.goto(path)
        expect(page.locator("[data-live-text]")).to_have_text("live")
    page.goto("/topics/topic-4999/send")
    page.get_by_label("Body", exact=True).fill("to the last")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("pre.content")).to_have_text("to the last")


def test_a_page_waits_for_a_broker_that_is_away(site: Site, page: Page) -> None:
    """It says so, asks again, and continues when the broker is back; a page that was open goes on as well."""
    page.goto("/groups")
    other = page.context.new_page()
    site.broker.kill()
    other.goto("/topics/orders")
    expect(other.locator("h1")).to_have_text("The broker does not answer")
    expect(page.locator("[data-live-text]")).to_have_text("no answer, trying again")
    site.broker.restart()
    expect(other.locator("h1")).to_have_text("orders")
    expect(page.locator("[data-live-text]")).to_have_text("live")
