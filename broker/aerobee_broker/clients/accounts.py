"""Authentication: accounts from a file, and the signature or certificate that proves the account of a call.

    [accounts.shop]                       # the access key
    secret_key = "..."                    # or secret_key_file = "/run/secrets/shop"
    publish = ["orders", "audit-*"]       # topics to send to; * stands for any characters
    consume = ["orders"]                  # topics to receive from and to query
    groups = ["shop-*"]                   # consumer groups for receiving, with their dead letters
    producer_groups = ["shop-*"]          # of clients of RocketMQ 4. Without this setting an account that publishes
                                          # may use every producer group that is in no account's setting

    [accounts.operator]
    secret_key = "..."
    admin = true                          # everything

    [accounts.dashboard]
    secret_key = "..."
    view = true                           # sees everything but messages, and changes nothing

    [accounts.billing]
    certificate = "CN=billing,O=Example"  # the subject of a client's certificate, with or instead of a secret key

Names in a namespace are `namespace%name`. A file with the suffix .json contains JSON of the same structure.

Calls are signed like those of RocketMQ's clients: HMAC-SHA1, keyed with the secret key, of the text of the header
`x-mq-date-time`. The text is not read as a time, because most clients send local time and call it UTC. A signature can
be replayed by anyone who sees it, so without TLS credentials protect little on a network with eavesdroppers.

A call without these headers belongs to the account with the subject of the client's certificate, which TLS has verified
(`tls.client_authorities`).
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import json
import logging
import re
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from aerobee_broker.errors import ForbiddenError, UnauthorizedError
from aerobee_broker.recent import Recent
from aerobee_store.errors import ConfigError
from aerobee_store.records.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX

_log = logging.getLogger(__name__)

_ACCESS_KEY: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")  # nothing with a meaning in the header
_PATTERN: Final = re.compile(r"[%|a-zA-Z0-9_*-]{1,255}")
_SUBJECT: Final = re.compile(r"[A-Za-z]+=[^ ]")
_NAMES_MAX: Final = 10_000  # cached answers of a set of patterns
_SIGNATURES_MAX: Final = 10_000  # recent signatures; a client makes a new one every second
_SIGNATURE_LENGTH_MAX: Final = 512  # cached characters of both headers; the official clients have 200
_LOOK_SECONDS: Final = 1.0  # interval of checking the file, while there are calls
_OF_GROUP: Final = (DEAD_LETTER_PREFIX, RETRY_PREFIX)


class Names:
    """A set of names, given by patterns. Caches its answers."""

    __slots__ = ("_expression", "_known", "patterns")

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.patterns = patterns
        parts = [".*".join(re.escape(part) for part in pattern.split("*")) for pattern in patterns]
        self._expression = re.compile("|".join(parts)) if parts else None
        self._known: Recent[str, bool] = Recent(_NAMES_MAX)

    def __contains__(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._expression is not None and bool(self._expression.fullmatch(name))
        return known


class Right(enum.Enum):
    """What an account may do. The value describes the deed, with the setting that allows it; see permissions.py."""

    PUBLISH = ("send to topic", "publish")
    CONSUME = ("receive from topic", "consume")
    USE = ("use topic", "publish or consume")
    GROUP = ("be a consumer of group", "groups")
    PRODUCER_GROUP = ("be a producer of group", "producer_groups")
    CLIENT_ID = ("use the client id", "")
    READ_MESSAGE = ("read the message", "consume")
    DECIDE_MESSAGE = ("decide the transaction", "publish")
    ADMIN = ("be an administrator", "admin")
    CLUSTER = ("be a broker of the cluster", "admin")
    VIEW = ("see the state of the broker", "view")
    VIEW_TOPIC = ("see topic", "publish or consume")
    VIEW_GROUP = ("see group", "groups")


class _NamesOfNobody:
    """The names that are in no account's setting."""

    patterns = ()

    def __init__(self, claimed: Names) -> None:
        self._claimed = claimed

    def __contains__(self, name: str) -> bool:
        return name not in self._claimed


