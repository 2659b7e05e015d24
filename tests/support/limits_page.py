"""Makes docs/limits.md: every limit with its setting, its default, and what a client is answered beyond it.

    python -m tests.support.limits_page             write the page
    python -m tests.support.limits_page --check     fail if it differs from the code

Names and defaults come from the settings and from the rules of messages. What happens beyond a limit is said here, and
a limit without that stops the tool.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from aerobee_broker.config import BrokerConfig, setting_names
from aerobee_broker.services import requests
from aerobee_store.records import message_rules as rules

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
_TOO_MANY: Final = "`TOO_MANY_REQUESTS`"
_FULL: Final = "`INTERNAL_SERVER_ERROR`, with the reason"
_BEYOND: Final = {
    "delivery.auto_renew_seconds_max": "the message becomes visible again, although its push consumer lives",
    "delivery.fifo_waiting_max": "further waiting messages of a queue keep 8 bytes each in memory",
    "delivery.in_flight_per_group_max": f"a receive gets {_TOO_MANY}",
    "delivery.invisible_seconds_max": "`ILLEGAL_INVISIBLE_TIME`",
    "delivery.invisible_seconds_min": "`ILLEGAL_INVISIBLE_TIME`",
    "delivery.lite_subscriptions_max": "`LITE_SUBSCRIPTION_QUOTA_EXCEEDED`",
    "delivery.poll_seconds_max": "the receive is answered earlier than it asked",
    "delivery.priority_waiting_max": "later messages are not compared yet",
    "delivery.receive_bytes_max": "the answer has fewer messages, at least one",
    "delivery.receive_count_max": "the answer has fewer messages",
    "delivery.waiting_max": f"a receive that would wait gets {_TOO_MANY}",
    "delivery.waiting_per_group_max": f"a receive that would wait gets {_TOO_MANY}",
    "front.call_count_max": "the call is refused (REFUSED_STREAM); clients try again",
    "front.cheap_frame_count_max": "the connection is closed (ENHANCE_YOUR_CALM)",
    "front.connection_answer_size_max": "further calls of the connection are refused (REFUSED_STREAM)",
    "front.connection_count_max": "the new connection is closed",
    "front.connection_request_size_max": "the call ends with RESOURCE_EXHAUSTED",
    "front.handshake_count_max": "the oldest handshake ends",
    "front.header_count_max": "the call ends with RESOURCE_EXHAUSTED",
    "front.header_size_max": "the call ends with RESOURCE_EXHAUSTED; far larger ones close the connection",
    "front.stream_count_max": "the call is refused (REFUSED_STREAM); clients try again",
    "limits.answer_bytes_max": "receives and pulls wait for space",
    "limits.answer_bytes_per_client_max": "receives and pulls wait for space",
    "limits.delay_seconds_max": "`ILLEGAL_DELIVERY_TIME`",
    "limits.properties_size_max": "`MESSAGE_PROPERTIES_TOO_LARGE`",
    "limits.request_bytes_max": f"the request waits; after 5 s {_TOO_MANY}",
    "limits.request_bytes_per_client_max": f"the request waits; after 5 s {_TOO_MANY}",
    "limits.table_bytes_max": f"what needs a new topic, group or position gets {_TOO_MANY}; what exists goes on",
    "limits.user_property_count_max": "`MESSAGE_PROPERTIES_TOO_LARGE`",
    "limits.waiting_bytes_max": "the connections that hold most are closed, those without an account first",
    "replication.lag_bytes_max": "the replica is not in sync",
    "store.body_size_max": "`MESSAGE_BODY_TOO_LARGE`",
    "store.dispatch_waiting_bytes_max": _TOO_MANY,
    "store.dispatch_waiting_count_max": _TOO_MANY,
    "store.light_queue_count_max": "`LITE_TOPIC_QUOTA_EXCEEDED`",
    "transactions.age_hours_max": "the transaction is given up, and its message is moved to TRANS_CHECK_MAX_TIME_TOPIC",
    "transactions.check_max": "the transaction is given up, and its message is moved to TRANS_CHECK_MAX_TIME_TOPIC",
    "transactions.pending_max": f"a transactional send gets {_TOO_MANY}",
}
_OTHERS: Final = {
    "store.disk_full_ratio": f"{_FULL}: [the disk is full](disk-full.md)",
    "store.disk_headroom": f"{_FULL}: [the disk is full](disk-full.md)",
}
_NO_LIMITS: Final = frozenset({"store.retention_batch_max"})
"""Settings with such a name that limit nothing a client does."""
_HEAD: Final = """# Limits

