"""What strangers take from a console who only open connections, or send large forms: memory, and places of others."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from random import Random
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message

from aerobee_broker.config import AuthConfig
from aerobee_broker.console import connections, forms, run
from aerobee_broker.console.connections import CONNECTIONS_MAX
from aerobee_broker.console.rendering import static_version
from aerobee_broker.console.run import serve
from aerobee_broker.console.settings import ConsoleSettings
from aerobee_broker.limits.ledger import Ledger
from aerobee_broker.limits.tls import HANDSHAKE_SIZE
from aerobee_broker.listening.certificates import development_certificate
from tests.console.support import ACCOUNTS, console_process
from tests.support.http2_attacker import begin_of_tls
from tests.support.in_process_broker import in_process_broker
from tests.support.tls_records import trusting

pytestmark = pytest.mark.timeout(300)

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
STYLE = f"static/{static_version()}/console.css".encode()
FORM_SIZE = 6_500_000


@contextmanager
def connected(address: str, count: int) -> Iterator[list[socket.socket]]:
    """So many connections to a console."""
    to = urlsplit(address)
    with ExitStack() as all_:
        yield [all_.enter_context(socket.create_connection((to.hostname, to.port), timeout=120)) for _ in range(count)]


def form(size: int, path: str = "/topics", cookie: str = "") -> bytes:
    """The headers of a posted form of this size."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\nContent-Length: {size}\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\n\r\n"
    ).encode()


def status_of(connection: socket.socket) -> int:
    """The status of the answer that comes next."""
    return int(connection.recv(1 << 16).split()[1])


def peak_memory(pid: int) -> int:
    """The most memory in bytes that a process had."""
    [found] = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found) << 10


