"""The options of source and sink: checked and converted in one place. docs/pipeline.md has the tables.

Spark passes names in lower case and values as text. Names of other connectors are accepted where they have the same
meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.offsets import EARLIEST, LATEST, Offsets, Queue, parse_user_offsets
from aerobee_store.records.decimals import MILLISECONDS, amount, decimal
from aerobee_store.records.tag_expression import tags_of

_SIZE_UNITS: Final = {"": 1, "b": 1} | {
    unit + end: 1 << 10 * power for power, unit in enumerate("kmg", 1) for end in ("", "b")
}
_ALIASES: Final = {
    "kafka.bootstrap.servers": "endpoint",
    "nameserver": "endpoint",
    "service.url": "endpoint",
    "topics": "subscribe",
    "topicspattern": "subscribepattern",
    "kafka.group.id": "group",
    "predefinedsubscription": "group",
    "includeheaders": "includeproperties",
    "polltimeoutms": "pulltimeoutms",
    "kafkaconsumer.polltimeoutms": "pulltimeoutms",
    "fetchoffset.numretries": "retries",
    "fetchoffset.retryintervalms": "retryintervalms",
}
# Options of other connectors that have no equal here, and what to use instead.
_INSTEAD: Final = {
    "maxbytespertrigger": "a broker knows the sizes of messages only after reading them; use maxOffsetsPerTrigger",
    "pullbatchsize": "it counts messages; use pullBytes",
    "groupidprefix": "the source joins no group; leave it out, or name a group for lag metrics with the option group",
    "includetimestamp": "the times of a message are always columns; leave it out",
}
# The same by the beginning of the name; the first that fits counts.
_INSTEAD_OF: Final = {
    "kafka.security.protocol": "give tlsCa for TLS, and credentialsFile or the environment for an account",
    "kafka.sasl.": "an account is an access key and a secret key; give credentialsFile, or set the environment",
    "kafka.ssl.truststore": "give tlsCa, a PEM file with the authorities to trust",
    "kafka.ssl.": "clients have no certificates of their own; give tlsCa for TLS and credentialsFile for an account",
    "kafka.": "it is a setting of Kafka's client, which has no part here; leave it out",
}
_SOURCE: Final = [
    "endpoint",
    "mode",
    "storePath",
    "subscribe",
    "subscribePattern",
    "assign",
    "topic",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "splitBytes",
    "failOnDataLoss",
    "includeProperties",
    "includeSystem",
    "subExpression",
    "pullBytes",
    "pullTimeoutMs",
    "retries",
    "retryIntervalMs",
    "group",
    "pushdown",
    "credentialsFile",
    "tlsCa",
    "readBy",
    "decompress",
    "onBadBody",
    "path",
]
_SINK: Final = [
    "endpoint",
    "topic",
    "delivery",
    "batchBytes",
    "maxInFlight",
    "maxRowsPerSecond",
    "sendTimeoutMs",
    "retries",
    "jobId",
    "dedupProperty",
    "credentialsFile",
    "tlsCa",
    "path",
]

# Spark also passes its own options of a stream.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})

ReadBy = Literal["auto", "log", "queue"]


@dataclass(frozen=True, slots=True)
class Subscription:
    """The selected topics, and with `assign` their selected queues."""

    topics: frozenset[str] | None = None
    pattern: str | None = None
    queues: Mapping[str, frozenset[int]] | None = None

    def has_topic(self, topic: str) -> bool:
        """Whether any queue of a topic is selected."""
        if self.queues is not None:
            return topic in self.queues
        if self.topics is not None:
            return topic in self.topics
        return re.fullmatch(self.pattern or "", topic) is not None

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether this queue of a selected topic is selected."""
        return self.queues is None or queue_id in self.queues[topic]

    @property
    def named(self) -> frozenset[str]:
        """The topics selected by name: a query for a missing one fails."""
        return self.topics or frozenset(self.queues or ())