Every limit of a broker, its default, and what happens beyond it. `make map` writes this page from the settings and the
rules in the code. `aerobee config show` prints the values in force. What each bound protects against is in
[security.md](security.md).
"""


def size(value: int) -> str:
    """A number of bytes with a unit if it is a whole number of them."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value and value % unit == 0:
            return f"{value // unit} {name}"
    return f"{value:,}"


def amount(name: str, value: object) -> str:
    """The value of a setting with its unit, which is part of the name."""
    assert isinstance(value, int | float), "a limit is a number"
    if isinstance(value, int) and re.search(r"size|bytes|headroom", name):
        return size(value)
    unit = next((unit for unit in ("seconds", "hours") if f"{unit}_" in name), "")
    return f"{value:,.12g}{' ' * bool(unit)}{unit}"


def of_settings() -> list[str]:
    """A row for each setting that is a limit."""
    config = BrokerConfig.load()
    named = {name for name in setting_names() if re.search(r"_max$|seconds_min$", name)} - _NO_LIMITS
    beyond = _BEYOND | _OTHERS
    assert named - beyond.keys() == set(), "say in _BEYOND what happens beyond the limit"
    return [f"| `{name}` | {amount(name, config.setting(name))} | {beyond[name]} |" for name in sorted(beyond)]


def of_messages() -> list[str]:
    """A row for each rule about the length of a text, and for the counts that no setting changes."""
    found = {rule.field: rule for rule in vars(rules).values() if isinstance(rule, rules.TextRule)}
    rows = [
        f"| {rule.field} | {rule.size_max:,} bytes | `{rule.size_code or rule.code}` |"
        for _, rule in sorted(found.items())
        if rule.size_max < rules.TextRule("", "").size_max
    ]
    rows += [
        f"| keys of a message | {rules.KEY_COUNT_MAX:,} | `MESSAGE_PROPERTIES_TOO_LARGE` |",
        f"| name of a topic | {rules.NAME_SIZE_MAX} characters | `ILLEGAL_TOPIC` |",
        f"| time until a transaction is checked | {rules.TRANSACTION_RECOVERY_SECONDS_MAX:,} s | `BAD_REQUEST` |",
    ]
    return rows


def of_requests() -> list[str]:
    """A row for each size of a request and of a repeated field."""
    rows = [
        f"| {name.rpartition('.')[2]} | {size(value)} | `PAYLOAD_TOO_LARGE` |"
        for name, value in sorted(requests.SIZES_MAX.items())
    ]
    rows.append(f"| any other request | {size(requests.SIZE_MAX_DEFAULT)} | `PAYLOAD_TOO_LARGE` |")
    rows += [
        f"| entries of {'.'.join(name.split('.')[3:])} | {value:,} | `PAYLOAD_TOO_LARGE` |"
        for name, value in sorted(requests.ENTRIES_MAX.items())
    ]
    rows.append(f"| entries of any other repeated field | {requests.ENTRIES_MAX_DEFAULT:,} | `PAYLOAD_TOO_LARGE` |")
    return rows


def page() -> str:
    """The text of docs/limits.md."""
    parts = [_HEAD]
    for title, first, rows in (
        ("With a setting", "Setting", of_settings()),
        ("Of a message", "Subject", of_messages()),
        ("Of a request", "Subject", of_requests()),
    ):
        parts.append(f"## {title}\n\n| {first} | Limit | Beyond it |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def main() -> int:
    """Write or check the page. Returns the exit code."""
    made = page()
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != made:
            print("docs/limits.md differs from the code; run `make map`", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
