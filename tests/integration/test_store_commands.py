"""`aerobee store ...` on stores written by RocketMQ and on directories that are not stores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.cli import main
from tests.support import golden

pytestmark = pytest.mark.timeout(300)


def content(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a directory: its bytes and modification time."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def expected_dump(case: golden.GoldenCase) -> list[dict[str, Any]]:
    """The dump that the manifest implies for the readable records."""
    return [message for message in case.manifest["messages"] if message["physicalOffset"] not in case.damaged]


@pytest.mark.parametrize("name", ["plain", "wide", "kinds", "v43", "crash-mid", "deleted-head"])
def test_a_dump_matches_the_manifest(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every readable record, in log order, field by field; standard error names the damage; no file changes."""
    case = golden.load(name, tmp_path)
    before = content(case.store)
    assert main(["store", "dump", str(case.store)]) == 0
    captured = capsys.readouterr()
    dumped = [json.loads(line) for line in captured.out.splitlines()]
    assert dumped == expected_dump(case)
    assert bool(captured.err) == bool(case.damaged)
    assert content(case.store) == before


def test_a_part_of_a_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--topic, --time and --offset select records; an offset inside a record selects from the next one on."""
    case = golden.load("plain", tmp_path)
    middle = case.messages[len(case.messages) // 2]
    time = str(middle.store_timestamp)
    assert main(["store", "dump", str(case.store), "--topic", middle.topic, "--time", time, time]) == 0
    dumped = [json.loads(line)["physicalOffset"] for line in capsys.readouterr().out.splitlines()]
    assert dumped == [
        message.physical_offset
        for message in case.messages
        if (message.topic, message.store_timestamp) == (middle.topic, middle.store_timestamp)
    ]
    chosen = [message.physical_offset for message in case.messages[7:30]]
    for begin in (chosen[0], chosen[0] - 1):
        assert main(["store", "dump", str(case.store), "--offset", str(begin), str(chosen[-1] + 1)]) == 0
        assert [json.loads(line)["physicalOffset"] for line in capsys.readouterr().out.splitlines()] == chosen
    assert main(["store", "dump", str(case.store), "--offset", str(chosen[0]), str(chosen[0])]) == 0
    assert capsys.readouterr().out == ""


def test_a_reader_that_closes_the_pipe(tmp_path: Path) -> None:
    """`aerobee store dump ... | head -1` ends without an error."""
    case = golden.load("plain", tmp_path)
    command = [sys.executable, "-m", "aerobee_broker", "store", "dump", str(case.store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as dump:
        assert dump.stdout is not None
        assert dump.stderr is not None
        dump.stdout.readline()
        dump.stdout.close()
        assert dump.stderr.read() == b""
        assert dump.wait(30) == 0


def test_text_that_no_terminal_can_show(tmp_path: Path) -> None:
    """In an ASCII-only locale the output is complete and valid JSON."""
    case = golden.load("plain", tmp_path)
    command = [sys.executable, "-m", "aerobee_broker", "store", "dump", str(case.store)]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, capture_output=True, timeout=30, env=environment)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert [json.loads(line) for line in ended.stdout.splitlines()] == expected_dump(case)


@pytest.mark.parametrize(("name", "exit_code"), [("plain", 0), ("propcrc", 0), ("crash-mid", 1)])
def test_verifying(name: str, exit_code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 for a clean store, 1 for a damaged one with the places in the report; no file changes."""
    case = golden.load(name, tmp_path)
    before = content(case.store)
    assert main(["store", "verify", str(case.store), "--json"]) == exit_code
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is (exit_code == 0)
    assert report["records"] == len(case.intact)
    assert report["bytes"] > 0
    damaged = [finding["physicalOffset"] for finding in report["findings"] if finding["kind"] == "log-damaged"]
    assert damaged == list(case.damaged)
    assert main(["store", "verify", str(case.store)]) == exit_code
    text = capsys.readouterr().out
    assert all(str(offset) in text for offset in case.damaged)
    assert text.splitlines()[-1].startswith("clean" if exit_code == 0 else "not clean")
    assert content(case.store) == before


