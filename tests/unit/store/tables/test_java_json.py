"""RocketMQ's JSON: what is read, what is refused and at which place, and the layout of each Java type."""

from __future__ import annotations

import pytest

from aerobee_store.tables import java_json
from aerobee_store.tables.java_json import (
    DEPTH_MAX,
    Bean,
    BoxedList,
    IntegerMap,
    JsonFormatError,
    ObjectMap,
    dumps,
    loads,
)


@pytest.mark.parametrize("text", ["{0:1205,16:-3}", '{"0":1205,"16":-3}', ' {\n\t0 : 1205 ,\r\n"16":-3 } '])
def test_bare_and_quoted_integer_keys_read_the_same(text: str) -> None:
    """Keys become strings, quoted or not."""
    assert loads(text) == {"0": 1205, "16": -3}


def test_map_with_bare_keys_is_distinguished() -> None:
    """An object is read as IntegerMap exactly if all its keys are bare, so that it is written back unchanged."""
    value = loads('{"a":{1:2},"b":{"1":2},"c":{1:2,"x":3},"d":{}}')
    assert isinstance(value, dict)
    assert [type(item) for item in value.values()] == [IntegerMap, dict, dict, dict]


def test_last_of_equal_keys_wins() -> None:
    """The last of equal keys wins, as in fastjson; bare and quoted keys are equal."""
    assert loads('{0:1,"a":1,"0":2,"a":3}') == {"0": 2, "a": 3}


def test_every_kind_of_value() -> None:
    """Values of each JSON type come back as the Python type."""
    assert loads(b'["\xc3\xa4",true,false,null,9223372036854775807,-0.5,1e3,[],{}]') == [
        *("ä", True, False, None, 2**63 - 1, -0.5, 1000.0, [], {})
    ]


def test_escapes() -> None:
    """All escapes of JSON are decoded, and a surrogate pair becomes one character."""
    assert loads(r'"\"\\\/\b\f\n\r\tA\u00e4\ud83d\ude00"') == '"\\/\b\f\n\r\tAä😀'


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "expected a value, but the text ends"),
        ("\0\0", 1, 1, "expected a value"),
        ("{", 1, 2, "expected a key"),
        ('{\n\t"table":{{\n', 2, 11, "found '{'"),
        ('{"a":1', 1, 7, "expected ',' or '}'"),
        ('{"a":1,}', 1, 8, "expected a key"),
        ('{"a" 1}', 1, 6, "':' after the key"),
        ("{a:1}", 1, 2, "expected a key"),
        ("{01:1}", 1, 3, "':' after the key"),
        ("{1.5:1}", 1, 3, "':' after the key"),
        ("{'a':1}", 1, 2, "expected a key"),
        ("[1,]", 1, 4, "expected a value"),
        ("[1 2]", 1, 4, "expected ',' or ']'"),
        ("[1,2", 1, 5, "but the text ends"),
        ('"ab', 1, 1, "does not end"),
        ('"a\nb"', 1, 1, "raw control character"),
        (r'"\x41"', 1, 1, "unknown escape"),
        (r'"\u12"', 1, 1, "unknown escape"),
        ("{} {}", 1, 4, "more text follows"),
        ("nul", 1, 1, "expected a value"),
        ("NaN", 1, 1, "expected a value"),
        ("1e999", 1, 1, "too large"),
        ("1" * 65, 1, 1, "65 characters"),
        ("{" + "1" * 65 + ":1}", 1, 2, "65 digits"),
        ("/* */ 1", 1, 1, "expected a value"),
        ("__import__('os')", 1, 1, "expected a value"),
        (b'{"a":\n"\xff"}', 2, 2, "not UTF-8"),
    ],
)
def test_anything_else_is_refused_with_its_place(text: str | bytes, line: int, column: int, message: str) -> None:
    """The error says line, column and what is wrong."""
    with pytest.raises(JsonFormatError) as caught:
        loads(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"line {line}, column {column}: ")


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ("{1:", "}")])
def test_nesting_is_bounded(opening: str, closing: str) -> None:
    """DEPTH_MAX levels are read; one more, or a million, raises an error and does not overflow the stack."""
    assert loads(opening * DEPTH_MAX + "1" + closing * DEPTH_MAX)
    for depth in (DEPTH_MAX + 1, 1_000_000):
        with pytest.raises(JsonFormatError, match="levels deep"):
            loads(opening * depth)


def test_every_truncation_is_refused() -> None:
    """No truncated file is accepted."""
    whole = dumps(Bean(dataVersion=Bean(counter=1), offsetTable={"a@b": IntegerMap.of({0: 5}), "ä": [1, "x\n"]}))
    for size in range(len(whole)):
        with pytest.raises(JsonFormatError):
            loads(whole[:size])


