"""Accounts of remoting clients: what one account must not get from another, with a running broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config import AuthConfig
from aerobee_broker.config.transactions import TransactionsConfig
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.frame import Command
from aerobee_store.records import properties as p
from aerobee_store.tables.java_json import dumps
from aerobee_store.testing.travelling_clock import TravellingClock
from tests.support.accounts_file import write_accounts
from tests.support.remoting_client import RemotingClient, remoting_broker, send_fields, signed

_ACCOUNTS = """
[accounts.bank]
secret_key = "bank-secret"
publish = ["Transfers", "DefaultCluster_REPLY_TOPIC"]
consume = ["Transfers"]
groups = ["Tellers"]
producer_groups = ["Bank"]
[accounts.shop]
secret_key = "shop-secret"
publish = ["Orders"]
consume = ["Orders"]
groups = ["Billing"]
[accounts.nothing]
secret_key = "nothing-secret"
[accounts.operator]
secret_key = "operator-secret"
admin = true
"""
_COMMIT = 8


class _Client:
    """A connection whose requests an account signs."""

    def __init__(self, account: str, connection: RemotingClient) -> None:
        self.account = account
        self.connection = connection

    async def call(self, code: int, fields: Mapping[str, Any] | None = None, body: Any = b"") -> Command:
        data = body if isinstance(body, bytes) else dumps(body, pretty=False)
        return await self.connection.call(code, signed(self.account, dict(fields or {}), data), data)

    async def beat(self, client_id: str, *, produces: str = "", consumes: str = "", topic: str = "Transfers") -> int:
        consumer = {"groupName": consumes, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}
        body = {
            "clientID": client_id,
            "producerDataSet": [{"groupName": produces}] if produces else [],
            "consumerDataSet": [consumer] if consumes else [],
        }
        return (await self.call(Request.HEART_BEAT, body=body)).code


class _Broker:
    def __init__(self, address: Any, clock: TravellingClock) -> None:
        self.address = address
        self.clock = clock
        self.open: list[RemotingClient] = []

    async def client(self, account: str) -> _Client:
        self.open.append(await RemotingClient.connect(self.address))
        return _Client(account, self.open[-1])


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[_Broker]:
    accounts = write_accounts(tmp_path / "accounts.toml", _ACCOUNTS)
    clock = TravellingClock()
    config = TransactionsConfig(timeout_seconds=6.0, check_interval_seconds=30.0)
    async with remoting_broker(
        tmp_path / "store", clock=clock, transactions=config, auth=AuthConfig(accounts=accounts)
    ) as (running, _):
        found = _Broker(running.remoting, clock)
        yield found
        for connection in found.open:
            await connection.close()


async def _half(client: _Client) -> Command:
    properties = "TRAN_MSG\x01true\x02PGROUP\x01Bank\x02UNIQ_KEY\x01K1\x02"
    answer = await client.call(Request.SEND_MESSAGE_V2, send_fields("Transfers", properties=properties, f=4), b"1000")
    assert answer.code == 0, answer.remark
    return answer


def _decision(half: Command) -> dict[str, object]:
    return {
        "producerGroup": "Bank",
        "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": int(half.fields["msgId"][16:], 16),
        "commitOrRollback": _COMMIT,
        "transactionId": half.fields["transactionId"],
    }


@pytest.mark.parametrize("thief", ["nothing", "shop"])
async def test_no_account_can_be_a_producer_of_anothers_group(broker: _Broker, thief: str) -> None:
    """It would be sent the half messages of the group. The group's own producer still gets the check."""
    stranger = await broker.client(thief)
    assert await stranger.beat("thief", produces="Bank") == Answer.NO_PERMISSION
    bank = await broker.client("bank")
    assert await bank.beat("bank-1", produces="Bank") == 0
    await _half(bank)
    await broker.clock.advance(7)
    assert (await bank.connection.next_asked()).code == Request.CHECK_TRANSACTION_STATE
    assert stranger.connection.asked.empty()


