"""What protects the console and its visitors: login, sessions, forms, names, headers; and what a broker refuses."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from aerobee_broker.config import AuthConfig
from aerobee_broker.console import sessions
from aerobee_broker.console.notes import Note, opened
from aerobee_broker.console.sessions import Sessions
from aerobee_broker.console.settings import ConsoleError, ConsoleSettings
from aerobee_client import Client, Credentials, Message, Tls, connect
from tests.console.support import ACCOUNTS, Visitor, text_of, visiting
from tests.support.in_process_broker import in_process_broker

pytestmark = pytest.mark.timeout(300)
OPERATOR = Credentials("operator", "the operator's secret")


@asynccontextmanager
async def guarded(directory: Path, **settings: Any) -> AsyncIterator[tuple[Visitor, Client]]:
    """A visitor of the console of a broker with accounts, and its operator."""
    accounts = directory / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    async with (
        in_process_broker(directory / "store", auth=AuthConfig(accounts=accounts)) as broker,
        connect(broker.endpoint, credentials=OPERATOR) as operator,
        visiting(broker.endpoint, **settings) as visitor,
    ):
        await operator.admin.create_topic("orders", queue_count=1)
        await operator.admin.create_group("billing")
        yield visitor, operator


async def test_a_page_leads_through_the_login_and_back(tmp_path: Path) -> None:
    """Somebody who is not signed in gets the form, and then the page that was asked for."""
    async with guarded(tmp_path) as (visitor, _):
        page = await visitor.get("/topics?q=ord&sort=messages")
        assert page.url.path == "/login"
        assert "orders" not in page.text
        fields = {"access_key": "operator", "secret_key": OPERATOR.secret_key, "next": page.url.params["next"]}
        page = await visitor.post("/login", fields)
        assert (page.url.path, dict(page.url.params)) == ("/topics", {"q": "ord", "sort": "messages"})
        assert "orders" in page.text


@pytest.mark.parametrize("next_", ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:x"])
async def test_the_login_leads_to_no_other_site(tmp_path: Path, next_: str) -> None:
    """Whatever the address of the form says."""
    async with guarded(tmp_path, follow=False) as (visitor, _):
        await visitor.get("/login")
        fields = {"access_key": "operator", "secret_key": OPERATOR.secret_key, "next": next_}
        answer = await visitor.post("/login", fields)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_wrong_keys_begin_no_session_and_are_in_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The form comes back without the secret; after ten failures it has to wait."""
    caplog.set_level(logging.DEBUG)
    async with guarded(tmp_path) as (visitor, _):
        await visitor.get("/login")
        for account in ("operator", "nobody"):
            page = await visitor.post("/login", {"access_key": account, "secret_key": "not-the-secret"})
            assert page.status_code == 400
            assert "the broker does not know this access key, or the secret key is another" in text_of(page)
            assert "not-the-secret" not in page.text
        for _ in range(sessions.FAILURES_MAX - 2):
            await visitor.post("/login", {"access_key": "operator", "secret_key": "not-the-secret"})
        page = await visitor.post("/login", {"access_key": "operator", "secret_key": OPERATOR.secret_key})
        assert page.status_code == 429
        assert (await visitor.get("/")).url.path == "/login"
    assert "not-the-secret" not in caplog.text
    assert OPERATOR.secret_key not in caplog.text


async def test_signing_out_ends_the_session(tmp_path: Path) -> None:
    """Also for somebody who has copied the cookie."""
    async with guarded(tmp_path) as (visitor, _):
        await visitor.sign_in("operator")
        cookies = dict(visitor.client.cookies)
        assert (await visitor.get("/")).url.path == "/"
        await visitor.post("/logout")
        visitor.client.cookies.update(cookies)
        assert (await visitor.get("/")).url.path == "/login"


async def test_a_login_never_uses_a_number_that_was_known_before(tmp_path: Path) -> None:
    """A cookie that somebody else has planted does not become a session."""
    async with guarded(tmp_path) as (visitor, _):
        await visitor.get("/login")
        before = set(visitor.client.cookies.values())
        await visitor.sign_in("operator")
        assert before.isdisjoint(visitor.client.cookies.values())


async def test_a_key_that_changes_ends_the_session(tmp_path: Path) -> None:
    """The broker refuses the calls, so the login comes again."""
    async with guarded(tmp_path) as (visitor, _):
        await visitor.sign_in("shop")
        (tmp_path / "accounts.toml").write_text(ACCOUNTS.replace("the shop's secret", "another secret"))
        async with asyncio.timeout(60):
            while (page := await visitor.get("/me")).url.path != "/login":  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.05)  # the broker looks at the file every second
        assert "The broker no longer accepts this account. Sign in again." in text_of(page)


