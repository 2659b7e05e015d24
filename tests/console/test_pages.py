"""The pages of the console show what the calls of the broker say, and their forms do what they promise."""

from __future__ import annotations

import pytest

from aerobee_client import Client, Message
from tests.console.support import World, first_events, rows_of, text_of

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]


async def test_the_lists_show_the_figures_of_the_broker(world: World) -> None:
    """Topics with their messages, and groups with their backlog, those most behind first."""
    page = await world.visitor.get("/topics")
    shown = {row[0]: row[2] for row in rows_of(page)}
    assert shown == {each.topic.name: f"{each.message_count:,}" async for each in world.admin.topic_status()}
    page = await world.visitor.get("/groups")
    shown = {row[0]: row[1] for row in rows_of(page)}
    groups = [each async for each in world.admin.group_status(order="lag", descending=True)]
    assert list(shown.items()) == [(each.group.name, f"{each.lag:,}") for each in groups]
    assert groups[0].lag > 0


async def test_lists_are_searched_and_sorted_by_links(world: World) -> None:
    """Each column's link sorts by it, the largest first; a search keeps names with these characters."""
    page = await world.visitor.get("/topics?q=ORDER")
    assert [row[0] for row in rows_of(page)] == ["orders"]
    page = await world.visitor.get("/topics?sort=messages&down=1")
    assert rows_of(page)[0][0] == "orders"
    assert "sort=messages" in page.text
    page = await world.visitor.get("/topics?q=nothing-of-the-kind")
    assert "No topic has “nothing-of-the-kind” in its name." in text_of(page)


async def test_many_topics_come_in_pages(world: World) -> None:
    """Fifty on a page; the link to the next one leads to the rest."""
    for number in range(60):  # and deleted below: other tests list all topics
        await world.admin.create_topic(f"many-{number:02}", queue_count=1)
    page = await world.visitor.get("/topics?q=many")
    assert [row[0] for row in rows_of(page)] == [f"many-{number:02}" for number in range(50)]
    link = page.text.partition('rel="next"')[0].rpartition('href="')[2].partition('"')[0].replace("&amp;", "&")
    page = await world.visitor.get(link)
    assert [row[0] for row in rows_of(page)] == [f"many-{number:02}" for number in range(50, 60)]
    for number in range(60):
        await world.admin.delete_topic(f"many-{number:02}")


async def test_a_topic_shows_its_queues_and_readers(world: World) -> None:
    """Offsets of each queue, and the groups that read it."""
    page = await world.visitor.get("/topics/orders")
    found = await world.admin.describe_topic("orders")
    rows = rows_of(page)
    assert [[row[0], row[3], row[4]] for row in rows[: len(found.queues)]] == [
        [str(queue.queue_id), f"{queue.min_offset:,}", f"{queue.max_offset:,}"] for queue in found.queues
    ]
    assert {row[0] for row in rows[len(found.queues) :]} == set(found.groups) == {"billing", "analytics"}


async def test_a_group_shows_its_lag_by_topic_and_queue(world: World) -> None:
    """The numbers of DescribeGroup."""
    page = await world.visitor.get("/groups/analytics")
    found = await world.admin.describe_group("analytics")
    rows = rows_of(page)
    assert [row[:2] for row in rows if len(row) == 8] == [[each.topic, f"{each.lag:,}"] for each in found.topics]
    queues = {(row[0], row[1]): row[2] for row in rows if len(row) == 9}
    assert queues == {(each.topic, str(each.queue_id)): f"{each.lag:,}" for each in found.queues}


async def test_a_message_shows_its_whole_life(world: World) -> None:
    """Born, stored, delivered, changed, delivered again and finished; and the same as a picture."""
    page = await world.visitor.get(f"/topics/orders/id/{world.shop.order.message_id}")
    billing = [row[1] for row in rows_of(page) if len(row) == 4 and row[2] == "billing"]
    assert billing == ["delivered #1", "changed #1", "delivered #2", "finished"]
    assert "<svg" in page.text
    assert page.text.count('<rect class="bar expired"') == 1  # the first delivery, whose time was over
    assert page.text.count('<g class="mark good"') == 1
    assert "analytics: " in page.text  # in the description of the picture
    assert '<span class="json-key">&#34;customer&#34;</span>' in page.text


async def test_a_body_is_shown_as_bytes_and_sent_as_a_file(world: World) -> None:
    """What is no text is shown in hexadecimal, and comes unchanged."""
    page = await world.visitor.get("/topics/audit/0/0")
    assert "00000010" in text_of(page)
    file = await world.visitor.get("/topics/audit/0/0/body")
    assert file.content == bytes(range(256))
    assert file.headers["content-disposition"] == "attachment; filename*=UTF-8''audit-0-0.bin"