@dataclass(frozen=True, slots=True)
class Account:
    """The account of an access key. Topics and groups are stored names."""

    access_key: str
    secret_key: bytes | None = field(repr=False)  # None: the account signs nothing, its certificate is sufficient
    admin: bool = False
    publish: Names = field(default_factory=lambda: Names(()))
    consume: Names = field(default_factory=lambda: Names(()))
    groups: Names = field(default_factory=lambda: Names(()))
    certificate: str | None = None  # subject of the certificate of its clients, in RFC 2253's form
    producer_groups: Names | _NamesOfNobody = field(default_factory=lambda: Names(()))
    cluster: bool = False  # a broker or a name server of this cluster
    view: bool = False  # sees everything but the bodies of messages, and changes nothing

    def require(self, right: Right, name: str) -> None:
        """Raise ForbiddenError unless the account has the right for this topic, group or call.

        For READ_MESSAGE and DECIDE_MESSAGE the name is the topic of the message, empty if there is no message.
        """
        if self.may(right, name):
            return
        if right is Right.ADMIN or right is Right.CLUSTER:
            raise ForbiddenError(f"{name} needs an account with admin = true; {self.access_key!r} has admin = false")
        if right is Right.VIEW:
            raise ForbiddenError(
                f"{name} needs an account with view = true or admin = true; {self.access_key!r} has neither"
            )
        deed, setting = right.value
        if right is Right.READ_MESSAGE or right is Right.DECIDE_MESSAGE:
            raise ForbiddenError(
                f"account {self.access_key!r} may not {deed} at this offset: there is none, or its topic is not in "
                f"the account's {setting}"
            )
        raise ForbiddenError(
            f"account {self.access_key!r} may not {deed} {name!r}; ask an operator to add the name to its {setting}"
        )

    def may(self, right: Right, name: str) -> bool:
        """Whether the account has the right."""
        if self.admin:
            return True
        match right:
            case Right.PUBLISH:
                return name in self.publish
            case Right.CONSUME:
                return name in self.consume or self._of_own_group(name)
            case Right.USE:
                return self.cluster or name in self.publish or name in self.consume or self._of_own_group(name)
            case Right.GROUP:
                return name in self.groups
            case Right.PRODUCER_GROUP:
                return name in self.producer_groups
            case Right.READ_MESSAGE:
                return self.cluster or (bool(name) and (name in self.consume or self._of_own_group(name)))
            case Right.DECIDE_MESSAGE:
                return bool(name) and name in self.publish
            case Right.CLUSTER:
                return self.cluster
            case Right.VIEW:
                return self.view
            case Right.VIEW_TOPIC:
                return self.view or self.may(Right.USE, name)
            case Right.VIEW_GROUP:
                return self.view or name in self.groups
            case _:
                return False

    def _of_own_group(self, topic: str) -> bool:
        return any(topic.startswith(prefix) and topic.removeprefix(prefix) in self.groups for prefix in _OF_GROUP)