Place = Literal["earliest", "latest"] | Offsets
"""A begin or end: the same for all queues, or by queue."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The begin or end of a query: a time for all queues, times by queue, or offsets. The first given one counts."""

    place: Place
    timestamp: int | None = None
    timestamps: Offsets | None = None

    @property
    def has_time(self) -> bool:
        """Whether a time precedes `place`."""
        return self.timestamp is not None or self.timestamps is not None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a query for the source."""

    mode: Literal["grpc", "store"]
    endpoints: Mapping[str, str]
    """The brokers of mode `grpc`: address by broker name; a single one may have the name ""."""
    stores: Mapping[str, Path]
    """The stores of mode `store`: directory by broker name."""
    subscription: Subscription
    starting: Limit
    ending: Limit
    by_timestamp_strategy: Literal["error", "latest"]
    offsets_per_trigger: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_seconds_max: float
    partitions_min: int | None
    partition_rows_max: int | None
    """Messages of a task; None: the planner's limit. Byte ranges of a log cannot keep it: it needs queues."""
    split_bytes: int
    fail_on_data_loss: bool
    include_properties: bool
    include_system: bool
    tags: frozenset[str] | None
    """None: all messages."""
    read_by: ReadBy
    decompress: bool
    bad_body_is_null: bool
    """A body that cannot be decompressed is null, and the column `decodeError` says why; otherwise it is an error."""
    pull_bytes: int
    pull_timeout_ms: int
    retries: int
    retry_interval_ms: int
    group: str | None
    pushdown: bool
    credentials_file: str | None
    tls_ca: str | None

    @property
    def brokers(self) -> list[str]:
        """The names of the brokers, as far as known before a broker is asked."""
        return list(self.stores if self.mode == "store" else self.endpoints)

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
        """OptionError names the option, its value and what is expected. `streaming` is None where both are possible."""
        options = _Given(given, _SOURCE)
        mode = options.choice("mode", "store" if options.has("storePath") else "grpc", "grpc", "store")
        stores: dict[str, Path] = {}
        if mode == "store":
            stores = {name: Path(path) for name, path in _by_broker("storePath", options.text("storePath")).items()}
        elif options.has("storePath"):
            raise OptionError("storePath: valid only with mode=store; leave one of them out")
        endpoints = _endpoints(options.text("endpoint")) if mode == "grpc" else {}
        brokers = list(stores or endpoints)
        starting = _limit(options, "starting", "latest" if streaming else "earliest", brokers)
        ending = _limit(options, "ending", "latest", brokers)
        _check_limits(options, starting, ending, streaming)
        if options.has("maxRecordsPerPartition") and options.optional("readBy") == "log":
            raise OptionError("maxRecordsPerPartition: readBy=log reads ranges of bytes; set readBy=queue or auto")
        tags = options.optional("subExpression")
        offsets_max, offsets_min = options.number("maxOffsetsPerTrigger"), options.number("minOffsetsPerTrigger")
        if offsets_max is not None and offsets_min is not None and offsets_min > offsets_max:
            raise OptionError(f"minOffsetsPerTrigger: {offsets_min} is more than maxOffsetsPerTrigger, {offsets_max}")
        return cls(
            mode="store" if mode == "store" else "grpc",
            endpoints=endpoints,
            stores=stores,
            subscription=_subscription(options),
            starting=starting,
            ending=ending,
            by_timestamp_strategy="latest"
            if options.choice("startingOffsetsByTimestampStrategy", "error", "error", "latest") == "latest"
            else "error",
            offsets_per_trigger=offsets_max,
            offsets_per_trigger_min=offsets_min,
            trigger_delay_seconds_max=options.seconds("maxTriggerDelay", "15m"),
            partitions_min=options.number("minPartitions"),
            partition_rows_max=options.number("maxRecordsPerPartition"),
            split_bytes=options.size("splitBytes", "128m") or 1,
            fail_on_data_loss=options.flag("failOnDataLoss", True),
            include_properties=options.flag("includeProperties", False),
            include_system=options.flag("includeSystem", False),
            tags=None if tags is None or tags.strip() == "*" else _tags(tags),
            read_by=options.choice("readBy", "auto", "auto", "log", "queue"),  # type: ignore[arg-type]  # checked there
            decompress=options.flag("decompress", True),
            bad_body_is_null=options.choice("onBadBody", "fail", "fail", "null") == "null",
            pull_bytes=options.size("pullBytes", "4m") or 1,
            pull_timeout_ms=options.number("pullTimeoutMs", 30_000) or 1,
            retries=options.number("retries", 3, least=0) or 0,
            retry_interval_ms=options.number("retryIntervalMs", 200, least=0) or 0,
            group=options.optional("group"),
            pushdown=options.flag("pushdown", False),
            credentials_file=options.optional("credentialsFile"),
            tls_ca=options.optional("tlsCa"),
        )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a query for the sink. `topic` takes precedence over the column of that name; None: the column is
    required."""

    endpoint: str
    topic: str | None
    batch_bytes: int
    in_flight_max: int
    rows_per_second: int | None
    """Per task; None: unlimited."""
    send_timeout_ms: int
    retries: int
    job_id: str | None
    dedup_property: str
    credentials_file: str | None
    tls_ca: str | None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """OptionError names the option, its value and what is expected."""
        options = _Given(given, _SINK)
        options.choice("delivery", "at-least-once", "at-least-once")
        return cls(
            endpoint=_address(options.text("endpoint")),
            topic=options.optional("topic"),
            batch_bytes=options.size("batchBytes", "1m") or 1,
            in_flight_max=options.number("maxInFlight", 4) or 1,
            rows_per_second=options.number("maxRowsPerSecond"),
            send_timeout_ms=options.number("sendTimeoutMs", 60_000) or 1,
            retries=options.number("retries", 3, least=0) or 0,
            job_id=options.optional("jobId"),
            dedup_property=options.optional("dedupProperty") or "SPARK_ID",
            credentials_file=options.optional("credentialsFile"),
            tls_ca=options.optional("tlsCa"),
        )


class _Given:
    """Options as passed by Spark."""

    def __init__(self, given: Mapping[str, str], known: list[str]) -> None:
        names = {name.lower(): name for name in known}
        if {"provider", "owner"} <= {written.lower() for written in given}:
            raise OptionError(
                "CREATE TABLE ... USING aerobee: Spark keeps no options for tables of Python sources; write CREATE "
                "TEMPORARY VIEW orders USING aerobee OPTIONS (endpoint '127.0.0.1:8081', subscribe 'orders') instead"
            )
        self._values: dict[str, str] = {}
        for written, value in given.items():
            name = _ALIASES.get(written.lower(), written.lower())
            if name in _SPARKS_OWN:
                continue
            instead = _INSTEAD.get(name) or next((its for of, its in _INSTEAD_OF.items() if name.startswith(of)), None)
            if instead is not None:
                raise OptionError(f"option {written!r} is not supported: {instead}")
            if name not in names:
                raise OptionError(f"unknown option {written!r}; the options are {', '.join(known)}")
            self._values[name] = str(value)
        if self._values.pop("path", None) is not None:
            raise OptionError("load(path) and save(path) take no path; leave it out")

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def optional(self, name: str) -> str | None:
        return self._values.get(name.lower()) or None

    def text(self, name: str) -> str:
        value = self.optional(name)
        if value is None:
            hints = {
                "endpoint": 'the broker\'s address, such as .option("endpoint", "127.0.0.1:8081")'
                + ("" if self._values else "; tables of CREATE TABLE lose their options: use CREATE TEMPORARY VIEW"),
                "storePath": "the store's directory, which holds commitlog",
            }
            raise OptionError(f"option {name} is missing: {hints[name]}")
        return value

    def choice(self, name: str, default: str, *choices: str) -> str:
        value = self.optional(name) or default
        if value not in choices:
            raise OptionError(f"{name}: {value!r} is not one of {', '.join(choices)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = (self.optional(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise OptionError(f"{name}: {value!r} is neither true nor false")
        return value == "true"

    def number(self, name: str, default: int | None = None, *, least: int = 1) -> int | None:
        value = self.optional(name)
        if value is None:
            return default
        number = decimal(value)
        if number is None or number < least:
            raise OptionError(f"{name}: {value!r} is not a number of at least {least}")
        return number

    def size(self, name: str, default: str | None = None) -> int | None:
        value = self.optional(name) or default
        if value is None:
            return None
        size = amount(value.lower(), _SIZE_UNITS)
        if not size:
            raise OptionError(f"{name}: {value!r} is not a size; write 64m or 1048576, for example")
        return size

    def seconds(self, name: str, default: str) -> float:
        value = self.optional(name) or default
        milliseconds = amount(value.lower(), MILLISECONDS)
        if milliseconds is None:
            raise OptionError(f"{name}: {value!r} is not a duration; write 15m or 500ms, for example")
        return milliseconds / 1000


_SEVERAL: Final = {
    "endpoint": 'an address, or {"broker-a": "10.0.0.1:8081", "broker-b": "10.0.0.2:8081"}',
    "storePath": 'a directory, or {"broker-a": "/stores/a", "broker-b": "/stores/b"}',
}


def _by_broker(option: str, text: str) -> dict[str, str]:
    """One value, or several by the names of their brokers."""
    if not text.lstrip().startswith("{"):
        return {"": text}
    tree = _json(option, text)
    if not tree or not all(isinstance(value, str) and value for value in tree.values()):
        raise OptionError(f"{option}: expected {_SEVERAL[option]}")
    return tree


def _endpoints(text: str) -> dict[str, str]:
    return {broker: _address(address) for broker, address in _by_broker("endpoint", text).items()}


def _address(text: str) -> str:
    """OptionError for what cannot be the address of one broker."""
    if "," in text or ";" in text:
        raise OptionError(f"endpoint: {text!r} is a list of addresses; expected {_SEVERAL['endpoint']}")
    _, colon, port = text.rpartition(":")
    if not text.startswith("unix:") and (not colon or decimal(port) is None):
        raise OptionError(f"endpoint: {text!r} has no port; expected HOST:PORT, such as 127.0.0.1:8081")
    return text


def _subscription(options: _Given) -> Subscription:
    given = [name for name in ("subscribe", "subscribePattern", "assign", "topic") if options.has(name)]
    if len(given) != 1:
        raise OptionError(
            f"give exactly one of subscribe, subscribePattern and assign, not {', '.join(given) or 'none'}"
        )
    text = options.optional(given[0]) or ""
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"subscribePattern: {text!r} is not a regular expression: {error}") from None
        return Subscription(pattern=text)
    if given[0] == "assign":
        tree = _json("assign", text)
        try:
            return Subscription(queues={topic: frozenset(int(item) for item in ids) for topic, ids in tree.items()})
        except (TypeError, ValueError):
            raise OptionError('assign: expected queue ids, as in {"orders": [0, 1]}') from None
    topics = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not topics:
        raise OptionError(f"{given[0]}: name one topic, or several separated by commas")
    return Subscription(topics=topics)


def _limit(options: _Given, side: str, default: Literal["earliest", "latest"], brokers: list[str]) -> Limit:
    text = options.optional(f"{side}Offsets")
    place: Place = default
    if text in ("earliest", "latest"):
        place = "earliest" if text == "earliest" else "latest"
    elif text is not None:
        place = parse_user_offsets(f"{side}Offsets", text, brokers)
    by_queue = options.optional(f"{side}OffsetsByTimestamp")
    timestamps = parse_user_offsets(f"{side}OffsetsByTimestamp", by_queue, brokers) if by_queue else None
    return Limit(place, options.number(f"{side}Timestamp", least=0), timestamps)


def _check_limits(options: _Given, starting: Limit, ending: Limit, streaming: bool | None) -> None:
    """OptionError for limits that the kind of query cannot have."""
    if streaming is False and not starting.has_time:
        _refuse(starting.place, LATEST, "latest", "startingOffsets")
    if not ending.has_time:
        _refuse(ending.place, EARLIEST, "earliest", "endingOffsets")
    if streaming and any(options.has(f"ending{name}") for name in ("Offsets", "Timestamp", "OffsetsByTimestamp")):
        raise OptionError("endingOffsets and endingTimestamp: a stream has no end; leave them out, or use batch reads")


def _refuse(place: Place, number: int, word: str, option: str) -> None:
    at: Queue | str | None = word if place == word else None
    if isinstance(place, dict):
        at = next((queue for queue, offset in place.items() if offset == number), None)
    if at is not None:
        raise OptionError(f"{option}: {word} ({number}) is not allowed here, given for {at}")


def _tags(expression: str) -> frozenset[str]:
    try:
        tags = tags_of(expression)
    except ValueError:
        tags = frozenset()
    if not tags or "" in (part.strip() for part in expression.split("||")):
        raise OptionError(
            f"subExpression: {expression!r} is not a tag expression; write 'paid || refunded', for example"
        )
    return tags


def _json(option: str, text: str) -> dict[str, Any]:
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{option}: {text[:200]!r} is not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise OptionError(f"{option}: expected a JSON object, found {text[:200]!r}")
    return tree