def is_answered(connection: socket.socket) -> bool:
    """Whether something has come already."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        connection.settimeout(120)


@pytest.mark.parametrize("sent", [b"", HEAD, form(10) + b"a="], ids=["nothing", "headers", "body"])
def test_unfinished_requests_do_not_keep_others_out(sent: bytes) -> None:
    """More connections than there are places: the oldest lose theirs, and whoever comes is answered."""
    with console_process("127.0.0.1:1") as (address, _), connected(address, CONNECTIONS_MAX + 88) as attackers:
        for each in attackers:
            with suppress(ConnectionError):
                each.sendall(sent)
        for _ in range(3):
            assert httpx.get(f"{address}/healthz", timeout=120).status_code == 200
        with suppress(ConnectionError):
            while attackers[0].recv(1 << 16):  # an answer, perhaps, and then the end
                pass


@asynccontextmanager
async def served(settings: ConsoleSettings) -> AsyncIterator[str]:
    """The address of a console in this process."""
    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(settings, "127.0.0.1", 0, stop, ready.set_result))
    try:
        yield (await ready).rstrip("/")
    finally:
        stop.set()
        await serving


@pytest.mark.parametrize(
    ("limit", "sent"),
    [
        ("HEAD_SECONDS", b""),
        ("HEAD_SECONDS", HEAD),
        ("HEAD_SECONDS", HEAD + b"\r\n" + HEAD),
        ("BODY_SECONDS", form(1 << 20)),
        ("ANSWER_SECONDS", (HEAD.replace(b"healthz", STYLE) + b"\r\n") * 1000),
    ],
    ids=["nothing", "headers", "the next headers", "body", "unread answers"],
)
async def test_a_connection_that_waits_ends(limit: str, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """For headers, a body that no page reads to its end, or a browser that takes no answer."""
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "ANSWER_SECONDS"):
        monkeypatch.setattr(connections, name, 0.5 if name == limit else 3600.0)
    async with served(ConsoleSettings(endpoint="127.0.0.1:1")) as address:
        to = urlsplit(address)
        reader, writer = await asyncio.open_connection(to.hostname, to.port, limit=1 << 10)
        writer.write(sent)
        if limit != "HEAD_SECONDS":
            await asyncio.wait_for(_ended(writer), 120)
        else:
            with suppress(ConnectionError):
                await asyncio.wait_for(reader.read(-1), 120)
        writer.close()


async def _ended(writer: asyncio.StreamWriter) -> None:
    """Send a few bytes now and then, until the peer has ended the connection."""
    with suppress(ConnectionError):
        while True:
            writer.write(b"GET")
            await writer.drain()
            await asyncio.sleep(0.05)


@pytest.fixture
def https(tmp_path: Path) -> ConsoleSettings:
    """A console without a broker, in TLS."""
    issued = development_certificate("127.0.0.1")
    files = tmp_path / "console.crt", tmp_path / "console.key"
    for file, content in zip(files, (issued.certificate, issued.key), strict=True):
        file.write_bytes(content)
    return ConsoleSettings(endpoint="127.0.0.1:1", certificate=files[0], key=files[1])


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """That of the console in this process."""
    made = connections.make_ledger()
    monkeypatch.setattr(run, "make_ledger", lambda: made)
    return made


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - nothing tells of what the ledger has
        await asyncio.sleep(0.01)


async def test_a_tls_handshake_is_counted_and_ends(
    https: ConsoleSettings, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever only begins one is charged for it, and has the time for the headers of a request."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 1.0)
    async with served(https) as address:
        with connected(address, 3) as attackers:
            for each in attackers:
                each.sendall(begin_of_tls()[:-1])
            await _until(lambda: ledger.held_of_kind["handshakes"] == 3 * HANDSHAKE_SIZE)
            await _until(lambda: ledger.used == 0)
            for each in attackers:
                with suppress(ConnectionError):
                    assert await asyncio.to_thread(each.recv, 1) == b""


@pytest.mark.parametrize("in_tls", [False, True], ids=["plaintext", "TLS"])
async def test_answers_that_are_not_taken_are_counted(https: ConsoleSettings, ledger: Ledger, in_tls: bool) -> None:
    """Beyond what pauses the connection, until the browser reads on or is gone."""
    async with served(https if in_tls else ConsoleSettings(endpoint="127.0.0.1:1")) as address:
        with connected(address, 1) as [raw]:
            browser = trusting().wrap_socket(raw, do_handshake_on_connect=False) if in_tls else raw
            if in_tls:
                await asyncio.to_thread(browser.do_handshake)  # type: ignore[attr-defined]  # it is of TLS
            await asyncio.to_thread(browser.sendall, (HEAD.replace(b"healthz", STYLE) + b"\r\n") * 1_000)
            await _until(lambda: ledger.held_of_kind["unsent"] > 64 << 10)
            browser.close()
            await _until(lambda: ledger.used == 0)


async def test_many_large_forms_take_bounded_memory(tmp_path: Path) -> None:
    """Forms of megabytes at once: those without room are refused before they are read; small ones need none."""
    async with in_process_broker(tmp_path / "store") as broker:
        await asyncio.to_thread(_send_forms, broker.endpoint)


def _send_forms(endpoint: str) -> None:
    almost = (b"a=" + b"%41" * (FORM_SIZE // 3))[: FORM_SIZE - 1]
    with console_process(endpoint) as (address, pid), httpx.Client(base_url=address, timeout=120) as browser:
        token = re.findall(r'name="form_token" value="([0-9a-f]+)"', browser.get("/topics").text)[0]
        base = peak_memory(pid)
        with connected(address, 40) as attackers, connected(address, 1) as [last]:
            for each in attackers:
                each.sendall(form(FORM_SIZE))
            while sum(map(is_answered, attackers)) < 38:
                time.sleep(0.01)
            reading = [each for each in attackers if not is_answered(each)]
            refused = [each for each in attackers if each not in reading]
            assert len(reading) == 2
            assert {status_of(each) for each in refused} == {503}
            last.sendall(form((16 << 20) - 2 * FORM_SIZE))
            for each in attackers:
                with suppress(ConnectionError) if each in refused else nullcontext():  # it may be closed by now
                    each.sendall(almost)
            answer = browser.post("/topics", data={"form_token": token, "name": "orders", "queue_count": "1"})
            assert answer.status_code == 303, answer.text
            for each in reading:
                each.sendall(b"x")
            assert {status_of(each) for each in reading} == {400}  # the token is missing
        assert peak_memory(pid) - base < 128 << 20
        large = {"form_token": token, "name": "x" * FORM_SIZE}
        assert browser.post("/topics", data=large).status_code == 400  # there is room again, and the broker refuses it


@pytest.mark.parametrize(("path", "status"), [("/topics", 303), ("/login", 413), ("/logout", 413)])
async def test_nothing_large_is_read_without_a_session(path: str, status: int, tmp_path: Path) -> None:
    """Who is not signed in may send the small form of the login; others are answered before they arrive."""
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    async with (
        in_process_broker(tmp_path / "store", auth=AuthConfig(accounts=accounts)) as broker,
        served(ConsoleSettings(endpoint=broker.endpoint, timeout_seconds=20)) as address,
    ):
        to = urlsplit(address)
        reader, writer = await asyncio.open_connection(to.hostname, to.port)
        writer.write(form(FORM_SIZE, path))
        assert int((await asyncio.wait_for(reader.readline(), 120)).split()[1]) == status
        writer.close()


@pytest.mark.parametrize("piece", [5, 16 << 10])
async def test_a_form_is_read_in_pieces(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the result of the standard library, which reads all at once and takes a hundred times its size."""
    monkeypatch.setattr(forms, "_PIECE_SIZE", piece)
    random = Random(1)
    for _ in range(500):
        sent = "".join(random.choices("ab%+&=;", k=random.randrange(40)) + random.choices(["%41", "%C3%A4", "%2"], k=3))

        async def receive(sent: str = sent) -> Message:
            return {"type": "http.request", "body": sent.encode(), "more_body": False}

        kind = (b"content-type", b"application/x-www-form-urlencoded")
        fields = await forms.read_form(Request({"type": "http", "headers": [kind]}, receive))
        assert fields.multi_items() == parse_qsl(sent, keep_blank_values=True)


async def test_a_form_says_its_length(tmp_path: Path) -> None:
    """Without it nobody knows what room it needs."""
    kind = {"content-type": "application/x-www-form-urlencoded"}

    async def parts() -> AsyncIterator[bytes]:
        yield b"a=b"

    async with (
        in_process_broker(tmp_path / "store") as broker,
        served(ConsoleSettings(endpoint=broker.endpoint)) as address,
        httpx.AsyncClient(base_url=address, timeout=120) as browser,
    ):
        assert (await browser.post("/topics", content=parts(), headers=kind)).status_code == 411