def test_layout_of_each_java_type() -> None:
    """Bean fields are sorted and stand on lines of their own; maps keep their order; integer maps stay on one line."""
    value = Bean(
        table={"b": IntegerMap.of({0: Bean(o=BoxedList([1000, 4]), n=[1, 2], a=IntegerMap.of({3: 4}))}), "a": {}},
        empty=IntegerMap(),
        boxed=BoxedList(),
        names=["x", "y"],
    )
    assert dumps(value).decode() == (
        '{\n\t"boxed":[],\n\t"empty":{},\n\t"names":["x","y"],\n\t"table":{\n'
        '\t\t"b":{0:{\n\t\t\t\t"a":{3:4\n\t\t\t\t},\n\t\t\t\t"n":[1,2],\n'
        '\t\t\t\t"o":[\n\t\t\t\t\t1000,\n\t\t\t\t\t4\n\t\t\t\t]\n\t\t\t}\n\t\t},\n\t\t"a":{}\n\t}\n}'
    )


def test_without_layout() -> None:
    """The output has no white space."""
    assert (
        dumps(Bean(b=BoxedList([1, 2]), a=IntegerMap.of({1: {"x": True}})), pretty=False)
        == b'{"a":{1:{"x":true}},"b":[1,2]}'
    )


@pytest.mark.parametrize(
    "text", ['"\\/\b\f\n\r\t', "\0\x01\x1f\x7f\x85\u2028\u2029", "ä😀", "\ud800", "%RETRY%a@b", "'"]
)
def test_strings_survive(text: str) -> None:
    """The output is ASCII or UTF-8, and is read back as the same string."""
    assert loads(dumps({text: text})) == {text: text}


def test_control_characters_are_escaped_as_in_fastjson() -> None:
    """Short escapes where JSON has them, otherwise four upper-case hexadecimal digits; a slash is not escaped."""
    assert dumps("\n\x0b\x1f\x85\u2028/") == rb'"\n\u000B\u001F\u0085\u2028/"'


def test_values_that_cannot_be_written() -> None:
    """A type, key or number that the file cannot hold is the caller's error."""
    with pytest.raises(TypeError, match="tuple"):
        dumps({"a": (1, 2)})
    with pytest.raises(ValueError, match="not an integer"):
        dumps(IntegerMap({"x": 1}))
    with pytest.raises(ValueError, match="no JSON form"):
        dumps(float("nan"))
    deep: list[object] = []
    deep.append(deep)
    with pytest.raises(ValueError, match="levels deep"):
        dumps(deep)


def test_object_keys() -> None:
    """A map with objects as keys is read on request, keeps its keys, and is written unchanged."""
    text = '{"offsetTable":{{"queueId":0,"topic":"T"}:{"maxOffset":7},{"topic":"T","queueId":1}:{"maxOffset":{0:1}}}}'
    value = loads(text, object_keys=True)
    assert isinstance(value, dict)
    table = value["offsetTable"]
    assert isinstance(table, ObjectMap)
    assert table.pairs() == [
        ({"queueId": 0, "topic": "T"}, {"maxOffset": 7}),
        ({"topic": "T", "queueId": 1}, {"maxOffset": {"0": 1}}),
    ]
    assert dumps(value, pretty=False).decode() == text
    assert ObjectMap.of([(Bean(topic="T", queueId=0), 5)]) == {'{"queueId":0,"topic":"T"}': 5}
    with pytest.raises(JsonFormatError, match=r"found '\{'"):
        loads(text)
    for depth in (DEPTH_MAX + 2, 1_000_000):
        with pytest.raises(JsonFormatError, match="levels deep"):
            loads("{" * depth, object_keys=True)


def test_a_body_is_bounded_before_it_is_parsed() -> None:
    """16 MiB of empty lists took seconds and 400 MiB."""
    assert java_json.loads_body(b'{"a":[1,{"b":null}]}') == {"a": [1, {"b": None}]}
    assert java_json.loads_body(b'{"a":{0:1}}') == {"a": {"0": 1}}
    refused = {
        "a body may have 4194304": b"[" + b" " * (4 << 20) + b"]",
        "commas and brackets": b"[" + b"[]," * 300_000 + b"0]",
        "integers or objects as keys": b"{" + b"1:1," * 30_000 + b"0:0}",
        "levels deep": b"[" * 100 + b"]" * 100,
        "not finite": b"[1e999]",
        "NaN": b"[NaN]",
    }
    for words, body in refused.items():
        with pytest.raises(java_json.JsonFormatError) as error:
            java_json.loads_body(body)
        assert words in str(error.value) or words == "NaN", (words, error.value)
