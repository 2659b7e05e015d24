"""The answer to a client's settings has everything that released clients need."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.clients.registry import Client, ClientRegistry
from aerobee_broker.config import BrokerConfig, Settings
from aerobee_broker.errors import IllegalGroupError, IllegalTopicError, InvalidRequestError
from aerobee_broker.processors.telemetry import TelemetryProcessor, backoff_policy
from aerobee_broker.tables.consumer_groups import CustomizedRetry, ExponentialRetry, GroupConfig
from aerobee_broker.tables.table_files import Tables
from aerobee_proto import v2
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.testing import ManualClock
from tests.support.saved_tables import saved

ACCESS_POINT = v2.Endpoints(scheme=v2.AddressScheme.IPv4, addresses=[v2.Address(host="127.0.0.1", port=8081)])


async def _nowhere(*_: object) -> None:
    raise AssertionError("settings are not saved")


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables.load(Settings(BrokerConfig.tiny(tmp_path)), ManualClock(), DiskFileSystem(), _nowhere)


@pytest.fixture
def telemetry(tables: Tables, tmp_path: Path) -> TelemetryProcessor:
    return TelemetryProcessor(Settings(BrokerConfig.tiny(tmp_path)), tables, ClientRegistry(ManualClock()))


def producer(*topics: str) -> v2.Settings:
    settings = v2.Settings(client_type=v2.ClientType.PRODUCER, access_point=ACCESS_POINT)
    settings.request_timeout.FromSeconds(3)
    settings.publishing.SetInParent()
    settings.publishing.topics.extend(v2.Resource(name=topic) for topic in topics)
    settings.user_agent.language = v2.Language.PYTHON
    return settings


def consumer(kind: v2.ClientType.ValueType = v2.ClientType.PUSH_CONSUMER, group: str = "billing") -> v2.Settings:
    settings = v2.Settings(client_type=kind, access_point=ACCESS_POINT)
    settings.subscription.group.name = group
    settings.subscription.subscriptions.add(topic=v2.Resource(name="orders"))
    return settings


def test_a_producer_gets_its_limits(telemetry: TelemetryProcessor) -> None:
    """Positive body size, exponential backoff, and validation; the client's own settings are returned."""
    client = Client("a")
    received = producer("orders")
    reply = telemetry.process(v2.TelemetryCommand(settings=received), client)
    assert reply is not None
    assert reply.status.code == v2.Code.OK
    settings = reply.settings
    assert settings.publishing.max_body_size == 8192  # the limit of the tiny store
    assert settings.publishing.validate_message_type
    assert list(settings.publishing.topics) == list(received.publishing.topics)
    assert settings.backoff_policy.max_attempts == 3
    assert settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    assert settings.backoff_policy.exponential_backoff.initial.ToMilliseconds() == 10
    for name in ("client_type", "access_point", "request_timeout", "user_agent"):
        assert getattr(settings, name) == getattr(received, name)
    assert settings.HasField("metric")
    assert client.topics == {"orders"}
    assert client.settings == received


def test_a_producer_may_have_no_topics(telemetry: TelemetryProcessor) -> None:
    """Several official producers name their topics only when they send."""
    assert telemetry.settings(producer(), Client("a")).publishing.max_body_size > 0


def test_a_push_consumer_gets_its_settings(telemetry: TelemetryProcessor) -> None:
    """The answer has batch size, polling time, order and retries, even for a group that does not exist yet."""
    client = Client("a")
    settings = telemetry.settings(consumer(), client)
    assert settings.subscription.receive_batch_size == 32
    assert settings.subscription.long_polling_timeout.ToSeconds() == 20
    assert settings.subscription.HasField("fifo")
    assert not settings.subscription.fifo
    assert settings.subscription.group.name == "billing"
    assert [entry.topic.name for entry in settings.subscription.subscriptions] == ["orders"]
    assert settings.backoff_policy.max_attempts == 17
    assert len(settings.backoff_policy.customized_backoff.next) == 18
    assert client.group == "billing"


def test_an_orderly_group_is_fifo(telemetry: TelemetryProcessor, tables: Tables) -> None:
    """The consumer needs the flag to consume in order."""
    saved(tables.groups).create(GroupConfig(name="shop%billing", consume_orderly=True, retry_max_times=4))
    client = Client("a")
    client.namespace = "shop"
    settings = telemetry.settings(consumer(), client)
    assert settings.subscription.fifo
    assert settings.backoff_policy.max_attempts == 5


