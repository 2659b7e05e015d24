"""Filters of subscriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aerobee_proto import v2
from aerobee_store.records.tag_expression import tags_of


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A filter over properties, such as `amount > 100 AND region = 'north'`. The server must support it."""

    expression: str


Filter = str | SqlFilter
"""A filter of a topic: tags such as `"paid || refunded"`, `"*"` for all messages, or SQL over properties."""

Subscriptions = str | Sequence[str] | Mapping[str, Filter]
"""One topic, several, or topics with their filters: `{"orders": "paid || refunded", "stock": SqlFilter("n > 100")}`."""


def wire_filters(subscriptions: Subscriptions) -> dict[str, v2.FilterExpression]:
    """The filters by topic. ValueError if there is no topic, or an expression names no tag."""
    if isinstance(subscriptions, str):
        subscriptions = {subscriptions: "*"}
    if not subscriptions:
        raise ValueError("subscriptions is empty; name at least one topic")
    if not isinstance(subscriptions, Mapping):
        subscriptions = dict.fromkeys(subscriptions, "*")
    return {topic: _wire_filter(expression) for topic, expression in subscriptions.items()}


def wire_subscription(group: str, filters: Mapping[str, v2.FilterExpression]) -> v2.Subscription:
    """The settings with which a consumer of `group` registers."""
    entries = [v2.SubscriptionEntry(topic=v2.Resource(name=t), expression=f) for t, f in filters.items()]
    subscription = v2.Subscription(group=v2.Resource(name=group), subscriptions=entries)
    subscription.long_polling_timeout.FromSeconds(20)
    return subscription


def _wire_filter(expression: Filter) -> v2.FilterExpression:
    if isinstance(expression, SqlFilter):
        return v2.FilterExpression(type=v2.FilterType.SQL, expression=expression.expression)
    if not isinstance(expression, str):
        raise TypeError(f"the filter {expression!r} is neither tags nor SqlFilter; give '*' for all messages")
    tags_of(expression)
    return v2.FilterExpression(type=v2.FilterType.TAG, expression=expression)