class Accounts:
    """The accounts of a file, which is reloaded when it changes.

    An unusable file is logged, and the accounts stay unchanged. `changed_listeners` are called after a change.
    """

    def __init__(self, file: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Read the file. ConfigError with the account and the cause."""
        self._file = file
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._seen = self._stamp()
        self._accounts = load_accounts(file)
        self._by_certificate = _by_certificate(self._accounts)
        # Valid signatures: (authorization, date) -> account. A client signs many calls alike.
        self._right: Recent[tuple[str, str], Account] = Recent(_SIGNATURES_MAX)
        self.changed_listeners: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._accounts)

    def may(self, access_key: str, right: Right, name: str) -> bool:
        """Whether an account has a right now; an account that was removed has none."""
        account = self._accounts.get(access_key)
        return account is not None and account.may(right, name)

    def all(self) -> list[Account]:
        """The accounts in order of access keys."""
        return [self._accounts[access_key] for access_key in sorted(self._accounts)]

    def still_good(self, known: Account | None) -> bool:
        """Whether an account from an earlier call still exists, with the same secret key and certificate."""
        account = self._accounts.get(known.access_key) if known is not None else None
        return (
            known is not None
            and account is not None
            and account.secret_key == known.secret_key
            and account.certificate == known.certificate
        )

    def now(self, known: Account) -> Account:
        """The account of an earlier call with its rights of now. UnauthorizedError if it was removed, or has other
        credentials. For a stream, which outlives the check of its call."""
        self._look()
        if not self.still_good(known):
            raise UnauthorizedError(
                f"the account {known.access_key!r} of this call was removed, or has other credentials; call again"
            )
        return self._accounts[known.access_key]

    def of_call(
        self, authorization: str | bytes | None, date_time: str | bytes | None, certificate_subject: str | None = None
    ) -> Account:
        """The account that signed a call, by its two headers; without them, the account of the client's certificate.
        UnauthorizedError."""
        self._look()
        if authorization is None and certificate_subject is not None:
            return self._of_certificate(certificate_subject)
        if not isinstance(authorization, str) or not isinstance(date_time, str) or not date_time:
            raise UnauthorizedError("this broker requires credentials; give the client an access key and a secret key")
        account = self._right.get((authorization, date_time))
        if account is None:
            account = self._verified(authorization, date_time)
            if len(authorization) + len(date_time) <= _SIGNATURE_LENGTH_MAX:
                self._right[authorization, date_time] = account
        return account

    def _of_certificate(self, subject: str) -> Account:
        account = self._by_certificate.get(subject)
        if account is None:
            raise UnauthorizedError(
                f"no account has the certificate {subject[:256]!r}; ask an operator to add it to an account, or "
                f"give the client an access key and a secret key"
            )
        return account

    def of_content(self, access_key: str, signature: str, content: bytes) -> Account:
        """The account that signed this content, as clients of RocketMQ 4 sign a request: base64 of the HMAC-SHA1.
        UnauthorizedError."""
        self._look()
        account = self._accounts.get(access_key)
        # Compute a digest for an unknown key too; the reason is below.
        secret_key = None if account is None else account.secret_key
        digest = hmac.new(secret_key or b"nobody's", content, hashlib.sha1).digest()
        is_equal = hmac.compare_digest(base64.b64encode(digest), signature.encode())
        if not is_equal or account is None or secret_key is None:
            raise UnauthorizedError(f"unknown access key or wrong secret key: {access_key[:128]!r}; check both")
        return account

    def _verified(self, authorization: str, date_time: str) -> Account:
        values = header_values(authorization)
        access_key, signature = values.get("Credential", "").partition("/")[0], values.get("Signature", "")
        if not access_key:
            raise UnauthorizedError("the credentials are empty; give the client an access key and a secret key")
        account = self._accounts.get(access_key)
        # The same work for an unknown key: the duration must not reveal which keys exist.
        secret_key = None if account is None else account.secret_key
        expected = signature_of(secret_key or b"nobody's", date_time)
        is_equal = hmac.compare_digest(expected.encode(), signature.lower().encode())
        if not is_equal or account is None or secret_key is None:
            raise UnauthorizedError(f"unknown access key or wrong secret key: {access_key[:128]!r}; check both")
        return account

    def _look(self) -> None:
        now = self._monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            accounts = load_accounts(self._file)
        except ConfigError as error:
            _log.error("accounts not reloaded, the previous ones stay in effect cause=%s", error)
            return
        self._accounts, self._by_certificate = accounts, _by_certificate(accounts)
        self._right.clear()
        _log.info("accounts reloaded file=%s count=%d", self._file, len(self._accounts))
        for listener in self.changed_listeners:
            listener()

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def header_values(authorization: str) -> dict[str, str]:
    """The pairs in `SCHEME key=value, key=value`."""
    pairs = (part.strip().partition("=") for part in authorization.partition(" ")[2].split(","))
    return {name: value for name, _, value in pairs}


def signature_of(secret_key: bytes, date_time: str) -> str:
    """The signature, in lower-case hex."""
    return hmac.new(secret_key, date_time.encode(), hashlib.sha1).hexdigest()


# --- The file -----------------------------------------------------------------------------------------------


def _check_certificates(file: Path, accounts: Iterable[Account]) -> None:
    owners: dict[str, str] = {}
    for account in accounts:
        if account.certificate is not None:
            owner = owners.setdefault(account.certificate, account.access_key)
            if owner != account.access_key:
                raise ConfigError(
                    f"auth.accounts: {file}: {owner} and {account.access_key} have the same certificate; "
                    "use each certificate for one account"
                )


def load_accounts(file: Path) -> dict[str, Account]:
    """The accounts by access key. ConfigError with the account and the cause."""
    try:
        text = file.read_bytes().decode()
        mode = file.stat().st_mode
        content = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"auth.accounts: {file}: {error.strerror}; check the path and its permissions") from None
    except ValueError as error:  # TOML, JSON and UTF-8 alike
        kind = file.suffix[1:] or "TOML"
        raise ConfigError(
            f"auth.accounts: {file}: not valid {kind}: {error}; correct it, or restore it from a backup"
        ) from None
    if mode & 0o007:  # group access may be intended, for example for a mounted secret
        _log.warning("every user of this machine can read the secret keys in %s; run chmod 600 on it", file)
    found = content.get("accounts") if isinstance(content, dict) else None
    if not isinstance(found, dict) or not found or set(content) != {"accounts"}:
        raise ConfigError(
            f'auth.accounts: {file}: expected only accounts: [accounts.NAME], secret_key = "..."; correct it, or '
            f"restore it from a backup"
        )
    accounts = {
        access_key: _account(f"auth.accounts: {file}: {access_key}", access_key, found[access_key])
        for access_key in found
    }
    _check_certificates(file, accounts.values())
    claimed = Names(
        tuple(
            pattern
            for access_key in found
            for pattern in found[access_key].get("producer_groups", ())  # checked above
        )
    )
    return {
        access_key: replace(account, producer_groups=_NamesOfNobody(claimed))
        if "producer_groups" not in found[access_key] and found[access_key].get("publish")
        else account
        for access_key, account in accounts.items()
    }


def _by_certificate(accounts: Mapping[str, Account]) -> dict[str, Account]:
    return {account.certificate: account for account in accounts.values() if account.certificate is not None}


def _account(where: str, access_key: str, values: Any) -> Account:
    if not _ACCESS_KEY.fullmatch(access_key):
        raise ConfigError(f"{where}: an access key must have 1 to 128 letters, digits, '_', '.' or '-'; choose another")
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: not a table of settings; write one for each account")
    known = {
        *("secret_key", "secret_key_file", "certificate", "admin", "view"),
        *("publish", "consume", "groups", "producer_groups"),
    }
    if unknown := sorted(values.keys() - known):
        raise ConfigError(f"{where}.{unknown[0]}: unknown setting; choose one of {', '.join(sorted(known))}")
    for flag in ("admin", "view"):
        if not isinstance(values.get(flag, False), bool):
            raise ConfigError(f"{where}.{flag}: {values[flag]!r} is neither true nor false")
    names = {
        name: Names(_patterns(f"{where}.{name}", values.get(name, [])))
        for name in ("publish", "consume", "groups", "producer_groups")
    }
    certificate = values.get("certificate")
    if certificate is not None and (not isinstance(certificate, str) or not _SUBJECT.match(certificate)):
        raise ConfigError(
            f"{where}.certificate: {certificate!r} is not the subject of a certificate, such as "
            f'"CN=billing,O=Example"; '
            "`openssl x509 -in FILE -noout -subject -nameopt RFC2253` prints it"
        )
    return Account(
        access_key,
        _secret_key(where, values),
        values.get("admin", False),
        names["publish"],
        names["consume"],
        names["groups"],
        certificate,
        names["producer_groups"],
        view=values.get("view", False),
    )


def _secret_key(where: str, values: Mapping[str, Any]) -> bytes | None:
    key, file = values.get("secret_key"), values.get("secret_key_file")
    if key is None and file is None and "certificate" in values:
        return None
    if (key is None) == (file is None):
        raise ConfigError(f"{where}: set either secret_key or secret_key_file, or a certificate")
    if file is not None:
        try:
            key = Path(file).read_text().strip()
        except (OSError, TypeError, ValueError) as error:
            raise ConfigError(f"{where}.secret_key_file: {file!r} cannot be read: {error}; check the path") from None
    if not isinstance(key, str) or len(key) < 8:
        raise ConfigError(f"{where}: a secret key needs 8 characters or more; make one with `openssl rand -hex 20`")
    return key.encode()


def _patterns(where: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(
        isinstance(value, str) and _PATTERN.fullmatch(value) for value in values
    ):
        raise ConfigError(
            f'{where}: expected a list of names, where * matches any characters, such as ["orders", "shop-*"]'
        )
    return tuple(values)
