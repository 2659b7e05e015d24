"""What accounts with different roles see of a broker: viewers, owners of groups, and administrators."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from aerobee_broker.cli import main
from aerobee_client import Credentials, ForbiddenError, Message, connect
from aerobee_client.testing import BrokerProcess, run_broker
from aerobee_proto import admin_v1
from tests.support.accounts_file import write_accounts

OPERATOR = Credentials("operator", "the operator's secret")
VIEWER = Credentials("viewer", "the viewer's secret")
SHOP = Credentials("shop", "the shop's secret")
ACCOUNTS = f"""
[accounts.operator]
secret_key = "{OPERATOR.secret_key}"
admin = true

[accounts.viewer]
secret_key = "{VIEWER.secret_key}"
view = true

[accounts.shop]
secret_key = "{SHOP.secret_key}"
publish = ["orders"]
consume = ["orders"]
groups = ["billing-*"]
"""


@pytest.fixture(scope="module")
def broker_arguments(tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    """A broker with an account of each role."""
    file = write_accounts(tmp_path_factory.mktemp("accounts") / "accounts.toml", ACCOUNTS)
    return ("--dev", "--accounts", str(file))


async def test_an_account_asks_who_it_is(broker: BrokerProcess) -> None:
    """Every account sees its own rights, with the patterns of the file; without accounts there is nothing to tell."""
    async with connect(broker.endpoint, credentials=SHOP) as client:
        answer = await client.admin.who_am_i()
    assert answer.accounts_required
    account = answer.account
    assert (account.access_key, account.admin, account.view, account.signs) == ("shop", False, False, True)
    assert (list(account.publish), list(account.consume), list(account.groups)) == (
        ["orders"],
        ["orders"],
        ["billing-*"],
    )
    async with connect(broker.endpoint, credentials=VIEWER) as client:
        assert (await client.admin.who_am_i()).account.view


def test_without_accounts_everybody_is_nobody(tmp_path: Path) -> None:
    """A broker without accounts says that it requires none."""

    async def ask(endpoint: str) -> None:
        async with connect(endpoint) as client:
            answer = await client.admin.who_am_i()
            assert not answer.accounts_required
            assert not answer.HasField("account")
            assert [each async for each in client.admin.accounts()] == []

    with run_broker(tmp_path, ("--dev",)) as running:
        asyncio.run(ask(running.endpoint))


async def test_only_an_administrator_lists_accounts(broker: BrokerProcess) -> None:
    """The list has every account in order and no secret key."""
    async with connect(broker.endpoint, credentials=OPERATOR) as client:
        accounts = [each async for each in client.admin.accounts()]
    assert [each.access_key for each in accounts] == ["operator", "shop", "viewer"]
    assert "secret" not in str(accounts).replace("secret_key", "")
    async with connect(broker.endpoint, credentials=VIEWER) as client:
        with pytest.raises(ForbiddenError, match="admin = true"):
            _ = [each async for each in client.admin.accounts()]


async def test_a_viewer_sees_everything_and_changes_nothing(broker: BrokerProcess) -> None:
    """A viewer sees topics, groups and their lag, and may neither change nor receive."""
    async with connect(broker.endpoint, credentials=SHOP) as shop:
        await shop.producer().send(Message(topic="orders", body=b"hello"))
        await shop.simple_consumer("billing-a", "orders").receive(wait_seconds=0)
    async with connect(broker.endpoint, credentials=VIEWER) as client:
        assert "orders" in [topic.name for topic in await client.admin.list_topics()]
        assert (await client.admin.describe_group("billing-a")).group.name == "billing-a"
        assert (await client.admin.broker_status()).name
        with pytest.raises(ForbiddenError, match="'viewer' has admin = false"):
            await client.admin.delete_topic("orders")
        with pytest.raises(ForbiddenError, match="may not send"):
            await client.producer().send(Message(topic="orders", body=b"hello"))


async def test_the_owner_of_a_group_sees_its_lag_and_no_other(broker: BrokerProcess) -> None:
    """Without `view` and `admin`, an account sees the groups that it may be a consumer of."""
    async with connect(broker.endpoint, credentials=SHOP) as shop:
        await shop.simple_consumer("billing-b", "orders").receive(wait_seconds=0)
        await shop.producer().send(Message(topic="orders", body=b"hello"))
        described = await shop.admin.describe_group("billing-b")
        assert sum(topic.lag for topic in described.topics) >= 1
        with pytest.raises(ForbiddenError, match="may not see group 'shipping'"):
            await shop.admin.describe_group("shipping")
        with pytest.raises(ForbiddenError, match="needs an account with view = true"):
            await shop.admin.list_groups()


def test_commands_show_accounts(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """`account whoami` shows the caller, `account list` all accounts."""
    connection = ("--endpoint", broker.endpoint, "--access-key", "operator", "--secret-key", OPERATOR.secret_key)
    assert main(("account", "whoami", *connection)) == 0
    assert "account          operator\nrole             admin\n" in capsys.readouterr().out
    assert main(("account", "list", *connection)) == 0
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines() if "shop" in line] == [
        ["shop", "client", "orders"]
    ]


async def test_bodies_are_for_those_who_may_receive(broker: BrokerProcess) -> None:
    """A viewer browses, tails and describes messages without bodies, and may not search in what it does not see."""
    async with connect(broker.endpoint, credentials=SHOP) as shop:
        sent = await shop.producer().send(Message(topic="orders", body=b"a private body"))
        assert [each.body async for each in shop.admin.browse("orders", max_count=1)] == [b"a private body"]
        async with aclosing(shop.admin.tail("orders", last_count=1)) as tail:
            assert [message.body for message in (await anext(tail)).messages] == [b"a private body"]
        with pytest.raises(ForbiddenError, match="may not see topic 'transfers'"):
            _ = [each async for each in shop.admin.browse("transfers")]
    async with connect(broker.endpoint, credentials=VIEWER) as viewer:
        request = admin_v1.BrowseMessagesRequest(topic="orders", include_bodies=True, page_size=1)
        page = await viewer.admin.browse_page(request)
        assert (page.bodies_hidden, page.messages[0].message.body, page.messages[0].body_size) == (True, b"", 14)
        assert page.messages[0].message.system_properties.message_id == sent.message_id
        request.text = "private"
        with pytest.raises(ForbiddenError, match="may not search in them"):
            await viewer.admin.browse_page(request)
        async with aclosing(viewer.admin.tail("orders", last_count=1)) as tail:
            first = await anext(tail)
            assert (first.bodies_hidden, [message.body for message in first.messages]) == (True, [b""])
        [timeline] = await viewer.admin.message_timelines("orders", message_id=sent.message_id)
        assert timeline.message.body == b""
