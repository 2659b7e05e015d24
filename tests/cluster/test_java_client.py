"""The released Java clients of RocketMQ 4.9 and 5, unmodified, with a broker that is its own name server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Request
from tests.cluster.conftest import MARKS, serve
from tests.cluster.java_program import Release
from tests.support.remoting_client import RemotingClient, send

pytestmark = MARKS

_ACCOUNTS = """
[accounts.javaAccessKey]
secret_key = "javaSecretKey-0123456789"
publish = ["JavaAcl"]
consume = ["JavaAcl"]
groups = ["CG_acl"]
"""


@pytest.mark.parametrize(
    "stories",
    [
        pytest.param(("send", "push", "query", "filter", "delay"), id="send-and-push"),
        pytest.param(("retry", "orderly", "broadcast", "litepull", "rebalance"), id="consumers"),
        pytest.param(("transaction",), id="transactions"),
    ],
)
def test_scenarios_of_the_java_client(
    release: Release, remoting_address: str, tmp_path: Path, stories: tuple[str, ...]
) -> None:
    """Every story in src/RemotingStories.java passes."""
    done = release.run(tmp_path / "home", "RemotingStories", remoting_address, *stories)
    told = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "failed "))]
    assert told == [f"ok {story}" for story in stories], done.stdout[-2000:] + done.stderr[-4000:]
    assert done.returncode == 0


def test_a_client_with_binary_headers(release: Release, remoting_address: str, tmp_path: Path) -> None:
    """It reads our answers, whose headers are JSON like RocketMQ's."""
    binary = ("-Drocketmq.serialize.type=ROCKETMQ", "RemotingStories")
    done = release.run(tmp_path / "home", *binary, remoting_address, "send", "query")
    told = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "failed "))]
    assert told == ["ok send", "ok query"], done.stdout[-2000:] + done.stderr[-4000:]


def test_a_client_with_signatures(release: Release, tmp_path: Path) -> None:
    """With the ACL hook it sends and consumes; with a wrong secret key, or without the hook, it fails."""
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(_ACCOUNTS)
    accounts.chmod(0o600)
    with serve(tmp_path / "store", "--dev", "--accounts", str(accounts)) as line:
        done = release.run(tmp_path / "home", "RemotingStories", line["remoting"], "acl")
    assert "ok acl" in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]


def test_a_push_consumer_in_pop_mode(release: Release, remoting_address: str, tmp_path: Path) -> None:
    """In POP mode, set by operators: a failed message comes again, an acknowledged one does not."""
    if release.version.startswith("4."):
        pytest.skip("release 4.9 only pulls")
    asyncio.run(_set_pop_mode(Address.parse(remoting_address)))
    done = release.run(tmp_path / "home", "RemotingStories", remoting_address, "pop")
    assert "ok pop" in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]


async def _set_pop_mode(address: Address) -> None:
    client = await RemotingClient.connect(address)
    await send(client, "JavaPop", b"m0", queue_id=0)
    mode = {"topic": "JavaPop", "consumerGroup": "CG_pop", "mode": "POP", "popShareQueueNum": 0}
    assert (await client.call(Request.SET_MESSAGE_REQUEST_MODE, body=mode)).code == 0
    await client.close()