@pytest.mark.parametrize(("language", "size"), [("GO", 1), ("RUST", 1), ("JAVA", 32), ("PYTHON", 32), ("HTTP", 32)])
def test_go_and_rust_get_one_message_at_a_time_of_an_orderly_group(
    telemetry: TelemetryProcessor, tables: Tables, language: str, size: int
) -> None:
    """After a failure Go's client continues with the rest of a batch. Rust's client ignores the FIFO flag."""
    saved(tables.groups).create(GroupConfig(name="billing", consume_orderly=True))
    client = Client("a")
    client.language = language
    assert telemetry.settings(consumer(), client).subscription.receive_batch_size == size
    assert telemetry.settings(consumer(group="unordered"), client).subscription.receive_batch_size == 32


def test_simple_and_lite_consumers(telemetry: TelemetryProcessor) -> None:
    """A simple consumer keeps its polling time. Lite consumers need a quota to subscribe."""
    received = consumer(v2.ClientType.SIMPLE_CONSUMER)
    received.subscription.long_polling_timeout.FromSeconds(5)
    assert telemetry.settings(received, Client("a")).subscription.long_polling_timeout.ToSeconds() == 5
    for kind in (v2.ClientType.LITE_PUSH_CONSUMER, v2.ClientType.LITE_SIMPLE_CONSUMER):
        subscription = telemetry.settings(consumer(kind), Client("a")).subscription
        assert subscription.lite_subscription_quota > 0
        assert subscription.max_lite_topic_size == 64


@pytest.mark.parametrize(
    ("language", "strategy"), [("PYTHON", "customized"), ("HTTP", "exponential"), ("JAVA", "own"), ("", "own")]
)
@pytest.mark.parametrize("policy", [CustomizedRetry((1500, 3000)), ExponentialRetry(1500, 6000, 2)])
def test_backoff_in_the_form_that_the_client_knows(
    language: str, strategy: str, policy: CustomizedRetry | ExponentialRetry
) -> None:
    """Python's client reads only lists of whole seconds; Node's client (HTTP in its header) only exponential delays."""
    own = "customized" if isinstance(policy, CustomizedRetry) else "exponential"
    wire = backoff_policy(GroupConfig(name="g", retry_policy=policy, retry_max_times=3), language)
    assert wire.max_attempts == 4
    assert wire.WhichOneof("strategy") == f"{own if strategy == 'own' else strategy}_backoff"
    if language == "PYTHON" and own == "exponential":
        assert [delay.ToMilliseconds() for delay in wire.customized_backoff.next] == [2000, 3000, 6000, 6000]
    if language == "HTTP" and own == "customized":
        assert wire.exponential_backoff.initial.ToMilliseconds() == 1500
        assert wire.exponential_backoff.max.ToMilliseconds() == 3000


def test_invalid_settings_are_refused(telemetry: TelemetryProcessor) -> None:
    """Settings without publishing or subscription and invalid names are refused."""
    with pytest.raises(InvalidRequestError, match="neither publishing nor subscription"):
        telemetry.settings(v2.Settings(), Client("a"))
    with pytest.raises(IllegalTopicError):
        telemetry.settings(producer("no such name!"), Client("a"))
    with pytest.raises(IllegalGroupError):
        telemetry.settings(consumer(group="a.b"), Client("a"))


def test_kept_settings_have_a_limit(telemetry: TelemetryProcessor) -> None:
    """Thousands of subscriptions are accepted. Larger settings are refused before they are stored."""
    client = Client("c")
    settings = consumer()
    for number in range(3000):
        entry = settings.subscription.subscriptions.add(topic=v2.Resource(name=f"a-topic-with-a-longer-name-{number}"))
        entry.expression.expression = "one || two || three"
    assert telemetry.settings(settings, client).subscription.receive_batch_size > 0
    kept = client.settings_data
    settings.user_agent.hostname = "x" * (256 << 10)
    with pytest.raises(InvalidRequestError, match="the limit is 262144; subscribe to fewer"):
        telemetry.settings(settings, client)
    assert client.settings_data == kept


def test_answers_to_commands_are_accepted(telemetry: TelemetryProcessor) -> None:
    """Node's client answers in the wrong field, which is accepted."""
    wrong = v2.TelemetryCommand(verify_message_command=v2.VerifyMessageCommand(nonce="1"))
    assert telemetry.process(wrong, Client("a")) is None
    assert telemetry.process(v2.TelemetryCommand(), Client("a")) is None