async def test_a_check_goes_only_to_accounts_that_may_send_to_the_topic(broker: _Broker) -> None:
    """A producer group in no account's setting is open to all that publish, but its messages are not."""
    bank, shop = await broker.client("bank"), await broker.client("shop")
    properties = "TRAN_MSG\x01true\x02PGROUP\x01Anybody\x02UNIQ_KEY\x01K1\x02"
    fields = send_fields("Transfers", properties=properties, f=4)
    assert (await bank.call(Request.SEND_MESSAGE_V2, fields, b"1000")).code == 0
    assert await shop.beat("shop-1", produces="Anybody") == 0
    for _ in range(3):
        await broker.clock.advance(31)
        assert await shop.beat("shop-1", produces="Anybody") == 0
    assert shop.connection.asked.empty()


async def test_a_client_id_cannot_be_taken_from_its_account(broker: _Broker) -> None:
    """Replies to requests are pushed to the client id; its owner keeps it while its connection is interrupted."""
    bank, shop = await broker.client("bank"), await broker.client("shop")
    assert await bank.beat("10.0.0.1@42", produces="Bank") == 0
    assert await shop.beat("10.0.0.1@42", produces="Shop") == Answer.NO_PERMISSION
    assert await shop.beat("10.0.0.1@42", consumes="Billing", topic="Orders") == Answer.NO_PERMISSION
    await bank.connection.close()
    assert await shop.beat("10.0.0.1@42", produces="Shop") == Answer.NO_PERMISSION
    back = await broker.client("bank")
    assert await back.beat("10.0.0.1@42", produces="Bank") == 0
    reply = send_fields(
        "DefaultCluster_REPLY_TOPIC",
        properties=p.encode_properties({"REPLY_TO_CLIENT": "10.0.0.1@42", "CORRELATION_ID": "1"}).decode(),
    )
    teller = await broker.client("bank")
    waiting = teller.connection.begin(Request.SEND_REPLY_MESSAGE_V2, signed("bank", reply, b"balance"), b"balance")
    pushed = await back.connection.next_asked()
    assert (pushed.code, pushed.body) == (Request.PUSH_REPLY_MESSAGE_TO_CLIENT, b"balance")
    back.connection.reply(pushed)
    assert (await waiting).code == 0
    assert shop.connection.asked.empty()


async def test_another_account_cannot_unregister_a_client(broker: _Broker) -> None:
    """Neither as producer nor as consumer; the owner can."""
    bank, shop = await broker.client("bank"), await broker.client("shop")
    assert await bank.beat("bank-1", produces="Bank", consumes="Tellers") == 0
    for group in ({"producerGroup": "Bank"}, {"consumerGroup": "Tellers"}, {"consumerGroup": "Billing"}):
        answer = await shop.call(Request.UNREGISTER_CLIENT, {"clientID": "bank-1", **group})
        assert answer.code == Answer.NO_PERMISSION
    listed = await bank.call(Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "Tellers"})
    assert b"bank-1" in listed.body
    gone = {"clientID": "bank-1", "consumerGroup": "Tellers", "producerGroup": "Bank"}
    assert (await bank.call(Request.UNREGISTER_CLIENT, gone)).code == 0


async def test_offsets_of_the_log_are_not_told(broker: _Broker) -> None:
    """The same answer where another account's message is, between messages, and beyond the end of the log."""
    bank, shop = await broker.client("bank"), await broker.client("shop")
    half = await _half(bank)
    place = int(half.fields["msgId"][16:], 16)
    seen = set()
    for offset in (place, place + 1, 1 << 40):
        view = await shop.call(Request.VIEW_MESSAGE_BY_ID, {"offset": offset})
        end = await shop.call(
            Request.END_TRANSACTION, {**_decision(half), "producerGroup": "Free", "commitLogOffset": offset}
        )
        back = await shop.call(
            Request.CONSUMER_SEND_MESSAGE_BACK, {"group": "Billing", "offset": offset, "delayLevel": 0}
        )
        assert view.code == end.code == back.code == Answer.NO_PERMISSION
        seen.add((view.remark, end.remark, back.remark))
    assert len(seen) == 1
    assert (await bank.call(Request.END_TRANSACTION, _decision(half))).code == 0


async def test_an_account_of_the_console_may_do_everything(broker: _Broker) -> None:
    """The administrator takes part in any group."""
    operator = await broker.client("operator")
    assert await operator.beat("o", produces="Bank", consumes="Tellers") in (0, Answer.SUBSCRIPTION_GROUP_NOT_EXIST)
    assert (await operator.call(Request.GET_ALL_TOPIC_CONFIG)).code == 0
