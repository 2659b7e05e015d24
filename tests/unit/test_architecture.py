"""What docs/ARCHITECTURE.md says about the modules is true."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from aerobee_store.disk.file_system import DiskFile
from aerobee_store.log.commit_log import CommitLog
from tests.benchmarks.unary_send import request_bytes
from tests.support.imports import Imports, children_of, circles_of, imported_modules
from tests.support.in_process_broker import in_process_broker

ROOT = Path(__file__).parents[2]
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
MAP = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_a_broker_without_replication_loads_nothing_of_it() -> None:
    """Nothing of it is loaded: its settings are elsewhere."""
    code = (
        "import asyncio, sys, tempfile, pathlib\n"
        "from aerobee_broker import server\n"
        "from aerobee_broker.config import BrokerConfig\n"
        "async def main():\n"
        "    stop = asyncio.Event()\n"
        "    with tempfile.TemporaryDirectory() as directory:\n"
        "        config = BrokerConfig.tiny(pathlib.Path(directory) / 'store')\n"
        "        await server.run(config, stop, lambda listening, metrics: stop.set())\n"
        "asyncio.run(main())\n"
        "print(*sorted(name for name in sys.modules if name.startswith('aerobee_broker.replication')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == []


ANSWERS = re.findall(
    r"^\| ([^|]+\?) \| ([^|]+) \| ([^|]+) \|$", MAP.partition("## Where to look")[2].partition("\n## ")[0], re.MULTILINE
)


def defined_in(file: Path) -> set[str]:
    """The functions, classes and methods of a module."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, DEFINITIONS):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, DEFINITIONS)}
    return names


HOPS = [
    re.findall(r"[\w.]+", names)
    for names in re.findall(
        r"^    (?:front/|to the \w+) +((?:[^\n]+,\n +)*[^\n]+)$",
        MAP.partition("Counted as named functions")[2].partition("\nThe call waits")[0],
        re.MULTILINE,
    )
]


