"""A visitor of a console in this process: what a browser without scripts does."""

from __future__ import annotations

import asyncio
import html
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from starlette.types import ASGIApp, Message, Scope

from aerobee_broker.console.app import open_console
from aerobee_broker.console.connections import make_ledger
from aerobee_broker.console.settings import ConsoleSettings
from aerobee_client import Client
from tests.console.scenario import Shop

ADDRESS = "http://127.0.0.1:8090"
ACCOUNTS = """
[accounts.operator]
secret_key = "the operator's secret"
admin = true

[accounts.viewer]
secret_key = "the viewer's secret"
view = true

[accounts.shop]
secret_key = "the shop's secret"
publish = ["orders"]
consume = ["orders"]
groups = ["billing"]
"""


class Visitor:
    """Keeps cookies, and finds the tokens of forms on the pages that it has seen."""

    def __init__(self, client: httpx.AsyncClient, app: ASGIApp) -> None:
        self.client = client
        self.app = app
        self.token = ""

    async def get(self, address: str, **options: Any) -> httpx.Response:
        """A page, behind up to one redirection."""
        return self._seen(await self.client.get(address, **options))

    async def post(self, address: str, fields: dict[str, Any] | None = None, **options: Any) -> httpx.Response:
        """Send a form with the token of the last page; `form_token` in `fields` replaces it."""
        answer = await self.client.post(address, data={"form_token": self.token, **(fields or {})}, **options)
        return self._seen(answer)

    async def sign_in(self, account: str, secret: str = "") -> Self:
        """With the secret of ACCOUNTS unless another is given."""
        await self.get("/login")
        answer = await self.post("/login", {"access_key": account, "secret_key": secret or f"the {account}'s secret"})
        assert answer.status_code == 200, text_of(answer)
        return self

    def _seen(self, answer: httpx.Response) -> httpx.Response:
        if found := re.search(r'name="form_token" value="([0-9a-f]+)"', answer.text):
            self.token = found[1]
        return answer


class World:
    """A shop's broker, its client, and a visitor of the console."""

    def __init__(self, client: Client, visitor: Visitor, shop: Shop) -> None:
        self.client = client
        self.admin = client.admin
        self.visitor = visitor
        self.shop = shop


@contextmanager
def console_of(endpoint: str, *arguments: str) -> Iterator[str]:
    """A console's process; its address, without the last slash."""
    with console_process(endpoint, *arguments) as (address, _):
        yield address


@contextmanager
def console_process(endpoint: str, *arguments: str) -> Iterator[tuple[str, int]]:
    """The same, with its process id."""
    command = [sys.executable, "-m", "aerobee_broker", "console", "--listen", "127.0.0.1:0", "--endpoint", endpoint]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().removeprefix("ready console=").strip().rstrip("/"), process.pid
        finally:
            process.terminate()


@asynccontextmanager
async def visiting(endpoint: str, *, follow: bool = True, **settings: Any) -> AsyncIterator[Visitor]:
    """A visitor of a console of the broker at `endpoint`."""
    options = {"timeout_seconds": 20.0, **settings}
    async with open_console(ConsoleSettings(endpoint=endpoint, **options), make_ledger().requests) as app:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS, follow_redirects=follow) as client:
            yield Visitor(client, app)


async def first_events(
    visitor: Visitor, address: str, count: int, after: Callable[[], Awaitable[object]] | None = None
) -> list[Any]:
    """The data of the first server-sent events; `after` runs when the first has come. Then the browser leaves."""
    parts = urlsplit(address)
    scope: Scope = {
        **{"type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "root_path": ""},
        **{"path": parts.path, "raw_path": parts.path.encode(), "query_string": parts.query.encode()},
        "headers": [(b"host", b"127.0.0.1:8090")],
    }
    found: asyncio.Queue[Any] = asyncio.Queue()
    left = asyncio.Event()

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        for line in message.get("body", b"").decode().splitlines():
            if line.startswith("data: "):
                found.put_nowait(json.loads(line.removeprefix("data: ")))

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(visitor.app(scope, receive, send))  # type: ignore[arg-type]  # a coroutine, declared wider
        events = [await found.get()]
        if after is not None:
            await after()
        while len(events) < count:
            events.append(await found.get())
        left.set()
    return events


def text_of(answer: httpx.Response) -> str:
    """What a page says, without its markup."""
    content = answer.text.partition("<main")[2].partition("</main>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", content)).split())


def rows_of(answer: httpx.Response) -> list[list[str]]:
    """The cells of all tables of a page."""
    return [
        [
            " ".join(html.unescape(re.sub(r"<[^>]+>", " ", cell)).split())
            for cell in re.findall(r"<td.*?</td>", row, re.S)
        ]
        for row in re.findall(r"<tr>.*?</tr>", answer.text, re.S)
        if "<td" in row
    ]
