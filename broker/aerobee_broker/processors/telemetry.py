"""Settings in Telemetry streams: the client's settings, and the broker's answer.

Answers are sent at once and to every kind of client, because several wait for the first one without a timeout. Their
content follows the needs of each released client, see the tests.
"""

from __future__ import annotations

from typing import Final

from aerobee_broker.clients.naming import group_name, topic_name
from aerobee_broker.clients.registry import Client, ClientRegistry
from aerobee_broker.config import Settings
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.messages.validation import check_client_properties
from aerobee_broker.tables.consumer_groups import CustomizedRetry, ExponentialRetry, GroupConfig, attempt_max
from aerobee_broker.tables.table_files import Tables
from aerobee_proto import v2
from aerobee_store.records.message_rules import LITE_TOPIC

LONG_POLLING_SECONDS: Final = 20
PRODUCER_MAX_ATTEMPTS: Final = 3
SETTINGS_SIZE_MAX: Final = 256 << 10  # bytes; kept while the client is connected. 3,000 subscriptions are smaller
_LITE_TYPES: Final = (v2.ClientType.LITE_PUSH_CONSUMER, v2.ClientType.LITE_SIMPLE_CONSUMER)
_SIMPLE_TYPES: Final = (v2.ClientType.SIMPLE_CONSUMER, v2.ClientType.LITE_SIMPLE_CONSUMER)
_PRODUCER: Final = v2.ClientType.PRODUCER
_CUSTOMIZED_MAX: Final = 64  # entries; Python clients use the last one for all later attempts


class TelemetryProcessor:
    """Answers commands of clients in Telemetry streams."""

    def __init__(self, settings: Settings, tables: Tables, clients: ClientRegistry) -> None:
        self._settings = settings
        self._tables = tables
        self._clients = clients

    def process(self, command: v2.TelemetryCommand, client: Client) -> v2.TelemetryCommand | None:
        """The answer to a command, or None. Raises InvalidRequestError, IllegalTopicError, IllegalGroupError.

        Commands other than settings are answers to commands of the broker.
        """
        if command.WhichOneof("command") != "settings":
            self._clients.answered(client, command)
            return None
        return v2.TelemetryCommand(
            status=v2.Status(code=v2.Code.OK, message="OK"), settings=self.settings(command.settings, client)
        )

    def settings(self, received: v2.Settings, client: Client) -> v2.Settings:
        """Store the client's settings and return the broker's."""
        kind = received.WhichOneof("pub_sub")
        if kind is None:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST, "settings have neither publishing nor subscription; set one of them"
            )
        if (size := received.ByteSize()) > SETTINGS_SIZE_MAX:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST,
                f"the settings take {size} bytes; the limit is {SETTINGS_SIZE_MAX}; subscribe to fewer topics",
            )
        check_client_properties(received)
        reply = v2.Settings()
        reply.CopyFrom(received)
        # As in RocketMQ: its clients need not export metrics. Without it C++ and C# would keep asking.
        reply.metric.CopyFrom(v2.Metric(on=False))
        if kind == "publishing":
            client.topics = frozenset(topic_name(topic, client) for topic in received.publishing.topics if topic.name)
            client.client_type = received.client_type or _PRODUCER
            self._publishing(reply)
        else:
            self._subscription(received, reply, client)
        self._clients.remember(client, received)
        return reply

    def _publishing(self, reply: v2.Settings) -> None:
        reply.publishing.max_body_size = self._settings.current.store.body_size_max
        reply.publishing.validate_message_type = True
        policy = v2.RetryPolicy(max_attempts=PRODUCER_MAX_ATTEMPTS)
        policy.exponential_backoff.initial.FromMilliseconds(10)
        policy.exponential_backoff.max.FromSeconds(1)
        policy.exponential_backoff.multiplier = 2
        reply.backoff_policy.CopyFrom(policy)

    def _subscription(self, received: v2.Settings, reply: v2.Settings, client: Client) -> None:
        name = group_name(received.subscription.group, client)
        topics = [topic_name(entry.topic, client) for entry in received.subscription.subscriptions]
        client.group = name
        client.client_type = received.client_type or v2.ClientType.PUSH_CONSUMER
        group = self._tables.group_or_first_use(name, topics)
        subscription = reply.subscription
        subscription.fifo = group.consume_orderly
        # Go's client continues with the rest of a batch while it waits to retry a failed message. Rust's consumes a
        # batch in parallel, whatever the group. Both would break the order.
        alone = group.consume_orderly and client.language in ("GO", "RUST")
        subscription.receive_batch_size = 1 if alone else self._settings.current.delivery.receive_count_max
        own = received.subscription.long_polling_timeout
        if received.client_type not in _SIMPLE_TYPES or (own.seconds, own.nanos) <= (0, 0):
            subscription.long_polling_timeout.FromSeconds(LONG_POLLING_SECONDS)
        if received.client_type in _LITE_TYPES:
            subscription.lite_subscription_quota = self._settings.current.delivery.lite_subscriptions_max
            subscription.max_lite_topic_size = LITE_TOPIC.size_max
        reply.backoff_policy.CopyFrom(backoff_policy(group, client.language))


def backoff_policy(group: GroupConfig, language: str) -> v2.RetryPolicy:
    """The group's retry policy in a form that the client understands.

    `language` is from its header. The Python client supports only a list of whole seconds; the Node client, whose
    header says HTTP, only exponential delays.
    """
    attempts = attempt_max(group.retry_max_times)
    policy = group.retry_policy
    if language == "PYTHON" and isinstance(policy, ExponentialRetry):
        delays = (policy.delay_ms(attempt) for attempt in range(1, min(attempts, _CUSTOMIZED_MAX) + 1))
        policy = CustomizedRetry(tuple(-(-delay // 1000) * 1000 for delay in delays))
    elif language in ("HTTP", "NODE_JS") and isinstance(policy, CustomizedRetry):
        first = max(policy.next_ms[0], 1)
        policy = ExponentialRetry(initial_ms=first, max_ms=max(*policy.next_ms, first))
    return retry_policy(policy, attempts)


def retry_policy(policy: CustomizedRetry | ExponentialRetry, max_attempts: int) -> v2.RetryPolicy:
    """The wire form of a retry policy."""
    wire = v2.RetryPolicy(max_attempts=max_attempts)
    if isinstance(policy, ExponentialRetry):
        wire.exponential_backoff.initial.FromMilliseconds(policy.initial_ms)
        wire.exponential_backoff.max.FromMilliseconds(policy.max_ms)
        wire.exponential_backoff.multiplier = policy.multiplier
    else:
        for delay in policy.next_ms:
            wire.customized_backoff.next.add().FromMilliseconds(delay)
    return wire
