"""Messages that wait: for their delivery time, or for the decision of a transaction."""

from __future__ import annotations

from starlette.responses import Response

from aerobee_broker.console import bodies
from aerobee_broker.console.forms import FormError
from aerobee_broker.console.lists import PAGE_COUNT
from aerobee_broker.console.visit import Visit
from aerobee_client.messages.message import stored_message
from aerobee_proto import admin_v1, v2


async def show_delayed(visit: Visit) -> Response:
    """Delayed messages in order of their delivery time."""
    query = visit.query
    request = admin_v1.ListDelayedMessagesRequest(
        topic=query.text("topic"), include_bodies=True, page_size=PAGE_COUNT, page_token=query.text("page")
    )
    for field, label in (("begin", "Due from"), ("end", "Due before")):
        if (moment := query.moment(field, label)) is not None:
            getattr(request, f"{field}_timestamp").FromMilliseconds(moment)
    found = await visit.admin.call(lambda stubs: stubs.aerobee_admin.ListDelayedMessages, request)
    return visit.page(
        "delayed.html",
        messages=[(each, stored_message(each.message)) for each in found.messages],
        total=found.total_count,
        next=found.next_page_token,
        bodies_hidden=found.bodies_hidden,
        one_line=bodies.one_line,
    )


async def recall(visit: Visit) -> Response:
    """Take the chosen ones back."""
    handles = visit.fields.getlist("handles")
    if not handles:
        raise FormError("no message is chosen; tick some")
    results = await visit.admin.recall_delayed(handles)
    good = sum(1 for result in results if result.status.code == v2.Code.OK)
    causes = {result.status.message for result in results if result.status.code != v2.Code.OK}
    text = f"{good:,} of {len(results):,} taken back; they are never delivered. {' '.join(sorted(causes)[:3])}"
    return visit.go(visit.url("/delayed"), text.strip(), "failed" if causes else "done")


async def show_transactions(visit: Visit) -> Response:
    """Open transactions, the oldest first."""
    query = visit.query
    request = admin_v1.ListTransactionsRequest(
        topic=query.text("topic"), include_bodies=True, page_size=PAGE_COUNT, page_token=query.text("page")
    )
    found = await visit.admin.call(lambda stubs: stubs.aerobee_admin.ListTransactions, request)
    return visit.page(
        "transactions.html",
        transactions=[(each, stored_message(each.message)) for each in found.transactions],
        total=found.total_count,
        next=found.next_page_token,
        bodies_hidden=found.bodies_hidden,
        one_line=bodies.one_line,
    )


async def decide(visit: Visit) -> Response:
    """Commit the chosen ones or roll them back, in place of their producers."""
    decision = visit.fields.chosen("decision", "Decision", ("commit", "rollback"), "")
    chosen: dict[str, list[str]] = {}
    for value in visit.fields.getlist("transactions"):
        topic, _, transaction = value.partition(" ")
        chosen.setdefault(topic, []).append(transaction)
    if not chosen:
        raise FormError("no transaction is chosen; tick some")
    statuses: list[v2.Status] = []
    for topic, transactions in chosen.items():
        results = await visit.admin.decide_transactions(topic, transactions, commit=decision == "commit")
        statuses += [result.status for result in results]
    good = sum(1 for status in statuses if status.code == v2.Code.OK)
    causes = {status.message for status in statuses if status.code != v2.Code.OK}
    what = "committed" if decision == "commit" else "rolled back"
    text = f"{good:,} of {len(statuses):,} {what}. {' '.join(sorted(causes)[:3])}"
    return visit.go(visit.url("/transactions"), text.strip(), "failed" if causes else "done")