async def test_a_message_that_is_not_there(world: World) -> None:
    """A page that says so."""
    page = await world.visitor.get("/topics/orders/0/999999")
    assert page.status_code == 404
    page = await world.visitor.get("/topics/none")
    assert page.status_code == 404
    assert "topic 'none' does not exist" in text_of(page)
    assert (await world.visitor.get("/no/such/page")).status_code == 404


async def test_a_topic_is_created_changed_and_deleted(world: World) -> None:
    """Each step by its form; the note on the next page says what happened."""
    await world.visitor.get("/topics")
    page = await world.visitor.post("/topics", {"name": "parcels", "type": "FIFO", "queues": "3"})
    assert "Topic parcels was created." in text_of(page)
    page = await world.visitor.post("/topics/parcels/update", {"queues": "5", "permission": "READ"})
    assert "Topic parcels was changed." in text_of(page)
    found = (await world.admin.describe_topic("parcels")).topic
    assert (found.read_queue_count, found.permission) == (5, 2)
    page = await world.visitor.post("/topics/parcels/delete", {"confirm": "orders", "deed": "delete"})
    assert page.status_code == 400
    assert "is not that of the topic: parcels" in text_of(page)
    page = await world.visitor.post("/topics/parcels/delete", {"confirm": "parcels"})
    assert "Topic parcels was deleted." in text_of(page)
    assert "parcels" not in [each.name for each in await world.admin.list_topics()]


async def test_wrong_input_keeps_what_was_typed(world: World) -> None:
    """The form comes back with the cause, and with the fields as they were."""
    await world.visitor.get("/topics")
    page = await world.visitor.post("/topics", {"name": "parcels", "queues": "many"})
    assert page.status_code == 400
    assert "Queues: 'many' is not a whole number from 1 to 65,535" in text_of(page)
    assert 'value="parcels"' in page.text
    page = await world.visitor.post("/topics", {"name": "no blanks allowed"})
    assert page.status_code == 400
    assert 'value="no blanks allowed"' in page.text


async def test_a_group_is_created_paused_and_deleted(world: World) -> None:
    """Each step by its form."""
    await world.visitor.get("/groups")
    page = await world.visitor.post("/groups", {"name": "mailer", "attempts": "7", "fifo": "1"})
    assert "Group mailer was created." in text_of(page)
    await world.visitor.post("/groups/mailer/update", {"attempts": "9"})
    found = (await world.admin.describe_group("mailer")).group
    assert (found.max_attempts, found.fifo, found.consume_enabled) == (9, True, False)
    await world.visitor.post("/groups/mailer/delete", {"confirm": "mailer"})
    assert "mailer" not in [each.name for each in await world.admin.list_groups()]


async def test_a_reset_says_first_what_it_would_do(world: World) -> None:
    """The page counts what is delivered again and what is skipped; only the form moves the group."""
    await world.admin.create_group("mover")
    page = await world.visitor.get("/groups/mover")
    assert 'action="/groups/mover/reset"' in page.text
    page = await world.visitor.get("/groups/mover/reset?topic=orders")
    assert page.status_code == 200
    await world.admin.reset_offsets("mover", "orders", latest=True)
    page = await world.visitor.get("/groups/mover/reset?topic=orders&to=earliest")
    assert "In all 40 messages delivered again, 0 messages skipped." in text_of(page)
    assert (await world.admin.describe_group("mover")).topics[0].lag == 0
    page = await world.visitor.post("/groups/mover/reset", {"topic": "orders", "to": "earliest"})
    assert "Group mover was moved in 4 queues of orders." in text_of(page)
    assert (await world.admin.describe_group("mover")).topics[0].lag == 40
    page = await world.visitor.get("/groups/mover/reset?topic=orders&to=latest")
    assert "40 messages skipped" in text_of(page)
    page = await world.visitor.post("/groups/mover/reset", {"topic": "orders", "to": "like", "value": "billing"})
    assert "Group mover was moved in 4 queues of orders." in text_of(page)
    moved, billing = await world.admin.describe_group("mover"), await world.admin.describe_group("billing")
    assert [each.committed_offset for each in moved.queues] == [each.committed_offset for each in billing.queues]
    await world.admin.delete_group("mover")
    page = await world.visitor.get("/groups/billing/reset?topic=orders&to=time&value=yesterday")
    assert page.status_code == 400
    assert "Time: 'yesterday' is not a time" in text_of(page)


