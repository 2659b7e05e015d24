"""Tag expressions, as in `paid || refunded`: what a consumer subscribes to."""

from __future__ import annotations

from typing import Final

_OPERATORS: Final = frozenset("|& \t\r\n\f\v")


def tags_of(expression: str) -> frozenset[str]:
    """The tags that an expression names; none of them means all messages. Surrounding blanks do not count.

    Raises ValueError for an expression that names no tag, such as `||` or `&&`: it would select nothing, and a group
    that receives with it would skip every message. RocketMQ refuses `||`, and takes `&&` for the name of a tag.
    """
    if expression.strip() in ("", "*"):
        return frozenset()
    if _OPERATORS.issuperset(expression):
        raise ValueError(
            f"filter expression {expression[:80]!r} has no tag; write `TagA || TagB`, or `*` for all messages"
        )
    return frozenset(tag.strip() for tag in expression.split("||")) - {""}
