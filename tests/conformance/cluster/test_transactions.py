"""Items 76 to 79: transactions of remoting producers."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.config.transactions import TransactionsConfig
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.frame import Command
from aerobee_store.testing.travelling_clock import TravellingClock
from tests.conformance.cluster.conftest import Shared
from tests.support.remoting_client import RemotingClient, pull_fields, records, remoting_broker, send

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


async def _half(client: RemotingClient, topic: str, key: str, body: bytes) -> Command:
    properties = f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01{key}\x02"
    answer = await send(client, topic, body, properties=properties, f=4)
    assert answer.code == 0, answer.remark
    return answer


def _decision(half: Command, decision: int, **others: object) -> dict[str, object]:
    fields: dict[str, object] = {
        "producerGroup": "PG",
        "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": int(half.fields["msgId"][16:], 16),
        "commitOrRollback": decision,
        "fromTransactionCheck": False,
        "msgId": half.fields["transactionId"],
        "transactionId": half.fields["transactionId"],
    }
    return {**fields, **others}


async def _bodies(client: RemotingClient, topic: str) -> list[bytes]:
    answer = await client.call(Request.PULL_MESSAGE, pull_fields(topic))
    return [record.body for record in records(answer.body)]


async def test_c076_commit_rollback_and_check(tmp_path: Path) -> None:
    """Half messages are invisible; a producer without a decision is checked with the original message."""
    clock = TravellingClock()
    config = TransactionsConfig(timeout_seconds=6.0, check_interval_seconds=30.0)
    async with remoting_broker(tmp_path, clock=clock, transactions=config) as (_, client):
        await client.call(Request.HEART_BEAT, body={"clientID": "p", "producerDataSet": [{"groupName": "PG"}]})
        committed = await _half(client, "Tx", "K1", b"committed")
        rolled_back = await _half(client, "Tx", "K2", b"rolled back")
        open_one = await _half(client, "Tx", "K3", b"open")
        assert await _bodies(client, "Tx") == []
        assert (await client.call(Request.END_TRANSACTION, _decision(committed, COMMIT))).code == 0
        assert (await client.call(Request.END_TRANSACTION, _decision(rolled_back, ROLLBACK))).code == 0
        client.one_way(Request.END_TRANSACTION, _decision(open_one, UNKNOWN))
        held = client.begin(Request.PULL_MESSAGE, pull_fields("Tx", offset=1, sys_flag=6))
        await clock.advance(7)
        asked = await client.next_asked()
        assert (asked.code, asked.is_one_way) == (Request.CHECK_TRANSACTION_STATE, True)
        assert (asked.fields["msgId"], asked.fields["transactionId"]) == ("K3", "K3")
        [original] = records(asked.body)
        assert (original.topic, original.body, original.properties["PGROUP"]) == ("Tx", b"open", "PG")
        answer = {
            "producerGroup": "PG",
            "tranStateTableOffset": asked.fields["tranStateTableOffset"],
            "commitLogOffset": asked.fields["commitLogOffset"],
            "commitOrRollback": COMMIT,
            "fromTransactionCheck": True,
            "msgId": "K3",
            "transactionId": "K3",
        }
        client.one_way(Request.END_TRANSACTION, answer)
        assert [record.body for record in records((await held).body)] == [b"open"]
        assert await _bodies(client, "Tx") == [b"committed", b"open"]


async def test_c077_decisions_that_are_refused(client: RemotingClient, shared: Shared) -> None:
    """Decisions of another group or about another message are refused; a repeated decision stores one message."""
    half = await _half(client, "Tx77", "K77", b"once")
    for others in ({"producerGroup": "Other"}, {"commitLogOffset": 1 << 40}, {"tranStateTableOffset": 99}):
        answer = await client.call(Request.END_TRANSACTION, _decision(half, COMMIT, **others))
        assert answer.code == Answer.SYSTEM_ERROR
    for _ in range(2):
        assert (await client.call(Request.END_TRANSACTION, _decision(half, COMMIT))).code == 0
    assert (await client.call(Request.END_TRANSACTION, _decision(half, ROLLBACK))).code == Answer.SYSTEM_ERROR
    assert await _bodies(client, "Tx77") == [b"once"]


async def test_c078_another_producer_of_the_group_is_checked(tmp_path: Path) -> None:
    """After the sender has died one other producer is asked at a time; without any, the first to connect."""
    clock = TravellingClock()
    config = TransactionsConfig(timeout_seconds=6.0, check_interval_seconds=30.0)
    async with remoting_broker(tmp_path, clock=clock, transactions=config) as (broker, sender):
        await sender.call(Request.HEART_BEAT, body={"clientID": "p1", "producerDataSet": [{"groupName": "PG"}]})
        await _half(sender, "Tx", "K1", b"open")
        await sender.close()
        await clock.advance(7)
        others = [await RemotingClient.connect(broker.remoting) for _ in range(2)]
        for number, client in enumerate(others):
            beat = {"clientID": f"p{2 + number}", "producerDataSet": [{"groupName": "PG"}]}
            await client.call(Request.HEART_BEAT, body=beat)
        stranger = await RemotingClient.connect(broker.remoting)
        await stranger.call(Request.HEART_BEAT, body={"clientID": "s", "producerDataSet": [{"groupName": "Other"}]})
        await clock.advance(1)
        assert sum(client.asked.qsize() for client in others) == 1
        await clock.advance(31)
        assert sum(client.asked.qsize() for client in others) == 2
        assert stranger.asked.empty()
        for client in (*others, stranger):
            await client.close()