async def test_a_viewer_sees_everything_and_changes_nothing(tmp_path: Path) -> None:
    """Forms are not shown, and the broker refuses a form that is sent nevertheless."""
    async with guarded(tmp_path) as (visitor, operator):
        await visitor.sign_in("viewer")
        opened = pages_of(await visitor.get("/"))
        assert {"/topics", "/dead-letters", "/transactions", "/settings"} < set(opened)
        assert not {"/accounts", "/changes"} & set(opened)
        for address in (*opened, "/topics/orders", "/groups/billing"):
            page = await visitor.get(address)
            assert page.status_code == 200, address
            assert '<form method="post" action="/logout"' in page.text
            assert page.text.count('method="post"') == 1, address
        for address in ("/accounts", "/changes"):
            assert (await visitor.get(address)).status_code == 403
        page = await visitor.post("/topics/orders/delete", {"confirm": "orders"})
        assert page.status_code == 403
        assert "needs an account with admin = true" in text_of(page)
        assert [each.name for each in await operator.admin.list_topics()] == ["orders"]


async def test_an_account_of_a_program_sees_its_own(tmp_path: Path) -> None:
    """The first page lists its rights, with links; other pages say that it may not."""
    async with guarded(tmp_path) as (visitor, _):
        await visitor.sign_in("shop")
        page = await visitor.get("/")
        assert 'href="/topics/orders"' in page.text
        assert 'href="/groups/billing"' in page.text
        assert (await visitor.get("/topics/orders")).status_code == 200
        assert (await visitor.get("/groups/billing")).status_code == 200
        assert pages_of(page) == ["/"]
        page = await visitor.get("/topics")
        assert page.status_code == 403
        assert "Not permitted" in text_of(page)


def pages_of(page: httpx.Response) -> list[str]:
    """The addresses in the navigation of a page."""
    return re.findall(r'<li><a href="([^"]+)"', page.text.partition("</nav>")[0])


async def test_forms_of_other_sites_do_nothing(tmp_path: Path) -> None:
    """Without the token, with that of somebody else, or when the browser says that another site sent them."""
    async with guarded(tmp_path) as (visitor, operator):
        await visitor.sign_in("operator")
        await visitor.get("/topics")
        refused: list[tuple[dict[str, str], dict[str, str]]] = [
            ({"form_token": ""}, {}),
            ({"form_token": "0" * 64}, {}),
            ({}, {"sec-fetch-site": "cross-site"}),
            ({}, {"sec-fetch-site": "same-site"}),
            ({}, {"origin": "http://evil.example"}),
            ({}, {"origin": "http://127.0.0.1:9999"}),
        ]
        for fields, headers in refused:
            page = await visitor.post("/topics", {"name": "stolen", **fields}, headers=headers)
            assert page.status_code == 400, (fields, headers)
        assert [each.name for each in await operator.admin.list_topics()] == ["orders"]
        page = await visitor.post("/topics", {"name": "mine"}, headers={"origin": "http://127.0.0.1:8090"})
        assert "Topic mine was created." in text_of(page)


async def test_read_only_refuses_administrators_too(tmp_path: Path) -> None:
    """No form is shown, and none is obeyed."""
    async with guarded(tmp_path, read_only=True) as (visitor, operator):
        await visitor.sign_in("operator")
        page = await visitor.get("/topics")
        assert page.text.count('method="post"') == 1
        page = await visitor.post("/topics", {"name": "more"})
        assert "started with --read-only" in text_of(page)
        assert [each.name for each in await operator.admin.list_topics()] == ["orders"]


async def test_every_answer_has_the_headers(tmp_path: Path) -> None:
    """Pages, files, errors and redirections."""
    async with guarded(tmp_path, follow=False) as (visitor, _):
        page = await visitor.get("/login")
        style = page.text.partition('rel="stylesheet" href="')[2].partition('"')[0]
        for address, status in (("/login", 200), (style, 200), ("/", 303), ("/static/none", 303)):
            answer = await visitor.get(address)
            assert answer.status_code == status
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "same-origin"
        assert page.headers["cache-control"] == "no-store"
        cookie = page.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert "<script>" not in page.text
        assert " style=" not in page.text


async def test_the_console_answers_under_its_own_names_only(tmp_path: Path) -> None:
    """A name of somebody else that points here is refused."""
    async with guarded(tmp_path, url="https://ops.example/aerobee", follow=False) as (visitor, _):
        for host, status in (
            ("127.0.0.1:8090", 200), ("localhost", 200), ("[::1]:8090", 200), ("ops.example", 200),
            ("evil.example", 421), ("127.0.0.1.evil.example", 421), ("", 421), ("[::1", 421),
        ):  # fmt: skip
            assert (await visitor.get("/healthz", headers={"host": host})).status_code == status, host


async def test_a_base_path_is_before_every_address(tmp_path: Path) -> None:
    """Whether the proxy removes it or not; the cookie is for HTTPS then."""
    async with guarded(tmp_path, url="https://ops.example/aerobee", follow=False) as (visitor, _):
        answer = await visitor.get("/topics")
        assert answer.headers["location"] == "/aerobee/login?next=%2Faerobee%2Ftopics"
        page = await visitor.get("/aerobee/login")
        assert 'action="/aerobee/login"' in page.text
        assert "Secure" in page.headers["set-cookie"]
        assert "Path=/aerobee" in page.headers["set-cookie"]
        style = page.text.partition('rel="stylesheet" href="')[2].partition('"')[0]
        assert style.startswith("/aerobee/static/")
        assert (await visitor.get(style)).status_code == 200
        assert (await visitor.get(style.removeprefix("/aerobee"))).status_code == 200