async def test_the_functions_that_a_send_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the bytes of the connection to the log, from there to the file, and to the disk."""
    stacks: list[list[str]] = []
    for owner, name in ((CommitLog, "append"), (DiskFile, "write"), (DiskFile, "sync")):
        monkeypatch.setattr(owner, name, _recording(getattr(owner, name), stacks))
    async with in_process_broker(tmp_path) as broker:
        call = broker.channel.unary_unary("/apache.rocketmq.v2.MessagingService/SendMessage")
        for _ in range(10):  # the first one creates the topic; on a busy machine, some wait for their turn
            await call(request_bytes(), metadata=(("x-mq-client-id", "one"),))
    front, to_log, to_file, to_disk = HOPS
    for wanted in ([*front, *to_log], to_file, to_disk):
        assert any(stack[-len(wanted) :] == wanted for stack in stacks), wanted


def _recording(function: Callable[..., Any], stacks: list[list[str]]) -> Callable[..., Any]:
    def record(*arguments: Any, **named: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        names = [function.__qualname__]
        while frame is not None:
            if not frame.f_code.co_name.startswith("<"):
                names.append(frame.f_code.co_qualname.rpartition("<locals>.")[2])
            frame = frame.f_back
        stacks.append(names[::-1])
        return function(*arguments, **named)

    return record


def test_there_is_an_answer_to_each_question_of_newcomers() -> None:
    assert len(ANSWERS) >= 15


@pytest.mark.parametrize(("question", "names", "files"), ANSWERS, ids=[question for question, _, _ in ANSWERS])
def test_a_question_is_answered_within_two_files(question: str, names: str, files: str) -> None:
    """These files define the names of the answer, and each of them at least one."""
    found = [
        defined_in(ROOT / re.sub("^([a-z]+)/", r"\1/aerobee_\1/", file)) for file in re.findall("`([^`]+)`", files)
    ]
    wanted = set(re.findall("`([^`]+)`", names))
    assert 1 <= len(found) <= 2
    assert wanted, question
    assert wanted - set().union(*found) == set()
    assert all(wanted & each for each in found)


@pytest.fixture(scope="module")
def imports() -> Imports:
    """Those of all packages: to find them takes a second or two."""
    return imported_modules()


def test_no_imports_go_in_a_circle(imports: Imports) -> None:
    """Neither modules nor rooms import each other in a circle. Late and type-checking imports count."""
    circles = circles_of(imports)
    folders = {module.rpartition(".")[0] for module in imports} - {""}
    for folder in sorted(folders):
        circles += circles_of(children_of(folder, imports))
    assert circles == []


def test_no_room_has_more_than_twenty_modules(imports: Imports) -> None:
    """A folder that grows beyond that gets folders for what belongs together."""
    count = Counter(module.rpartition(".")[0] for module in imports if not module.endswith("__init__"))
    assert {room: number for room, number in count.items() if number > 20} == {}


def test_a_late_import_counts_in_a_circle(tmp_path: Path) -> None:
    """An import inside a function, or for types only, closes a circle as any other."""
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "first.py").write_text("def call():\n    from pkg import second\n")
    (package / "second.py").write_text("import typing\nif typing.TYPE_CHECKING:\n    from pkg.first import call\n")
    assert circles_of(imported_modules(tmp_path, ["pkg"])) == [["pkg.first", "pkg.second"]]


# What only one module should spell out, and the others that may, each with its reason.
HOMES = {
    "reads numbers in text": (
        r"\.(?:isdigit|isdecimal|isnumeric)\(|fromhex\(|unhexlify|\bint\([^,()]+, ?16\)|\[0-9|\\d\b|\\d[+)]",
        {
            "aerobee_store/records/decimals.py": "the home",
            "aerobee_broker/config/rocketmq_conf.py": "escapes of a file of properties",
            "aerobee_broker/console/forms.py": "the console knows nothing of the store",
            "aerobee_broker/console/pages/sending.py": "a body may have blanks between its bytes",
            "aerobee_broker/filters/sql_filter.py": "numbers of SQL",
            "aerobee_client/connections/endpoints.py": "an address",
            "aerobee_client/integrations/declaring.py": "no numbers: names",
            "aerobee_client/opentelemetry.py": "W3C's trace context",
            "aerobee_pipeline/jre.py": "the version of a Java",
            "aerobee_pipeline/tables/avro_bodies.py": "made by fastavro",
            "aerobee_store/disk/file_system.py": "the version of the kernel",
            "aerobee_store/log/mapped_file.py": "names of files: 20 digits, more than a number has",
            "aerobee_store/records/inner_batch.py": "digits at a fixed place, more than a number has",
            "aerobee_store/tables/java_json.py": "JSON as Java reads it",
        },
    ),
    "names the files of a log or a queue": (
        r":0(?:20|\{\w+\})d\}",
        {"aerobee_store/log/mapped_file.py": "the home"},
    ),
    "knows the reserved prefixes of topics": (
        r"\"(?:%RETRY%|%DLQ%|%LMQ%|rmq_sys_)\"",
        {"aerobee_store/records/topic_names.py": "the home"},
    ),
    "reads or writes variable-length integers": (
        r"& 0x7F\b",
        {
            "aerobee_broker/messages/wire_fields.py": "the home",
            "aerobee_broker/front/header_blocks.py": "HPACK's integers, with a prefix of some bits",
            "aerobee_broker/processors/sending/send_alike.py": "columns of them, with numpy",
        },
    ),
    "goes on after a refusal of the store": (
        r"except [^:\n]*Store(?:Refusal|Full|Access)Error",
        {
            "aerobee_broker/timer/background.py": "the home: appends that no client waits for",
            "aerobee_broker/delivery/receive/exhausted.py": "looks at the queue anew instead of appending again",
            "aerobee_broker/delivery/journal/history.py": "without this snapshot, a start replays more",
            "aerobee_broker/delivery/deliveries.py": "the next round tries again",
            "aerobee_broker/transactions/coordinator.py": "the next round decides anew",
            "aerobee_broker/replication/replica.py": "the connection begins anew",
        },
    ),
    "knows how many attempts a group allows": (
        r"\.retry_max_times",
        {
            "aerobee_broker/tables/consumer_groups.py": "the home, with attempt_max",
            "aerobee_broker/delivery/receive/dead_letters.py": "by attempt_max",
            "aerobee_broker/processors/telemetry.py": "by attempt_max, told to clients",
            "aerobee_broker/processors/administration/wire.py": "told to operators",
            "aerobee_broker/remoting/retry.py": "by attempt_max, with the client's own limit",
            "aerobee_broker/remoting/send.py": "by attempt_max, with the client's own limit",
        },
    ),
    "replaces a file": (
        r"\.tmp\b\"",
        {
            "aerobee_store/disk/file_system.py": "the home",
            "aerobee_store/disk/store_directory.py": "a name only",
            "aerobee_store/durability/queue_bounds.py": "a name only",
            "aerobee_store/tables/change_log.py": "keeps the new file open, with space for more",
            "aerobee_store/tables/json_table.py": "with a copy and checksums, step by step",
            "aerobee_store/tables/table_checksums.py": "synced with the table of json_table.py",
            "aerobee_store/tools/table_check.py": "a name only",
            "aerobee_broker/commands/terminal/contexts.py": "the terminal's own settings, without a store",
            "aerobee_pipeline/jobs/rebuild.py": "each attempt of a Spark task has a name of its own",
        },
    ),
}


@pytest.mark.parametrize(("pattern", "homes"), HOMES.values(), ids=HOMES)
def test_a_rule_has_one_home(pattern: str, homes: dict[str, str]) -> None:
    """A module that does the same in its own way is found here: use the home, or say why not."""
    found = {
        file.relative_to(ROOT / package).as_posix()
        for package in ("store", "broker", "client", "pipeline")
        for file in (ROOT / package).rglob("*.py")
        if re.search(pattern, file.read_text(encoding="utf-8"))
    }
    assert found == homes.keys()
