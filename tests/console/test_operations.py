"""Dead letters, messages that wait, clients, settings, the store and accounts: figures and actions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerobee_client import Message
from tests.console.scenario import make_dead_letter
from tests.console.support import World, rows_of, text_of
from tests.console.test_security import guarded

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]


async def test_dead_letters_are_listed_with_their_bodies(world: World) -> None:
    """By group, then one by one; a filter by message id."""
    page = await world.visitor.get("/dead-letters")
    queues = [queue async for queue in world.admin.dead_letter_queues()]
    assert [row[:2] for row in rows_of(page)] == [[queue.group, f"{queue.count:,}"] for queue in queues]
    page = await world.visitor.get("/dead-letters/ledger")
    assert [(row[2], row[3], row[5]) for row in rows_of(page)] == [
        ("0", "payments", '{"payment": 0}'),
        ("1", "payments", '{"payment": 1}'),
    ]
    page = await world.visitor.get(f"/dead-letters/ledger?id={world.shop.dead.message_id}")
    assert [row[2] for row in rows_of(page)] == ["0"]
    page = await world.visitor.get("/dead-letters/ledger/1")
    assert '<span class="json-value">1</span>' in page.text
    page = await world.visitor.get("/dead-letters/ledger/99")
    assert page.status_code == 404
    page = await world.visitor.get("/dead-letters/billing")
    assert "This group has no dead letters." in text_of(page)


async def test_dead_letters_are_exported_as_lines(world: World) -> None:
    """Each line is a document with the body."""
    page = await world.visitor.get("/dead-letters/ledger/export")
    lines = [json.loads(line) for line in page.text.splitlines()]
    assert [(line["group"], line["body"], line["originTopic"]) for line in lines] == [
        ("ledger", '{"payment": 0}', "payments"),
        ("ledger", '{"payment": 1}', "payments"),
    ]
    assert page.headers["content-disposition"] == "attachment; filename*=UTF-8''ledger-dead-letters.jsonl"


async def test_chosen_dead_letters_are_sent_again(world: World) -> None:
    """To another topic; a second time only if that is asked for; nothing without a choice."""
    await world.admin.create_topic("repaired", queue_count=1)
    await world.visitor.get("/dead-letters/ledger")
    page = await world.visitor.post("/dead-letters/ledger/resend", {"topic": "repaired"})
    assert (page.status_code, "no dead letter is chosen; tick some" in text_of(page)) == (400, True)
    page = await world.visitor.post("/dead-letters/ledger/resend", {"topic": "repaired", "offsets": ["0", "1"]})
    assert "2 of 2 sent again." in text_of(page)
    found = [each.body async for each in world.admin.browse("repaired", oldest_first=True)]
    assert found == [b'{"payment": 0}', b'{"payment": 1}']
    page = await world.visitor.post("/dead-letters/ledger/resend", {"topic": "repaired", "offsets": ["1", "77"]})
    assert "0 of 2 sent again." in text_of(page)
    page = await world.visitor.post(
        "/dead-letters/ledger/resend", {"topic": "repaired", "offsets": ["1"], "again": "1"}
    )
    assert "1 of 1 sent again." in text_of(page)


async def test_a_dead_letter_is_sent_again_edited(world: World) -> None:
    """With another body, tag and properties; the dead letter stays as it is."""
    await world.admin.create_topic("edited", queue_count=1)
    page = await world.visitor.get("/dead-letters/ledger/0")
    assert "Send it again, edited" in text_of(page)
    fields = {
        "body": '{"payment": "mended"}',
        "form": "text",
        "keys": "mended",
        "properties": "by=hand",
        "topic": "edited",
    }
    page = await world.visitor.post("/dead-letters/ledger/0/edited", fields)
    assert "1 of 1 sent again, edited." in text_of(page)
    (sent,) = [each async for each in world.admin.browse("edited")]
    assert (sent.body, sent.keys, dict(sent.properties)["by"]) == (b'{"payment": "mended"}', ("mended",), "hand")
    page = await world.visitor.post("/dead-letters/ledger/0/edited", {**fields, "form": "hex"})
    assert page.status_code == 400
    assert 'value="mended"' in page.text
    letter = await world.admin.dead_letter("ledger", 0)
    assert letter is not None
    assert letter.message.body == b'{"payment": 0}'


async def test_dead_letters_are_deleted(world: World) -> None:
    """Chosen ones, or all of a group whose name is typed."""
    for number in range(2):
        await make_dead_letter(world.client, "shredder", number)
    await world.visitor.get("/dead-letters/shredder")
    page = await world.visitor.post("/dead-letters/shredder/delete", {"offsets": ["0"]})
    assert "1 dead letter deleted." in text_of(page)
    assert [row[2] for row in rows_of(page)] == ["1"]
    page = await world.visitor.post("/dead-letters/shredder/delete", {"everything": "1", "confirm": "ledger"})
    assert page.status_code == 400
    page = await world.visitor.post("/dead-letters/shredder/delete", {"everything": "1", "confirm": "shredder"})
    assert "1 dead letter deleted." in text_of(page)
    assert "This group has no dead letters." in text_of(page)


async def test_a_topic_is_purged(world: World) -> None:
    """Its messages are gone, the topic stays."""
    await world.admin.create_topic("purged", queue_count=1)
    await world.client.producer().send(Message(topic="purged", body=b"gone"))
    await world.visitor.get("/topics/purged")
    page = await world.visitor.post("/topics/purged/purge", {"confirm": "orders", "deed": "purge"})
    assert page.status_code == 400
    page = await world.visitor.post("/topics/purged/purge", {"confirm": "purged"})
    assert "1 message of topic purged removed." in text_of(page)
    assert [each async for each in world.admin.browse("purged")] == []


async def test_changes_say_who_changed_what(world: World) -> None:
    """The newest first, and found by their text."""
    await world.admin.create_topic("remembered", queue_count=1)
    page = await world.visitor.get("/changes?q=remembered")
    (row,) = rows_of(page)
    assert row[1] == "CreateTopic"
    assert "remembered" in row[4]
    page = await world.visitor.get("/changes?q=nothing-of-the-kind")
    assert "No change matches." in text_of(page)


async def test_delayed_messages_are_listed_and_taken_back(world: World) -> None:
    """In order of their delivery time; one that is taken back is gone."""
    page = await world.visitor.get("/delayed")
    assert [row[5][:17] for row in rows_of(page)] == ['{"remind": "ada",', '{"remind": "grace', '{"remind": "edsge']
    handles = [each.recall_handle async for each in world.admin.delayed_messages()]
    page = await world.visitor.post("/delayed", {})
    assert (page.status_code, "no message is chosen" in text_of(page)) == (400, True)
    page = await world.visitor.post("/delayed", {"handles": [handles[0]]})
    assert "1 of 1 taken back; they are never delivered." in text_of(page)
    assert len(rows_of(page)) == 2
    page = await world.visitor.get("/delayed?topic=orders")
    assert "No delayed message matches." in text_of(page)


async def test_open_transactions_are_decided(world: World) -> None:
    """Committed, and rolled back."""
    page = await world.visitor.get("/transactions")
    assert {row[4] for row in rows_of(page)} == {'{"basket": 0}', '{"basket": 1}'}
    first, second = [each async for each in world.admin.transactions()]
    page = await world.visitor.post("/transactions", {"transactions": [f"checkout {first.transaction_id}"]})
    assert (page.status_code, "Decision" in text_of(page)) == (400, True)
    fields = {"transactions": [f"checkout {first.transaction_id}"], "decision": "commit"}
    page = await world.visitor.post("/transactions", fields)
    assert "1 of 1 committed." in text_of(page)
    fields = {"transactions": [f"checkout {second.transaction_id}"], "decision": "rollback"}
    page = await world.visitor.post("/transactions", fields)
    assert "1 of 1 rolled back." in text_of(page)
    assert "No transaction waits for a decision." in text_of(page)
    assert [each.body async for each in world.admin.browse("checkout")] == [b'{"basket": 0}']


async def test_clients_are_listed_and_described(world: World) -> None:
    """With SDK, group and topics; a part of the id finds one."""
    page = await world.visitor.get("/clients")
    clients = [client async for client in world.admin.connections()]
    assert {row[0] for row in rows_of(page)} == {client.client_id for client in clients}
    consumer = next(client for client in clients if client.group == "analytics")
    page = await world.visitor.get(f"/clients?q={consumer.client_id[-12:]}")
    assert [row[0] for row in rows_of(page)] == [consumer.client_id]
    page = await world.visitor.get("/clients?group=analytics")
    assert [row[3] for row in rows_of(page)] == ["analytics"]
    page = await world.visitor.get(f"/clients/{consumer.client_id}")
    assert consumer.remote_address in text_of(page)
    assert "Python" in text_of(page)
    page = await world.visitor.post(f"/clients/{consumer.client_id}/reconnect")
    assert "The client was told to connect again" in text_of(page)
    page = await world.visitor.post(f"/clients/{consumer.client_id}/disconnect")
    assert "was forgotten" in text_of(page)
    assert (await world.visitor.get("/clients/nobody")).status_code == 404


async def test_a_setting_is_changed_and_taken_back(world: World) -> None:
    """What cannot be changed has no form, and a wrong value comes back with the cause."""
    page = await world.visitor.get("/settings?q=store.retention_hours")
    (row,) = rows_of(page)
    assert row[:4] == ["store.retention_hours", "72", "h", "default"]
    fields = {"name": "store.retention_hours", "value": "24"}
    page = await world.visitor.post("/settings?q=store.retention_hours", fields)
    assert "store.retention_hours is 24 now." in text_of(page)
    assert rows_of(page)[0][3] == "set while running"
    page = await world.visitor.post("/settings?q=store.retention_hours", {**fields, "value": "many"})
    assert page.status_code == 400
    assert 'value="many"' in page.text
    page = await world.visitor.post("/settings?q=store.retention_hours", {**fields, "unset": "1"})
    assert rows_of(page)[0][1] == "72"
    page = await world.visitor.get("/settings?show=changeable&q=listen.grpc")
    assert "No setting matches." in text_of(page)
    page = await world.visitor.get("/settings")
    assert len(rows_of(page)) == len(await world.admin.configuration())


async def test_the_store_shows_where_the_log_is(world: World) -> None:
    """Directory, disks and damage."""
    page = await world.visitor.get("/store")
    store = await world.admin.store_status()
    text = text_of(page)
    assert store.directory in text
    assert "0 ranges" in text
    log = await world.admin.segments()
    assert [row[0] for row in rows_of(page) if len(row) == 7] == [
        f"{each.physical_offset:,}" for each in reversed(log.segments)
    ]
    assert "This broker takes no part in replication." in text
    assert page.text.count("<figure") == 4


async def test_accounts_show_their_rights_and_no_keys(tmp_path: Path) -> None:
    """Of an administrator; others may not look."""
    async with guarded(tmp_path) as (visitor, operator):
        await visitor.sign_in("operator")
        page = await visitor.get("/accounts")
        assert [row[0] for row in rows_of(page)] == ["operator you", "shop", "viewer"]
        assert "secret" not in page.text.replace("secret key", "").replace("Secret keys", "")
        await operator.producer().send(Message(topic="orders", body=b"for the shop alone"))
        await visitor.post("/logout")
        await visitor.sign_in("viewer")
        page = await visitor.get("/topics/orders/messages")
        assert "Bodies are hidden" in text_of(page)
        for address in ("/topics/orders/messages", "/topics/orders/0/0", "/topics/orders/0/0/body"):
            page = await visitor.get(address)
            assert "for the shop alone" not in page.text
        for address in ("/store", "/settings", "/clients", "/dead-letters", "/delayed", "/transactions"):
            assert (await visitor.get(address)).status_code == 200, address
