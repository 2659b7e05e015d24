"""The answer to a client's settings: what depends on its language, and limits; the rest are conformance items."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.clients.registry import Client, ClientRegistry
from aerobee_broker.config import BrokerConfig, Settings
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.processors.telemetry import TelemetryProcessor, backoff_policy
from aerobee_broker.tables.consumer_groups import CustomizedRetry, ExponentialRetry, GroupConfig
from aerobee_broker.tables.table_files import Tables
from aerobee_proto import v2
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.testing import ManualClock
from tests.support.saved_tables import saved


async def _nowhere(*_: object) -> None:
    raise AssertionError("settings are not saved")


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables.load(Settings(BrokerConfig.tiny(tmp_path)), ManualClock(), DiskFileSystem(), _nowhere)


@pytest.fixture
def telemetry(tables: Tables, tmp_path: Path) -> TelemetryProcessor:
    return TelemetryProcessor(Settings(BrokerConfig.tiny(tmp_path)), tables, ClientRegistry(ManualClock()))


def consumer(group: str = "billing") -> v2.Settings:
    settings = v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER)
    settings.subscription.group.name = group
    settings.subscription.subscriptions.add(topic=v2.Resource(name="orders"))
    return settings


def test_the_group_is_that_of_the_namespace(telemetry: TelemetryProcessor, tables: Tables) -> None:
    saved(tables.groups).create(GroupConfig(name="shop%billing", consume_orderly=True))
    client = Client("a")
    client.namespace = "shop"
    assert telemetry.settings(consumer(), client).subscription.fifo
    assert client.group == "shop%billing"


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


def test_settings_of_neither_a_producer_nor_a_consumer(telemetry: TelemetryProcessor) -> None:
    with pytest.raises(InvalidRequestError, match="neither publishing nor subscription; set one"):
        telemetry.settings(v2.Settings(), Client("a"))


def test_kept_settings_have_a_limit(telemetry: TelemetryProcessor) -> None:
    """Thousands of subscriptions are accepted. Larger settings are refused before they are stored."""
    client = Client("c")
    settings = consumer()
    for number in range(3000):
        entry = settings.subscription.subscriptions.add(topic=v2.Resource(name=f"a-topic-with-a-longer-name-{number}"))
        entry.expression.expression = "one || two || three"
    assert telemetry.settings(settings, client).subscription.receive_batch_size > 0
    assert client.settings == settings
    kept = client.settings_data
    settings.user_agent.hostname = "x" * (256 << 10)
    with pytest.raises(InvalidRequestError, match="the limit is 262144; subscribe to fewer"):
        telemetry.settings(settings, client)
    assert client.settings_data == kept