@pytest.mark.parametrize("full", [False, True])
def test_inspecting(full: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Topics, queues and the range of the log; with --full also the number of records."""
    case = golden.load("plain", tmp_path)
    arguments = ["store", "inspect", str(case.store), *(["--full"] if full else [])]
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {topic["topic"] for topic in report["topics"]} == {message.topic for message in case.messages}
    assert sum(topic["messages"] for topic in report["topics"]) == len(case.messages)
    assert report["records"] == (len(case.messages) if full else None)
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "OrderPaid" in text
    assert "commitlog/00000000000000000000" in text


@pytest.mark.parametrize("action", ["inspect", "verify", "dump"])
def test_directories_that_are_not_a_store(action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For an empty directory and for a file: exit code 2, one line, and no change."""
    empty = tmp_path / "empty"
    empty.mkdir()
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    for path in (empty, file):
        assert main(["store", action, str(path)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        assert str(path) in line
    assert set(tmp_path.rglob("*")) == {empty, file}
    assert file.read_bytes() == b"mine"


def test_one_directory_too_high_or_too_low(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Given the directory above a store, or the log inside it, the error names the right one."""
    case = golden.load("plain", tmp_path)
    assert case.store.name == "store"
    for named in (case.store.parent, case.store / "commitlog"):
        assert main(["store", "verify", str(named)]) == 2
        assert f"do you mean {case.store}?" in capsys.readouterr().err


def test_repairing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --apply: exit code 1 and no change.

    With --apply: repaired, and nothing left to do. JSON reports the same.
    """
    case = golden.load("crash-tail", tmp_path)
    before = content(case.store)
    assert main(["store", "repair", str(case.store)]) == 1
    announced = capsys.readouterr().out.splitlines()
    assert announced[-1].startswith("not done")
    assert any(line.startswith("cut-log") for line in announced)
    assert main(["store", "repair", str(case.store), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["applied"], len(report["actions"])) == (False, len(announced) - 1)
    assert content(case.store) == before
    assert main(["store", "repair", str(case.store), "--apply"]) == 0
    done = capsys.readouterr().out.splitlines()
    assert done[:-1] == announced[:-1]
    assert main(["store", "repair", str(case.store)]) == 0
    assert capsys.readouterr().out == "nothing to do\n"
    assert main(["store", "verify", str(case.store), "--json"]) == 0


def test_rebuilding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --apply nothing changes; with it the files are RocketMQ's again."""
    case = golden.load("plain", tmp_path)
    before = {path: data for path, (data, _) in content(case.store / "consumequeue").items()}
    assert main(["store", "rebuild", str(case.store), "--queues"]) == 0
    assert "0 of them changed" in capsys.readouterr().out
    removed_file = next(path for path in sorted((case.store / "consumequeue").rglob("*")) if path.is_file())
    removed_file.unlink()
    assert main(["store", "rebuild", str(case.store), "--queues", "--apply", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["applied"] is True
    assert {action["kind"] for action in report["actions"]} == {"write-queue"}
    assert {path: data for path, (data, _) in content(case.store / "consumequeue").items()} == before


def test_backing_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The copy passes verification; a second backup to the same place is refused."""
    case = golden.load("plain", tmp_path)
    target = tmp_path / "copy"
    assert main(["store", "backup", str(case.store), str(target), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["logEnd"] == case.manifest["recovery"]["lossless"]["maxPhysicalOffset"]
    assert main(["store", "verify", str(target)]) == 0
    capsys.readouterr()
    assert main(["store", "backup", str(case.store), str(target)]) == 2
    assert "not empty" in capsys.readouterr().err


def test_backing_up_to_an_unwritable_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is about the target, not about the store, which is readable."""
    case = golden.load("plain", tmp_path)
    file = tmp_path / "file"
    file.touch()
    assert main(["store", "backup", str(case.store), str(file / "copy")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"aerobee: cannot change {file}")


@pytest.mark.parametrize("command", [["repair"], ["rebuild"]])
def test_a_single_action_is_counted_in_the_singular(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The announced and the completed actions are counted in correct English."""
    case = golden.load("plain", tmp_path)
    if command == ["repair"]:
        (case.store / "checkpoint").write_bytes(b"")
    else:
        command = ["rebuild", "--index"]
    main(["store", *command, str(case.store)])
    assert capsys.readouterr().out.splitlines()[-1] == "not done: 1 action; run with --apply to do it"
    assert main(["store", *command, str(case.store), "--apply"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "done: 1 action"
