"""Accounts: the file, the signature, and reloading of the file."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee_broker.clients import accounts as accounts_module
from aerobee_broker.clients.accounts import Account, Accounts, Names, Right, load_accounts, signature_of
from aerobee_broker.clients.registry import Client
from aerobee_broker.errors import ForbiddenError, UnauthorizedError
from aerobee_client import Credentials
from aerobee_store.errors import ConfigError
from tests.support.accounts_file import write_accounts

DATE = "20250102T030405Z"
FILE = """
[accounts.shop]
secret_key = "mySecret"
publish = ["orders", "audit-*"]
consume = ["orders"]
groups = ["shop-*", "eu%billing"]

[accounts.operator]
secret_key = "another secret"
admin = true
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_accounts(tmp_path / "accounts.toml", FILE)


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def header(credential: str = "shop", signature: str | None = None, date: str = DATE) -> str:
    signature = signature_of(b"mySecret", date) if signature is None else signature
    return f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time, Signature={signature}"


@pytest.mark.parametrize(
    ("authorization", "date"),
    [
        (None, DATE),
        (header(), None),
        (header(), ""),
        (header(date=""), ""),
        (header(), DATE.encode()),
        (header(), "20250102T030406Z"),
        (header(signature="00" * 20), DATE),
        (header(signature=""), DATE),
        (header("operator"), DATE),
        (header("nobody"), DATE),
        (header("nobody", signature_of(b"nobody's", DATE)), DATE),
        (header(""), DATE),
        (header(signature="ü"), DATE),
        ("", DATE),
        ("nonsense", DATE),
        ("MQv2-HMAC-SHA1 =,=,,=", DATE),
        (b"\x00\xff", DATE),
    ],
)
def test_other_signatures_are_refused(file: Path, authorization: str | bytes | None, date: str | bytes | None) -> None:
    """A missing, malformed or wrong signature is refused, and so is an unknown account, also when repeated."""
    accounts = Accounts(file)
    accounts.of_call(header(), DATE)
    for _ in range(2):
        with pytest.raises(UnauthorizedError):
            accounts.of_call(authorization, date)


@pytest.mark.parametrize(
    ("access_key", "secret_key", "signed"),
    [
        ("shop", b"anotherSecret", b"content"),
        ("shop", b"mySecret", b"content of another request"),
        ("nobody", b"mySecret", b"content"),
        ("nobody", b"nobody's", b"content"),
    ],
)
def test_other_signatures_of_content_are_refused(file: Path, access_key: str, secret_key: bytes, signed: bytes) -> None:
    """Of another secret key, of another content, and of an unknown account."""
    accounts = Accounts(file)
    assert accounts.of_content("shop", _of_secret(b"mySecret", b"content"), b"content").access_key == "shop"
    with pytest.raises(UnauthorizedError):
        accounts.of_content(access_key, _of_secret(secret_key, signed), b"content")


def _of_secret(secret_key: bytes, content: bytes) -> str:
    return base64.b64encode(hmac.new(secret_key, content, hashlib.sha1).digest()).decode()


def test_a_certificate_belongs_to_one_account(file: Path) -> None:
    """An account is found by the whole subject. A signature takes precedence. Without a secret key, none is valid."""
    write_accounts(
        file, "[accounts.a]\ncertificate = 'CN=a'\n[accounts.b]\nsecret_key = 'mySecret'\ncertificate = 'CN=b,O=x'"
    )
    accounts = Accounts(file)
    assert accounts.of_call(None, None, "CN=a").access_key == "a"
    assert accounts.of_call(None, DATE, "CN=b,O=x").access_key == "b"
    signed = header("b", signature_of(b"mySecret", DATE))
    assert accounts.of_call(signed, DATE, "CN=a").access_key == "b"
    for authorization, date, subject in (
        (None, None, "CN=b"),
        (None, None, "CN=A"),
        ("", DATE, "CN=a"),
        (header("a", signature_of(b"", DATE)), DATE, "CN=a"),
        (header("a", signature_of(b"nobody's", DATE)), DATE, "CN=a"),
        (header("a", signature_of(b"None", DATE)), DATE, None),
    ):
        with pytest.raises(UnauthorizedError):
            accounts.of_call(authorization, date, subject)
    for key in (b"", b"nobody's"):
        signature = base64.b64encode(hmac.new(key, b"content", hashlib.sha1).digest()).decode()
        with pytest.raises(UnauthorizedError):
            accounts.of_content("a", signature, b"content")


