"""What the lease in etcd has beside the contract of every lease: endpoints, TLS, authentication, settings."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config.replication import ReplicationConfig
from aerobee_broker.listening.certificates import development_certificate
from aerobee_broker.replication.etcd import EtcdAccess, EtcdLease
from aerobee_broker.replication.lease import Claim, Holder, LeaseUnavailableError, LeaseView
from aerobee_store.errors import ConfigError
from tests.support.etcd import running_etcd
from tests.support.ports import free_ports

_FIRST = Claim(1, 1, frozenset((1,)))


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as endpoint:
        yield endpoint


async def test_a_lost_endpoint_is_replaced_by_another(etcd: str) -> None:
    """The first request fails, because its outcome is unknown."""
    gone = f"http://127.0.0.1:{free_ports(1)[0]}"
    lease = EtcdLease([gone, etcd], "/test/endpoints", 1, 60, timeout_seconds=30)
    with pytest.raises(LeaseUnavailableError, match=gone.removeprefix("http://")):
        await lease.read()
    assert await lease.read() == LeaseView(0, None, None)


async def test_an_answer_of_another_service_is_refused(tmp_path: Path) -> None:
    """Another service listens on the port."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"220 ready\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        lease = EtcdLease([f"http://127.0.0.1:{port}"], "/test", 1, 60, timeout_seconds=30)
        with pytest.raises(LeaseUnavailableError, match=r"is this the right port|status"):
            await lease.read()


def _configure(endpoint: str, authority: Path, requests: list[tuple[str, dict[str, Any]]]) -> None:
    context = ssl.create_default_context(cafile=authority)
    for path, body in requests:
        request = urllib.request.Request(f"{endpoint}/v3/auth/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            assert answer.status == 200


def _restricted_user(password: str) -> list[tuple[str, dict[str, Any]]]:
    """A user whose permission covers only the keys of /aerobee/, with authentication enabled."""
    begin, end = (base64.b64encode(key).decode() for key in (b"/aerobee/", b"/aerobee0"))
    return [
        ("user/add", {"name": "root", "password": "root"}),
        ("role/add", {"name": "root"}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("user/add", {"name": "aerobee", "password": password}),
        ("role/add", {"name": "lease"}),
        ("role/grant", {"name": "lease", "perm": {"permType": 2, "key": begin, "range_end": end}}),
        ("user/grant", {"user": "aerobee", "role": "lease"}),
        ("enable", {}),
    ]


async def test_an_etcd_with_tls_and_authentication(tmp_path: Path) -> None:
    """The password comes from a file, the CA is private, and a token that etcd has dropped is replaced."""
    issued = development_certificate("127.0.0.1")
    files = {"certificate": issued.certificate, "key": issued.key, "authority": issued.authority, "word": b"s3cret\n"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with running_etcd(tmp_path, (tmp_path / "certificate", tmp_path / "key")) as endpoint:
        _configure(endpoint, tmp_path / "authority", _restricted_user("s3cret"))
        config = ReplicationConfig(
            role="master",
            listen="127.0.0.1:10912",
            acks="all",
            etcd=(endpoint,),
            etcd_user="aerobee",
            etcd_password_file=tmp_path / "word",
            etcd_ca=tmp_path / "authority",
        )
        access = EtcdAccess.load(config)

        def lease(prefix: str, access: EtcdAccess) -> EtcdLease:
            return EtcdLease([endpoint], prefix, 1, 60, timeout_seconds=30, access=access)

        entered = lease("/aerobee/c/n", access)
        version = await entered.take(await entered.read(), _FIRST)
        await entered.renew()
        entered._token = "forgotten.1"  # as when etcd drops a token
        await entered.announce(Holder(1, "a:10911", "a:10912"))
        assert (await entered.read()).holder == Holder(1, "a:10911", "a:10912")
        await entered.change(version, Claim(1, 1, frozenset((1, 2))))
        await entered.release()
        with pytest.raises(LeaseUnavailableError, match="permission denied"):
            await lease("/other", access).read()
        with pytest.raises(LeaseUnavailableError, match="authentication failed"):
            await lease("/aerobee/c/n", replace(access, password="wrong")).read()
        with pytest.raises(LeaseUnavailableError, match="certificate"):
            await lease("/aerobee/c/n", replace(access, security=ssl.create_default_context())).read()


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"etcd": ("http://user:word@a:2379",)}, "etcd_user"),
        ({"etcd_user": "aerobee"}, "etcd_password_file"),
        ({"etcd_ca": Path("ca.pem")}, "https"),
    ],
)
def test_inconsistent_settings(changes: dict[str, Any], cause: str) -> None:
    """The error names the setting and never contains the password."""
    with pytest.raises(ConfigError, match=cause) as caught:
        ReplicationConfig(
            **{"role": "master", "listen": "127.0.0.1:1", "acks": "all", "etcd": ("http://a:2379",), **changes}
        )
    assert "word@" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """The broker does not start, and names the file."""
    fixed: dict[str, Any] = {"role": "master", "listen": "127.0.0.1:1", "acks": "all", "etcd": ("https://a:2379",)}
    missing = ReplicationConfig(**fixed, etcd_user="u", etcd_password_file=tmp_path / "missing")
    with pytest.raises(ConfigError, match=r"etcd_password_file.*missing"):
        EtcdAccess.load(missing)
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigError, match="etcd_ca"):
        EtcdAccess.load(ReplicationConfig(**fixed, etcd_ca=tmp_path / "empty"))
