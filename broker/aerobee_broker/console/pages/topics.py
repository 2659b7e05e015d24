"""Topics: the list, one topic, and what an operator does with it."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup
from starlette.responses import Response

from aerobee_broker.console import rendering, words
from aerobee_broker.console.figures import SPANS, Figures, step_of
from aerobee_broker.console.forms import FormError
from aerobee_broker.console.lists import PAGE_COUNT, Wanted
from aerobee_broker.console.visit import Visit, segment
from aerobee_broker.units import counted
from aerobee_proto import admin_v1, v2

QUEUES_SHOWN: Final = 256
READERS_SHOWN: Final = 100
_PERMISSIONS: Final = ("READ_WRITE", "READ", "WRITE")
_ORDERS: Final = ("name", "messages", "bytes", "in_rate", "out_rate", "last_stored")
_KINDS: Final = (
    ("NORMAL", "normal messages"),
    ("FIFO", "messages in order"),
    ("DELAY", "delayed messages"),
    ("TRANSACTION", "transactions"),
    ("PRIORITY", "messages with priority"),
    ("LITE", "lite topics"),
)


async def show_all(visit: Visit) -> Response:
    """The topics, searched and sorted by the broker."""
    wanted = Wanted.read(visit.query, _ORDERS, "name")
    request = admin_v1.ListTopicStatusRequest(
        search=wanted.search,
        include_system=wanted.system,
        order=admin_v1.TopicOrder.Value(f"TOPIC_ORDER_{wanted.order.upper()}"),
        descending=wanted.descending,
        page_size=PAGE_COUNT,
        page_token=wanted.page_token,
    )
    found = await visit.admin.call(lambda stubs: stubs.aerobee_admin.ListTopicStatus, request)
    return visit.page(
        "topics.html",
        topics=found.topics,
        total=found.total_count,
        next=found.next_page_token,
        wanted=wanted,
        kinds=_KINDS,
        message_types=words.message_types,
        permission=words.permission,
    )


async def create(visit: Visit) -> Response:
    """Create a topic."""
    name = visit.fields.needed("name", "Name")
    kind = visit.fields.chosen("type", "Accepts", [kind for kind, _ in _KINDS], "NORMAL")
    queues = visit.fields.number("queues", "Queues", least=1, most=65_535)
    await visit.admin.create_topic(name, queue_count=queues or 0, message_types=[v2.MessageType.Value(kind)])
    return visit.go(visit.url(f"/topics/{segment(name)}"), f"Topic {name} was created.")


async def show(visit: Visit) -> Response:
    """One topic: definition, queues, readers."""
    name = visit.name()
    found = await visit.admin.describe_topic(name)
    status, groups = None, None
    charts: tuple[Markup, ...] = ()
    if visit.may_look:
        status, groups = await _status(visit, name), await _readers(visit, name)
        charts = _charts(Figures(await visit.admin.history(step_of(visit.query), topic=name)))
    topic = found.topic
    counts = [queue.max_offset - queue.min_offset for queue in found.queues]
    stored = [
        queue.last_store_timestamp.ToMilliseconds() for queue in found.queues if queue.HasField("last_store_timestamp")
    ]
    pills = [(words.message_types(topic), "")]
    if topic.permission != v2.Permission.READ_WRITE:
        pills.append((words.permission(topic), "warn"))
    if topic.system:
        pills.append(("of the broker", ""))
    return visit.page(
        "topic.html",
        name=name,
        topic=topic,
        pills=pills,
        queues=found.queues[:QUEUES_SHOWN],
        left_out=max(len(found.queues) - QUEUES_SHOWN, 0),
        largest=max(counts, default=0),
        messages=sum(counts),
        status=status,
        last_stored=max(stored, default=None),
        groups=found.groups,
        readers=groups,
        charts=charts,
        spans=SPANS,
        permission_name=v2.Permission.Name(topic.permission),
    )


def _charts(figures: Figures) -> tuple[Markup, ...]:
    return (
        figures.chart("Messages a second", rendering.rate, ("messages_in", "in", "in"), ("messages_out", "out", "out")),
        figures.chart("Bytes in a second", rendering.size, ("bytes_in", "stored", "in")),
    )


async def _status(visit: Visit, name: str) -> admin_v1.TopicStatus | None:
    """The figures of one topic: the list finds it by its name, and others that contain it."""
    async for each in visit.admin.topic_status(search=name, include_system=True, max_count=PAGE_COUNT):
        if each.topic.name == name:
            return each
    return None


async def _readers(visit: Visit, name: str) -> list[admin_v1.GroupStatus]:
    """The groups that read a topic, those that are most behind first."""
    return [
        each
        async for each in visit.admin.group_status(
            topic=name, order="lag", descending=True, include_system=True, max_count=READERS_SHOWN
        )
    ]


async def update(visit: Visit) -> Response:
    """Change the definition of a topic."""
    name = visit.name()
    queues = visit.fields.number("queues", "Queues", least=1, most=65_535)
    permission = visit.fields.chosen("permission", "Permission", _PERMISSIONS, "READ_WRITE")
    await visit.admin.update_topic(name, queue_count=queues, permission=v2.Permission.Value(permission))
    return visit.go(visit.url(f"/topics/{segment(name)}"), f"Topic {name} was changed.")


async def delete(visit: Visit) -> Response:
    """Delete a topic whose name was typed."""
    name = confirmed(visit, "the topic")
    await visit.admin.delete_topic(name)
    return visit.go(visit.url("/topics"), f"Topic {name} was deleted.")


async def purge(visit: Visit) -> Response:
    """Remove all messages of a topic whose name was typed."""
    name = confirmed(visit, "the topic")
    done = await visit.admin.purge_topic(name)
    address = visit.url(f"/topics/{segment(name)}")
    return visit.go(address, f"{counted(done.message_count, 'message')} of topic {name} removed.")


def confirmed(visit: Visit, what: str) -> str:
    """The name in the path, which the form must repeat."""
    name = visit.name()
    if visit.fields.text("confirm") != name:
        raise FormError(f"the name that was typed is not that of {what}: {name}")
    return name
