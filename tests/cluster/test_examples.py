"""The example and benchmark programs of RocketMQ 5.5 as they are published, with topics that nobody has created.

Left out are those that run for ever without a word, and those with an address in their code.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.cluster.conftest import MARKS, serve
from tests.cluster.java_program import HERE, Release, prepare_servers

pytestmark = MARKS
_VERSION: Final = "5.5.0"
_PACKAGE: Final = "org.apache.rocketmq.example."
_SECONDS: Final = 120.0
_SENT: Final = "SEND_OK"
_RECEIVED: Final = "Receive New Messages"


class _Program(NamedTuple):
    """One program, and how many lines at least have `wanted`."""

    main: str
    wanted: str
    lines: int
    arguments: Sequence[str] = ()


_PROGRAMS: Final = (
    _Program("quickstart.Producer", _SENT, 1000),
    _Program("quickstart.Consumer", _RECEIVED, 1000),
    _Program("simple.PopConsumer", _RECEIVED, 1000),
    _Program("batch.SimpleBatchProducer", _SENT, 1),
    _Program("filter.TagFilterProducer", _SENT, 60),
    _Program("filter.TagFilterConsumer", _RECEIVED, 40),
    _Program("filter.SqlFilterProducer", _SENT, 10),
    _Program("filter.SqlFilterConsumer", _RECEIVED, 3),
    _Program("ordermessage.Producer", _SENT, 100),
    _Program("ordermessage.Consumer", _RECEIVED, 50),
    _Program("schedule.TimerMessageProducer", _SENT, 10),
    _Program("schedule.TimerMessageConsumer", "Receive message", 10),
    _Program("transaction.TransactionProducer", _SENT, 10),
    _Program("tracemessage.TraceProducer", _SENT, 128),
    _Program("operation.Producer", _SENT, 3, ("-g", "PG_op", "-t", "Operated", "-a", "tag", "-k", "key", "-c", "3")),
    _Program("operation.Consumer", "MessageExt", 3, ("-g", "CG_op", "-t", "Operated", "-s", "*", "-f", "false")),
    _Program("benchmark.Producer", "[Complete] Send Total: 1", 1, ("-q", "1000", "-w", "1", "-s", "100")),
)


def test_programs_run_unmodified(tmp_path: Path) -> None:
    """Each sends or consumes what it should; the benchmark sends to the topic that every broker of RocketMQ has."""
    release = prepare_servers(_VERSION, HERE / "examples")
    with serve(tmp_path / "store", "--dev") as line:
        told = {program.main: _told(release, tmp_path / "home", line["remoting"], program) for program in _PROGRAMS}
    found = {program.main: told[program.main].count(program.wanted) for program in _PROGRAMS}
    wrong = [program.main for program in _PROGRAMS if found[program.main] < program.lines]
    assert not wrong, "\n".join(f"{main}: {found[main]} times; {told[main][-1500:]}" for main in wrong)


def _told(release: Release, home: Path, address: str, program: _Program) -> str:
    """What it prints until it ends or has printed enough."""
    where = ("-Drocketmq.namesrv.addr=" + address, _PACKAGE + program.main)
    command = release.command(home, *where, *program.arguments)
    printed = []
    with subprocess.Popen(command, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        limit = threading.Timer(_SECONDS, process.kill)
        limit.start()
        assert process.stdout is not None
        left = program.lines
        for line in process.stdout:
            printed.append(line)
            left -= program.wanted in line
            if left <= 0:
                break
        process.kill()
        limit.cancel()
    return "".join(printed)