async def test_nobody_uses_the_certificate_of_the_console(tmp_path: Path) -> None:
    """A call without a signature would be one of the certificate's account, so everybody has to sign in."""
    for name in ("certificate", "key"):
        (tmp_path / name).write_text("read when the first call is made")
    tls = Tls(certificate=tmp_path / "certificate", key=tmp_path / "key")
    async with visiting("127.0.0.1:1", tls=tls) as visitor:
        for address in ("/", "/topics", "/topics/orders/0/0/body"):
            assert (await visitor.get(address)).url.path == "/login"
        answer = await visitor.post("/topics", {"name": "mine"})
        assert answer.url.path == "/login"


async def test_markup_in_messages_and_names_is_text(tmp_path: Path) -> None:
    """In lists, on the page of a message and in a search."""
    async with guarded(tmp_path) as (visitor, operator):
        await visitor.sign_in("operator")
        evil = "<script>alert(1)</script>"
        message = Message(topic="orders", body=evil.encode(), tag="<b>", keys=("<i>",), properties={"p": evil})
        await operator.producer().send(message)
        for address in ("/topics/orders/messages", "/topics/orders/0/0", f"/search?q={evil}", f"/topics?q={evil}"):
            page = await visitor.get(address)
            assert page.status_code == 200
            for markup in (evil, "<b>alert", "<i>"):
                assert markup not in page.text, address
            assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text, address


async def test_a_large_form_is_refused(tmp_path: Path) -> None:
    """And one with too many fields, or of another kind."""
    async with guarded(tmp_path) as (visitor, _):
        await visitor.sign_in("operator")
        page = await visitor.post("/topics", {"name": "x" * (15 << 20)})
        assert "the form has more than 14.0 MiB" in text_of(page)
        assert page.status_code == 413
        page = await visitor.post("/topics", {f"f{number}": "x" for number in range(5000)})
        assert "more than 4,096 fields" in text_of(page)
        page = await visitor.get("/topics")
        answer = await visitor.client.post("/topics", json={"form_token": visitor.token, "name": "x"})
        assert answer.status_code == 400


async def test_sessions_have_limits() -> None:
    """Their number, that of one account, and their time."""
    now = 0.0
    known = Sessions(lambda credentials: connect("127.0.0.1:1", credentials=credentials), lambda: now)

    async def begin(account: str) -> str:
        return (await known.begin(account, known.dial(Credentials(account, "secret")))).token

    first = await begin("ada")
    for _ in range(sessions.COUNT_PER_ACCOUNT_MAX):
        await begin("ada")
    assert len(known) == sessions.COUNT_PER_ACCOUNT_MAX
    assert await known.find(first) is None
    for number in range(sessions.COUNT_MAX):
        token = await begin(f"account-{number}")
    assert len(known) == sessions.COUNT_MAX
    now += sessions.IDLE_SECONDS - 1
    assert await known.find(token) is not None
    now += 1
    assert await known.find(token) is not None
    assert len(known) == 1
    while now + sessions.IDLE_SECONDS - 1 < sessions.SECONDS_MAX:  # it is used often enough, and over nevertheless
        now += sessions.IDLE_SECONDS - 1
        assert await known.find(token) is not None
    now += sessions.IDLE_SECONDS - 1
    assert await known.find(token) is None
    await known.close()


def test_failed_logins_are_forgotten_after_a_minute() -> None:
    """And counted for each address alone."""
    now = 0.0
    known = Sessions(lambda credentials: connect("127.0.0.1:1", credentials=credentials), lambda: now)
    for _ in range(sessions.FAILURES_MAX):
        assert known.may_try("10.0.0.1")
        known.failed("10.0.0.1")
    assert not known.may_try("10.0.0.1")
    assert known.may_try("10.0.0.2")
    now += sessions.FAILURE_SECONDS
    assert known.may_try("10.0.0.1")


def test_a_note_is_ours() -> None:
    """Nobody else can make the console say something."""
    note = Note("Topic x was deleted.")
    assert opened(b"key", note.sealed(b"key")) == note
    assert opened(b"other", note.sealed(b"key")) is None
    assert opened(b"key", "bm90aGluZw==.") is None
    assert opened(b"key", "") is None


@pytest.mark.parametrize("url", ["ops.example", "ftp://ops.example", "https://", "https://ops.example/?a"])
def test_a_wrong_url_stops_the_start(url: str) -> None:
    """With the next step."""
    with pytest.raises(ConsoleError, match="is not an address; give one such as"):
        ConsoleSettings(endpoint="127.0.0.1:8081", url=url)
