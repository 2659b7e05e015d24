"""Which messages a receive wants."""

from __future__ import annotations

from functools import lru_cache

from aerobee_broker.errors import InvalidRequestError
from aerobee_proto import v2

_SQL = v2.FilterType.SQL


def tags_of(expression: v2.FilterExpression) -> frozenset[str] | None:
    """The tags that a filter expression names, None for all messages.

    Raises InvalidRequestError with ILLEGAL_FILTER_EXPRESSION for one that cannot be honoured.
    """
    if expression.type == _SQL:
        raise InvalidRequestError(
            v2.Code.ILLEGAL_FILTER_EXPRESSION,
            "SQL filters are not supported yet; filter by tag, as in `TagA || TagB`, or receive all and choose then",
        )
    return _parse_tags(expression.expression)


@lru_cache(maxsize=1024)
def _parse_tags(expression: str) -> frozenset[str] | None:
    if not expression.strip() or expression.strip() == "*":
        return None
    tags = frozenset(tag.strip() for tag in expression.split("||"))
    tags -= {""}
    if not tags:
        raise InvalidRequestError(
            v2.Code.ILLEGAL_FILTER_EXPRESSION,
            f"filter expression {expression[:80]!r} has no tag; write `TagA || TagB`, or `*` for all messages",
        )
    return tags
