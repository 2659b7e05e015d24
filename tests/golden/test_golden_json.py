"""RocketMQ's own configuration files: their content, the choice between file and copy, and byte-exact writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.tables.consumer_groups import GroupTable
from aerobee_broker.tables.consumer_offsets import OffsetTable
from aerobee_broker.tables.topics import TopicTable
from aerobee_store.clock import SystemClock
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.tables.java_json import Bean, BoxedList, IntegerMap, JsonFormatError, dumps, loads
from aerobee_store.tables.json_table import JsonTable
from tests.support import golden

CASES = Path(__file__).parent / "cases"
FILES = [
    (case, name)
    for case in ("java-json", "java-json-43", "java-json-broken")
    for name in json.loads((CASES / case / "manifest.json").read_text())["json"]
]
SOURCES = [
    (case, name, source)
    for case in ("java-json", "java-json-43", "java-json-broken")
    for name, source in json.loads((CASES / case / "manifest.json").read_text())["load"].items()
]
TABLES: dict[str, type[TopicTable | GroupTable | OffsetTable]] = {
    "topics.json": TopicTable,
    "subscriptionGroup.json": GroupTable,
    "consumerOffset.json": OffsetTable,
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return case -> unpacked store directory."""
    unpacked = {}
    for case in ("java-json", "java-json-43", "java-json-broken"):
        unpacked[case] = golden.unpack(case, tmp_path_factory.mktemp(case))
    return unpacked


def expected(case: str, name: str) -> Any:
    return json.loads((CASES / case / "manifest.json").read_text())["json"][name]


def typed(name: str, value: Any) -> object:
    """Convert the manifest's plain content of a file to the Java types that RocketMQ has there."""
    integers = IntegerMap
    kind = name.removesuffix(".bak").rpartition("/")[2]
    if kind == "consumerOffset.json":
        return {**value, "offsetTable": {key: integers(queues) for key, queues in value["offsetTable"].items()}}
    if kind == "delayOffset.json":
        return {**value, "offsetTable": integers(value["offsetTable"])}
    if kind == "consumerOrderInfo.json":
        return {
            "table": {
                key: integers(
                    (queue, Bean(info, o=BoxedList(info["o"]), oc=integers(info["oc"]), ot=integers(info["ot"])))
                    for queue, info in queues.items()
                )
                for key, queues in value["table"].items()
            }
        }
    return value


@pytest.mark.parametrize(("case", "name"), FILES)
def test_content(stores: dict[str, Path], case: str, name: str) -> None:
    """Every readable file, copies included, has the content given in its manifest."""
    assert loads((stores[case] / name).read_bytes()) == expected(case, name)


@pytest.mark.parametrize(("case", "name"), FILES)
def test_same_content_is_written_in_the_same_bytes(stores: dict[str, Path], case: str, name: str) -> None:
    """From the manifest's plain content and the Java types, RocketMQ's file is reproduced byte for byte.

    Map entries keep the order of the file, as in the manifest; the order of Java's hash tables is not computed.
    """
    pretty = not name.removesuffix(".bak").endswith("transactionMetrics")
    assert dumps(typed(name, expected(case, name)), pretty=pretty) == (stores[case] / name).read_bytes()


@pytest.mark.parametrize(("case", "name"), [file for file in FILES if "consumerOrderInfo" not in file[1]])
def test_rewriting_a_file_keeps_its_bytes(stores: dict[str, Path], case: str, name: str) -> None:
    """Reading a file restores all Java types except lists of boxed numbers, which only consumerOrderInfo.json has."""
    data = (stores[case] / name).read_bytes()
    assert dumps(loads(data), pretty=b"\n" in data) == data


@pytest.mark.parametrize(("case", "name", "source"), SOURCES)
def test_source(stores: dict[str, Path], case: str, name: str, source: str) -> None:
    """Loading uses main, .bak or nothing, as the manifest says, and changes no file."""
    before = {path: path.read_bytes() for path in (stores[case] / "config").iterdir()}
    value = JsonTable(DiskFileSystem(), stores[case] / name).load()
    wanted = {"main": name, "bak": f"{name}.bak", "none": None}[source]
    assert value == (None if wanted is None else expected(case, wanted))
    assert {path: path.read_bytes() for path in (stores[case] / "config").iterdir()} == before


@pytest.mark.parametrize(
    "name", ["consumerOffset.json", "consumerOrderInfo.json", "delayOffset.json.bak", "topics.json"]
)
def test_damaged_files_are_refused(stores: dict[str, Path], name: str) -> None:
    """Torn files, files that are not JSON, zeros and empty files are all refused."""
    with pytest.raises(JsonFormatError):
        loads((stores["java-json-broken"] / "config" / name).read_bytes())


@pytest.mark.parametrize("suffix", ["", ".bak"])
@pytest.mark.parametrize("file", TABLES)
def test_table_of_head_round_trip(stores: dict[str, Path], file: str, suffix: str) -> None:
    """A table loaded from HEAD's file and not changed is saved as the same bytes."""
    data = (stores["java-json"] / "config" / (file + suffix)).read_bytes()
    table = TABLES[file].from_json(loads(data), SystemClock())
    assert dumps(table.snapshot()) == data
    assert not table.dirty


@pytest.mark.parametrize("file", TABLES)
def test_table_of_43_gains_fields_and_loses_none(stores: dict[str, Path], file: str) -> None:
    """A table loaded from 4.3's file is saved in HEAD's form, with all its content plus HEAD's defaults."""
    before = loads((stores["java-json-43"] / "config" / file).read_bytes())
    after = loads(dumps(TABLES[file].from_json(before, SystemClock()).snapshot()))
    assert _contains(after, before)
    assert after != before


def _contains(whole: object, part: object) -> bool:
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and _contains(whole[key], part[key]) for key in part)
    return whole == part
