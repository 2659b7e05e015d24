"""Options: each wrong one is refused at planning, with its name and the expected form."""

from __future__ import annotations

import pytest

from aerobee_pipeline.errors import OptionError
from aerobee_pipeline.options import SinkOptions, SourceOptions
from aerobee_pipeline.schema import checked_columns, default_columns

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
        ({**STORE, "maxbytespertrigger": "1m"}, "maxbytespertrigger"),
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
    assert (options.endpoint, options.subscription.topics) == ("h:1", frozenset({"a", "b"}))
    assert options.include_properties
    assert options.starting.place == "latest"


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
