"""Values of the protocol as words for people."""

from __future__ import annotations

from collections.abc import Iterable

from aerobee_proto import admin_v1, v2


def enum_words(name: str, prefix: str = "") -> str:
    """The name of a value as words: `LITE_PUSH_CONSUMER` is "lite push consumer"."""
    return name.removeprefix(prefix).lower().replace("_", " ")


def message_types(topic: admin_v1.Topic) -> str:
    """What a topic accepts."""
    return ", ".join(enum_words(v2.MessageType.Name(kind)) for kind in topic.accept_message_types) or "normal"


def permission(topic: admin_v1.Topic) -> str:
    """What clients may do with a topic."""
    return {
        v2.Permission.READ: "read only",
        v2.Permission.WRITE: "write only",
        v2.Permission.READ_WRITE: "read and write",
    }.get(topic.permission, "neither read nor write")


def addresses(broker: admin_v1.ClusterBroker) -> str:
    """Those of a broker for the older protocol, each with the id of the broker; the master's is 0."""
    return ", ".join(f"{broker_id}: {address}" for broker_id, address in sorted(broker.addresses.items()))


def event(kind: admin_v1.TimelineEvent.Kind.ValueType) -> str:
    """What happened to a message."""
    return enum_words(admin_v1.TimelineEvent.Kind.Name(kind))


def client_type(kind: v2.ClientType.ValueType) -> str:
    """What a client is."""
    return "not known" if kind == v2.ClientType.CLIENT_TYPE_UNSPECIFIED else enum_words(v2.ClientType.Name(kind))


def sdk(client: admin_v1.Connection) -> str:
    """Language and version of a client's SDK."""
    language = v2.Language.Name(client.language)
    name = {"LANGUAGE_UNSPECIFIED": "", "CPP": "C++", "DOT_NET": ".NET", "NODE_JS": "Node.js", "PHP": "PHP"}.get(
        language, language.capitalize()
    )
    return f"{name} {client.version}".strip() or "not known"


def subscription(entry: v2.SubscriptionEntry) -> str:
    """A filter expression; empty for all messages."""
    expression = entry.expression.expression
    return "" if expression in ("", "*") else expression


def retry_delays(policy: v2.RetryPolicy) -> str:
    """The waits between deliveries."""
    if policy.WhichOneof("strategy") == "exponential_backoff":
        backoff = policy.exponential_backoff
        return (
            f"{_seconds(backoff.initial.ToMilliseconds())}, times {backoff.multiplier:g} each time, "
            f"at most {_seconds(backoff.max.ToMilliseconds())}"
        )
    delays = [_seconds(delay.ToMilliseconds()) for delay in policy.customized_backoff.next]
    return ", ".join(delays) or "the broker's default"


def joined(names: Iterable[str], most: int = 8) -> str:
    """Names in one line, not too many of them."""
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most:,} more" if len(listed) > most else "")


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} s"


# The ends of names of settings, longest first, and what they say.
_UNITS = (
    ("_milliseconds", "ms"), ("_seconds", "s"), ("_hours", "h"), ("_ratio", "of 1"), ("_percent", "%"),
    ("_per_second", "per s"), ("_bytes", "bytes"), ("_size", "bytes"), ("_count", ""),
)  # fmt: skip


def unit(name: str) -> str:
    """The unit of a setting, which its name says; empty for none."""
    for end in ("_max", "_min", "_default"):
        name = name.removesuffix(end)
    if name.endswith("_bytes_per_second"):
        return "bytes per s"
    found = next((unit for end, unit in _UNITS if name.endswith(end)), "")
    if not found and "_bytes" in name:
        return "bytes"
    return found or ("s" if "_seconds" in name else "")


def source(value: admin_v1.SettingSource.ValueType) -> str:
    """Where the value of a setting comes from."""
    return {
        admin_v1.SettingSource.SETTING_SOURCE_DEFAULT: "default",
        admin_v1.SettingSource.SETTING_SOURCE_ROCKETMQ_CONF: "broker.conf",
        admin_v1.SettingSource.SETTING_SOURCE_FILE: "configuration file",
        admin_v1.SettingSource.SETTING_SOURCE_SAVED: "set while running",
        admin_v1.SettingSource.SETTING_SOURCE_ENVIRONMENT: "environment",
        admin_v1.SettingSource.SETTING_SOURCE_FLAG: "command line",
    }.get(value, "not known")