def test_an_account_with_another_certificate_is_not_the_same(file: Path) -> None:
    """A client with the old certificate loses its access."""
    write_accounts(file, "[accounts.a]\ncertificate = 'CN=a'")
    clock = Clock()
    accounts = Accounts(file, monotonic=clock)
    known = accounts.of_call(None, None, "CN=a")
    assert accounts.still_good(known)
    write_accounts(file, "[accounts.a]\ncertificate = 'CN=other'")
    clock.now += 1.5
    with pytest.raises(UnauthorizedError, match="no account has the certificate 'CN=a'"):
        accounts.of_call(None, None, "CN=a")
    assert not accounts.still_good(known)


def test_the_signature_of_our_client_is_accepted(file: Path) -> None:
    """The signature that aerobee_client sends is accepted."""
    headers = dict(Credentials("shop", "mySecret").headers())
    assert Accounts(file).of_call(headers["authorization"], headers["x-mq-date-time"]).access_key == "shop"


def test_permissions_of_an_account(file: Path) -> None:
    """An account may do what its lists allow, and read its groups' dead letters. An administrator may do everything."""
    accounts = load_accounts(file)
    shop, operator = accounts["shop"], accounts["operator"]
    for account in (shop, operator):
        account.require(Right.PUBLISH, "orders")
        account.require(Right.PUBLISH, "audit-2025")
        account.require(Right.CONSUME, "orders")
        account.require(Right.CONSUME, "%DLQ%shop-billing")
        account.require(Right.USE, "audit-2025")
        account.require(Right.GROUP, "shop-billing")
        account.require(Right.GROUP, "eu%billing")
    deeds: list[Callable[[Account], None]] = [
        lambda account: account.require(Right.PUBLISH, "orders2"),
        lambda account: account.require(Right.PUBLISH, "eu%orders"),
        lambda account: account.require(Right.PUBLISH, "%DLQ%shop-billing"),
        lambda account: account.require(Right.CONSUME, "audit-2025"),
        lambda account: account.require(Right.CONSUME, "%DLQ%billing"),
        lambda account: account.require(Right.USE, "invoices"),
        lambda account: account.require(Right.GROUP, "billing"),
        lambda account: account.require(Right.GROUP, "shop"),
        lambda account: account.require(Right.ADMIN, "DeleteTopic"),
    ]
    for deed in deeds:
        deed(operator)
        with pytest.raises(ForbiddenError, match="'shop'"):
            deed(shop)


def test_only_the_star_is_special_in_patterns() -> None:
    """Only `*` is special in a pattern."""
    names = Names(("a*c", "%DLQ%*", "x|y"))
    assert [name in names for name in ("ac", "abc", "abcd", "%DLQ%g", "x|y", "x", "y", "")] == [
        *(True, True, False, True, True),
        *(False, False, False),
    ]
    assert "anything" not in Names(())
    assert "anything" in Names(("*",))


def test_a_changed_file_is_read_at_the_next_check(file: Path) -> None:
    """The file is read at most once a second. Listeners are called, and a client of a changed account is invalid."""
    clock = Clock()
    accounts = Accounts(file, monotonic=clock)
    heard: list[str] = []
    accounts.changed_listeners.append(lambda: heard.append("changed"))
    client = Client("a")
    client.account = accounts.of_call(header(), DATE)
    assert accounts.still_good(client.account)
    write_accounts(file, FILE.replace("mySecret", "yourSecret"))
    accounts.of_call(header(), DATE)
    clock.now += 1.5
    with pytest.raises(UnauthorizedError):
        accounts.of_call(header(), DATE)
    assert heard == ["changed"]
    assert not accounts.still_good(client.account)
    assert accounts.of_call(header(signature=signature_of(b"yourSecret", DATE)), DATE).access_key == "shop"
    clock.now += 1.5
    accounts.of_call(header(signature=signature_of(b"yourSecret", DATE)), DATE)
    assert heard == ["changed"], "it has not changed again"


def _of_call(accounts: Accounts) -> Account:
    return accounts.of_call(header(), DATE)


def _of_content(accounts: Accounts) -> Account:
    return accounts.of_content("shop", _of_secret(b"mySecret", b"content"), b"content")


@pytest.mark.parametrize("entrance", [_of_call, _of_content, None], ids=["call", "content", "stream"])
@pytest.mark.parametrize(
    ("before", "after"), [("mySecret", "yourSecret"), ("accounts.shop", "accounts.store")], ids=["other key", "removed"]
)
def test_every_entrance_looks_at_the_file(
    file: Path, entrance: Callable[[Accounts], Account] | None, before: str, after: str
) -> None:
    """Credentials that have changed end with the next call; a stream asks for its account again."""
    clock = Clock()
    accounts = Accounts(file, monotonic=clock)
    known = _of_call(accounts)
    ask = entrance or (lambda accounts: accounts.now(known))
    assert ask(accounts) == known
    write_accounts(file, FILE.replace(before, after))
    clock.now += 1.5
    with pytest.raises(
        UnauthorizedError, match="check both" if entrance else "'shop' of this call was removed, or has"
    ):
        ask(accounts)


