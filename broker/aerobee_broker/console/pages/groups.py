"""Consumer groups: the list, one group, and what an operator does with it."""

from __future__ import annotations

from typing import Any, Final

from markupsafe import Markup
from starlette.responses import Response

from aerobee_broker.console import rendering, words
from aerobee_broker.console.figures import SPANS, Figures, step_of
from aerobee_broker.console.forms import Fields, FormError
from aerobee_broker.console.lists import PAGE_COUNT, Wanted
from aerobee_broker.console.pages.topics import QUEUES_SHOWN, confirmed
from aerobee_broker.console.visit import Visit, segment
from aerobee_proto import admin_v1

_TARGETS: Final = (
    ("time", "the first message stored at a time"),
    ("earliest", "the first message that is kept"),
    ("latest", "the end: skip all"),
    ("offset", "an offset in each queue"),
    ("skip", "past so many of the oldest unfinished"),
    ("like", "where another group is"),
)


_ORDERS: Final = ("name", "lag", "age", "out_rate", "clients", "dead_letters")


async def show_all(visit: Visit) -> Response:
    """The groups, searched and sorted by the broker; those that are most behind first."""
    wanted = Wanted.read(visit.query, _ORDERS, "lag", descending=True)
    request = admin_v1.ListGroupStatusRequest(
        search=wanted.search,
        include_system=wanted.system,
        order=admin_v1.GroupOrder.Value(f"GROUP_ORDER_{wanted.order.upper()}"),
        descending=wanted.descending,
        page_size=PAGE_COUNT,
        page_token=wanted.page_token,
    )
    found = await visit.admin.call(lambda stubs: stubs.aerobee_admin.ListGroupStatus, request)
    return visit.page(
        "groups.html", groups=found.groups, total=found.total_count, next=found.next_page_token, wanted=wanted
    )


async def create(visit: Visit) -> Response:
    """Create a group."""
    name = visit.fields.needed("name", "Name")
    attempts = visit.fields.number("attempts", "Deliveries", least=1, most=1_000_000)
    await visit.admin.create_group(name, fifo=visit.fields.is_on("fifo"), max_attempts=attempts or 0)
    return visit.go(visit.url(f"/groups/{segment(name)}"), f"Group {name} was created.")


async def show(visit: Visit) -> Response:
    """One group: lag by topic and queue, members, and whether they agree."""
    name = visit.name()
    found = await visit.admin.describe_group(name)
    charts: tuple[Markup, ...] = ()
    if visit.may_look:
        charts = _charts(Figures(await visit.admin.history(step_of(visit.query), group=name)))
    oldest = [topic.oldest_timestamp.ToMilliseconds() for topic in found.topics if topic.HasField("oldest_timestamp")]
    queues = sorted(found.queues, key=lambda queue: (-queue.lag, queue.topic, queue.queue_id))
    return visit.page(
        "group.html",
        name=name,
        found=found,
        group=found.group,
        queues=queues[:QUEUES_SHOWN],
        left_out=max(len(queues) - QUEUES_SHOWN, 0),
        largest=max((queue.lag for queue in queues), default=0),
        lag=sum(topic.lag for topic in found.topics),
        inflight=sum(topic.inflight for topic in found.topics),
        ready=sum(topic.ready for topic in found.topics),
        retrying=sum(topic.retrying for topic in found.topics),
        oldest=min(oldest, default=None),
        charts=charts,
        spans=SPANS,
        disagreement=_disagreement(found.clients),
        client_type=words.client_type,
        sdk=words.sdk,
        subscription=words.subscription,
        retry_delays=words.retry_delays,
    )


def _charts(figures: Figures) -> tuple[Markup, ...]:
    return (
        figures.chart("Backlog", rendering.number, ("lag", "messages", "backlog")),
        figures.chart(
            "Messages a second",
            rendering.rate,
            ("messages_out", "out", "out"),
            ("acknowledged", "acknowledged", "acknowledged"),
        ),
    )


def _disagreement(clients: Any) -> str:
    """What the clients of a group subscribe to, if they do not agree."""
    seen: dict[frozenset[tuple[str, str]], str] = {}
    for client in clients:
        if client.subscriptions:
            wanted = frozenset((entry.topic.name, words.subscription(entry)) for entry in client.subscriptions)
            seen.setdefault(wanted, client.client_id)
    if len(seen) < 2:
        return ""
    texts = [
        f"{client} to {', '.join(sorted(f'{topic} {expression}'.strip() for topic, expression in wanted))}"
        for wanted, client in seen.items()
    ]
    return "; ".join(texts[:3])


async def update(visit: Visit) -> Response:
    """Change how often messages are delivered, and whether at all."""
    name = visit.name()
    attempts = visit.fields.number("attempts", "Deliveries", least=1, most=1_000_000)
    await visit.admin.update_group(name, max_attempts=attempts, consume_enabled=visit.fields.is_on("enabled"))
    return visit.go(visit.url(f"/groups/{segment(name)}"), f"Group {name} was changed.")


async def delete(visit: Visit) -> Response:
    """Delete a group whose name was typed."""
    name = confirmed(visit, "the group")
    await visit.admin.delete_group(name)
    return visit.go(visit.url("/groups"), f"Group {name} was deleted.")


async def show_reset(visit: Visit) -> Response:
    """The form for another position, and what that position would change."""
    wanted = visit.fields if visit.fields else visit.query
    changes = None
    if wanted.text("to") and not visit.error:
        changes = await _reset(visit, wanted, dry_run=True)
    moves = [change.after - change.before for change in changes or () if change.HasField("before")]
    return visit.page(
        "reset.html",
        name=visit.name(),
        topic=wanted.needed("topic", "Topic"),
        to=wanted.text("to"),
        targets=_TARGETS,
        wanted=wanted,
        changes=changes,
        again=-sum(move for move in moves if move < 0),
        skipped=sum(move for move in moves if move > 0),
    )


async def reset(visit: Visit) -> Response:
    """Move the group."""
    name, topic = visit.name(), visit.fields.needed("topic", "Topic")
    changes = await _reset(visit, visit.fields, dry_run=False)
    return visit.go(
        visit.url(f"/groups/{segment(name)}"), f"Group {name} was moved in {len(changes)} queues of {topic}."
    )


async def _reset(visit: Visit, wanted: Fields, *, dry_run: bool) -> list[admin_v1.ResetOffsetsResponse.Queue]:
    to = wanted.chosen("to", "Position", [value for value, _ in _TARGETS], "time")
    target: dict[str, Any] = {"earliest": True} if to == "earliest" else {"latest": True}
    if to == "time":
        target = {"timestamp": wanted.moment("value", "Time")}
    elif to in ("offset", "skip"):
        target = {to: wanted.number("value", "Offset or count")}
    elif to == "like":
        target = {"like_group": wanted.text("value") or None}
    if None in target.values():
        raise FormError("the position needs a time, offset, count or group; fill it in")
    return await visit.admin.reset_offsets(
        visit.name(),
        wanted.needed("topic", "Topic"),
        queue_ids=wanted.numbers("queues", "Queues"),
        dry_run=dry_run,
        **target,
    )