async def test_the_overview_shows_what_is_behind(world: World) -> None:
    """Groups and topics, and the counts of the broker."""
    page = await world.visitor.get("/")
    status = await world.admin.broker_status()
    assert f"{status.statistics.messages_in:,} since the start" in text_of(page)
    assert [row[0] for row in rows_of(page)][:2] == ["analytics", "billing"]
    assert [each.name in page.text for each in await world.admin.problems()].count(False) == 0
    assert page.text.count("<figure") == 4


async def test_messages_are_browsed_newest_first_and_filtered(world: World) -> None:
    """By text, tag, SQL and offset; the next page goes on where the first ends."""
    page = await world.visitor.get("/topics/orders/messages?tags=paid")
    assert {row[2] for row in rows_of(page)} == {"paid"}
    page = await world.visitor.get("/topics/orders/messages?text=order-1007")
    (row,) = rows_of(page)
    assert (row[3], row[4][:14]) == ("order-1007", '{"order": 1007')
    page = await world.visitor.get("/topics/orders/messages", params={"sql": "region = 'us'", "oldest": "1"})
    assert rows_of(page)[0][3] == "order-1000"
    page = await world.visitor.get("/topics/orders/messages?queues=1&from=2&to=4")
    assert {row[1] for row in rows_of(page)} == {"1:2", "1:3"}
    page = await world.visitor.get("/topics/orders/messages?sql=region%20=")
    assert page.status_code == 400
    page = await world.visitor.get("/topics/orders/messages?tags=a&sql=b")
    assert "give tags or an SQL expression, not both" in text_of(page)


async def test_a_message_is_sent_again_edited(world: World) -> None:
    """The form begins with the contents of the stored message; what is sent is a new message."""
    page = await world.visitor.get("/topics/orders/send?like=0:0")
    assert "&#34;customer&#34;" in page.text
    fields = {
        "body": '{"order": 1}\r\nedited', "form": "text", "tag": "again", "keys": "one two",
        "properties": "region=asia\nb = c",
    }  # fmt: skip
    await world.admin.create_topic("returns", queue_count=1)
    page = await world.visitor.post("/topics/returns/send", fields)
    assert "The message was stored in returns." in text_of(page)
    (sent,) = [each async for each in world.admin.browse("returns")]
    assert (sent.body, sent.tag, sent.keys) == (b'{"order": 1}\nedited', "again", ("one", "two"))
    assert dict(sent.properties) == {"region": "asia", "b": "c"}
    page = await world.visitor.post("/topics/returns/send", {"form": "hex", "body": "00 ff"})
    assert [each.body async for each in world.admin.browse("returns", max_count=1)] == [b"\x00\xff"]
    page = await world.visitor.post("/topics/returns/send", {"form": "hex", "body": "no hex", "tag": "kept"})
    assert "the body is not in hexadecimal" in text_of(page)
    assert 'value="kept"' in page.text
    await world.admin.delete_topic("returns")


async def test_a_search_finds_names_keys_and_ids(world: World) -> None:
    """A single hit is opened at once."""
    page = await world.visitor.get("/search?q=order-1003")
    assert "order-1003" in text_of(page)
    assert page.url.path.startswith("/topics/orders/")
    page = await world.visitor.get(f"/search?q={world.shop.order.message_id}")
    assert page.url.path.startswith("/topics/orders/")
    page = await world.visitor.get("/search?q=BILL")
    assert page.url.path == "/groups/billing"
    page = await world.visitor.get("/search?q=a")
    assert {"audit", "payments", "analytics"} <= set(text_of(page).split())
    page = await world.visitor.get("/search?q=nothing-of-the-kind")
    assert "Nothing has this name" in text_of(page)


async def test_the_tail_sends_what_is_stored(world: World) -> None:
    """The latest messages first, then those that come; a filter that cannot be used is explained."""
    await world.admin.create_topic("tailed", queue_count=1)
    producer = world.client.producer()
    await producer.send(Message(topic="tailed", body=b"before"))
    address = "/topics/tailed/tail/events"
    events = await first_events(world.visitor, address, 2, after=lambda: _send(world.client, b"after"))
    assert [message["text"] for event in events for message in event["messages"]] == ["before", "after"]
    assert events[0]["messages"][0]["address"] == "/topics/tailed/0/0"
    (event,) = await first_events(world.visitor, f"{address}?sql=a%20=", 1)
    assert "text" in event
    answer = await world.visitor.get(address, headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 400
    await world.admin.delete_topic("tailed")


async def _send(client: Client, body: bytes) -> None:
    await client.producer().send(Message(topic="tailed", body=body))
