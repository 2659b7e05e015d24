"""Options: each wrong one is refused at planning, with its name and the expected form."""

from __future__ import annotations

import json

import pytest

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.offsets import Queue
from aerobee_pipeline.options import SinkOptions, SourceOptions
from aerobee_pipeline.reading.schema import checked_columns, default_columns

STORE = {"storepath": "/s", "subscribe": "t"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscribe": "t"}, "option endpoint is missing"),
        ({"mode": "store", "subscribe": "t"}, "option storePath is missing"),
        ({"storepath": "/s"}, "exactly one of subscribe, subscribePattern and assign, not none"),
        ({**STORE, "assign": '{"t": [0]}'}, "assign, not subscribe, assign"),
        ({"storepath": "/s", "assign": '{"t": 0}'}, "expected queue ids"),
        ({"storepath": "/s", "subscribepattern": "("}, "not a regular expression"),
        ({**STORE, "stratingoffsets": "latest"}, "unknown option 'stratingoffsets'"),
        ({**STORE, "startingoffsets": "latest"}, "latest .* is not allowed here"),
        (
            {**STORE, "endingoffsets": '{"t": {"0": -2}}'},
            "earliest .* is not allowed here, given for topic 't', queue 0",
        ),
        ({**STORE, "splitbytes": "many"}, "splitBytes: 'many' is not a size"),
        ({**STORE, "minpartitions": "0"}, "minPartitions: '0' is not a number of at least 1"),
        ({**STORE, "maxtriggerdelay": "long"}, "maxTriggerDelay: 'long' is not a duration"),
        (
            {**STORE, "minoffsetspertrigger": "9", "maxoffsetspertrigger": "8"},
            "minOffsetsPerTrigger: 9 is more than maxOffsetsPerTrigger, 8",
        ),
        ({**STORE, "failondataloss": "yes"}, "neither true nor false"),
        ({**STORE, "subexpression": "a || "}, "not a tag expression"),
        ({**STORE, "maxBytesPerTrigger": "1m"}, "maxBytesPerTrigger.* is not supported: .*maxOffsetsPerTrigger"),
        ({**STORE, "pullBatchSize": "32"}, "pullBatchSize.* it counts messages; use pullBytes"),
        ({**STORE, "kafka.security.protocol": "SASL_SSL"}, "kafka.security.protocol.* give tlsCa for TLS"),
        ({**STORE, "kafka.sasl.jaas.config": "x"}, "kafka.sasl.jaas.config.* give credentialsFile"),
        ({**STORE, "kafka.ssl.truststore.location": "x"}, "kafka.ssl.truststore.location.* give tlsCa"),
        ({**STORE, "kafka.ssl.keystore.location": "x"}, "kafka.ssl.keystore.location.* no certificates of their own"),
        ({**STORE, "kafka.fetch.min.bytes": "1"}, "kafka.fetch.min.bytes.* leave it out"),
        ({**STORE, "groupIdPrefix": "x"}, "groupIdPrefix.* joins no group"),
        ({**STORE, "maxRecordsPerPartition": "9", "readBy": "log"}, "maxRecordsPerPartition: readBy=log"),
        ({"endpoint": "a:1,b:1", "subscribe": "t"}, "endpoint: 'a:1,b:1' is a list of addresses"),
        ({"endpoint": "broker", "subscribe": "t"}, "endpoint: 'broker' has no port; expected HOST:PORT"),
        ({"endpoint": '{"a": "[::1]"}', "subscribe": "t"}, "has no port"),
        ({"endpoint": '{"a": 1}', "subscribe": "t"}, "endpoint: expected an address, or"),
        ({**STORE, "path": "/x"}, "take no path"),
    ],
)
def test_wrong_options(given: dict[str, str], message: str) -> None:
    """The message names the option."""
    with pytest.raises(OptionError, match=message):
        SourceOptions.parse(given, streaming=False)


def test_names_of_other_connectors() -> None:
    """Options with the same meaning as in other connectors have the same names."""
    options = SourceOptions.parse(
        {"kafka.bootstrap.servers": "h:1", "topic": "a, b", "includeHeaders": "true"}, streaming=True
    )
    assert (options.endpoints, options.subscription.topics) == ({"": "h:1"}, frozenset({"a", "b"}))
    assert options.include_properties
    fetch = SourceOptions.parse(
        {"nameServer": "h:1", "subscribe": "a", "fetchOffset.numRetries": "7", "fetchOffset.retryIntervalMs": "50"},
        streaming=True,
    )
    assert (fetch.retries, fetch.retry_interval_ms) == (7, 50)
    assert options.starting.place == "latest"


def test_several_brokers() -> None:
    """Stores and addresses have the names of their brokers, as do offsets."""
    addresses = {"broker-a": "h:1", "broker-b": "h:2"}
    starting = '{"t": {"broker-b": {"0": 5}}}'
    given = {"endpoint": json.dumps(addresses), "subscribe": "t", "startingOffsets": starting}
    options = SourceOptions.parse(given, streaming=False)
    assert options.endpoints == addresses
    assert options.starting.place == {Queue("t", "broker-b", 0): 5}
    with pytest.raises(OptionError, match="there are 2 brokers; name the broker for topic 't'"):
        SourceOptions.parse({**given, "startingOffsets": '{"t": {"0": 5}}'}, streaming=False)


def test_a_stream_has_no_end() -> None:
    """An end option would have no effect, so it is refused."""
    with pytest.raises(OptionError, match="a stream has no end"):
        SourceOptions.parse({**STORE, "endingoffsets": "latest"}, streaming=True)


def test_sizes_and_defaults() -> None:
    """Sizes accept units."""
    options = SourceOptions.parse({**STORE, "splitbytes": "64m", "subexpression": "a||b"}, streaming=False)
    assert (options.split_bytes, options.tags) == (64 << 20, frozenset({"a", "b"}))
    sink = SinkOptions.parse({"endpoint": "h:1"})
    assert (sink.batch_bytes, sink.in_flight_max, sink.dedup_property) == (1 << 20, 4, "SPARK_ID")
    with pytest.raises(OptionError, match="delivery: 'transactional'"):
        SinkOptions.parse({"endpoint": "h:1", "delivery": "transactional"})


def test_schemas_of_users() -> None:
    """Any subset of columns in any order; unknown names and other types are refused."""
    assert checked_columns([("body", "binary"), ("queueId", "int")]) == ["body", "queueId"]
    with pytest.raises(OptionError, match="unknown column 'value'"):
        checked_columns([("value", "binary")])
    with pytest.raises(OptionError, match="'body' is binary, not string"):
        checked_columns([("body", "string")])
    assert len(default_columns()) == 10
    assert len(default_columns(properties=True, system=True)) == 17