def test_a_stream_has_the_rights_of_now(file: Path) -> None:
    clock = Clock()
    accounts = Accounts(file, monotonic=clock)
    known = _of_call(accounts)
    write_accounts(file, FILE.replace('publish = ["orders", "audit-*"]', "publish = []"))
    clock.now += 1.5
    assert known.may(Right.PUBLISH, "orders")
    assert not accounts.now(known).may(Right.PUBLISH, "orders")


def test_long_signatures_are_not_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client could fill the memory with them; each is verified anew."""
    accounts, verified = Accounts(file), list[int]()

    def verify(secret_key: bytes, date: str) -> str:
        verified.append(len(date))
        return signature_of(secret_key, date)

    monkeypatch.setattr(accounts_module, "signature_of", verify)
    longest = 512 - len(header(date="x"))
    for size in (longest, longest + 1):
        for _ in range(3):
            accounts.of_call(header(date="x" * size), "x" * size)
    assert verified == [longest, *[longest + 1] * 3]


def test_empty_credentials_are_named(file: Path) -> None:
    with pytest.raises(UnauthorizedError, match="the credentials are empty"):
        Accounts(file).of_call(header(""), DATE)


@pytest.mark.parametrize("broken", ["[accounts", "", None])
def test_an_invalid_file_changes_nothing(file: Path, caplog: pytest.LogCaptureFixture, broken: str | None) -> None:
    """If the file is malformed, empty or missing, the accounts stay and one error is logged."""
    clock = Clock()
    accounts = Accounts(file, monotonic=clock)
    if broken is None:
        file.unlink()
    else:
        write_accounts(file, broken)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            clock.now += 1.5
            assert accounts.of_call(header(), DATE).access_key == "shop"
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == ["accounts not reloaded"]


def test_json_and_secrets_in_files(tmp_path: Path) -> None:
    """The file may be JSON. A secret key may be in its own file, without its line end."""
    (tmp_path / "key").write_text("mySecret\n")
    text = f'{{"accounts": {{"shop": {{"secret_key_file": "{tmp_path / "key"}", "consume": ["*"]}}}}}}'
    account = load_accounts(write_accounts(tmp_path / "accounts.json", text))["shop"]
    assert account.secret_key == b"mySecret"
    assert "mySecret" not in repr(account)
    account.require(Right.CONSUME, "anything")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", r"expected only accounts"),
        ("[accounts]", r"expected only accounts"),
        ("[accounts.a]\nsecret_key = 'longer than eight'\n[more]", r"expected only accounts"),
        ("[accounts.a]", r"a: set either secret_key or secret_key_file"),
        ("[accounts.a]\nsecret_key = 'short'", r"8 characters or more"),
        ("[accounts.a]\nsecret_key = 12345678", r"8 characters or more"),
        ("[accounts.a]\nsecret_key_file = '/nothing'", r"a\.secret_key_file: '/nothing' cannot be read"),
        ("[accounts.a]\nsecret_key_file = 3", r"cannot be read"),
        ("[accounts.a]\nsecret_key = 'mySecret'\npublishes = []", r"a\.publishes: unknown setting"),
        ("[accounts.a]\nsecret_key = 'mySecret'\npublish = 'orders'", r"a\.publish: expected a list"),
        ("[accounts.a]\nsecret_key = 'mySecret'\ngroups = ['a.b']", r"a\.groups: expected a list"),
        ("[accounts.a]\nsecret_key = 'mySecret'\nadmin = 'yes'", r"a\.admin: 'yes' is neither"),
        ("[accounts.a]\ncertificate = 'shop'", r"a\.certificate: 'shop' is not the subject"),
        ("[accounts.a]\ncertificate = 3", r"a\.certificate: 3 is not the subject"),
        (
            "[accounts.a]\ncertificate = 'CN=x'\n[accounts.b]\ncertificate = 'CN=x'",
            r"a and b have the same certificate",
        ),
        ("[accounts.'a b']\nsecret_key = 'mySecret'", r"a b: an access key must have"),
        ("accounts.a = 3", r"a: not a table"),
    ],
)
def test_errors_of_a_file_name_path_and_account(tmp_path: Path, text: str, cause: str) -> None:
    """The error has the path and the account, and never a secret key."""
    file = write_accounts(tmp_path / "accounts.toml", text)
    with pytest.raises(ConfigError, match=cause) as caught:
        load_accounts(file)
    assert str(file) in str(caught.value)
    assert "short" not in str(caught.value)


def test_a_file_readable_by_others_is_warned_about(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning names the command that helps. Files that only the group may read are accepted."""
    for mode in (0o600, 0o640):
        file.chmod(mode)
        load_accounts(file)
    assert caplog.records == []
    file.chmod(0o644)
    load_accounts(file)
    assert "chmod 600" in caplog.text
