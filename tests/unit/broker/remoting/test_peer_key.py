"""The secret with which the brokers of a cluster sign: its file, and what is refused without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee_broker.config.peers import PeersConfig
from aerobee_broker.errors import UnauthorizedError
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.remoting_wire.signature import PeerKey
from aerobee_store.errors import ConfigError

KEY = PeerKey("aerobee", b"a secret of the cluster")


def _load(path: Path) -> PeerKey | None:
    return PeerKey.load(PeersConfig(secret_key_file=path))


def test_the_file_has_at_least_sixteen_characters_without_the_end_of_its_line(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{'k' * 16}\n")
    key = _load(path)
    assert key is not None
    assert key.secret_key == b"k" * 16
    path.write_text(f"{'k' * 15}\n")
    with pytest.raises(ConfigError, match=r"peers\.secret_key_file.*fewer than 16 characters.*openssl"):
        _load(path)


@pytest.mark.parametrize("content", [None, b"\xff" * 20], ids=["missing", "not text"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"peers\.secret_key_file: {path} cannot be read.*check the path"):
        _load(path)


def _signed(key: PeerKey) -> Command:
    request = Command(21, fields={"brokerName": "aerobee"}, body=b"body")
    key.sign(request)
    return request


def test_a_request_with_the_secret_has_its_access_key() -> None:
    request = _signed(KEY)
    KEY.check(request)
    assert request.access_key == KEY.access_key


def _of_an_account(request: Command) -> None:
    """Signed with the cluster's secret, in the name of somebody else."""
    PeerKey("somebody", KEY.secret_key).sign(request)


def _unsigned(request: Command) -> None:
    del request.fields["Signature"]


def _nameless(request: Command) -> None:
    del request.fields["AccessKey"]


def _changed_field(request: Command) -> None:
    request.fields["brokerName"] = "another"


def _changed_body(request: Command) -> None:
    request.body = b"another"


def _other_secret(request: Command) -> None:
    PeerKey(KEY.access_key, b"another secret of a cluster").sign(request)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (_of_an_account, "request 21 needs the secret of the cluster"),
        (_nameless, "request 21 needs the secret of the cluster"),
        (_unsigned, "requires credentials"),
        (_changed_field, "the secret of the cluster is another one"),
        (_changed_body, "the secret of the cluster is another one"),
        (_other_secret, "the secret of the cluster is another one"),
    ],
)
def test_anything_else_is_refused_with_its_cause(change: Callable[[Command], None], cause: str) -> None:
    request = _signed(KEY)
    change(request)
    with pytest.raises(UnauthorizedError, match=cause):
        KEY.check(request)
    assert request.access_key == ""
