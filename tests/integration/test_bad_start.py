"""A broker that cannot start gives the reason in one line and changes nothing; with a full disk it serves the rest."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aerobee_client import InternalServerError, Message, connect
from aerobee_client.testing import BrokerProcess, run_broker
from tests.support.shell import Shell

pytestmark = pytest.mark.timeout(300)

# Small files: a store of one megabyte is quickly copied and hashed.
SMALL = """\
[store]
segment_size = 1048576
body_size_max = 65536
queue_file_size = 20000
index_slot_count = 1000
index_entry_count = 4000
disk_full_ratio = 1.0
disk_force_clean_ratio = 1.0
disk_clean_ratio = 1.0
"""
HEADROOM = 256 << 10
# The program sets the limit itself: with `preexec_fn` the child would be forked, which gRPC's threads can crash.
LIMIT_FILES = """\
import resource, runpy
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
runpy.run_module("aerobee_broker", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with aerobee.toml and a store of that configuration, written and closed by a broker."""
    directory = tmp_path_factory.mktemp("written")
    (directory / "aerobee.toml").write_text(SMALL)

    async def fill(endpoint: str) -> None:
        async with connect(endpoint) as client:
            producer = client.producer()
            await producer.send_many([Message(topic="orders", body=b"%d" % n, keys=(f"k{n}",)) for n in range(50)])
            consumer = client.simple_consumer("billing", "orders")
            await consumer.ack(await consumer.receive(5))

    with run_broker(directory, ["--dev", "--config", str(directory / "aerobee.toml")]) as broker:
        asyncio.run(fill(broker.endpoint))
    return directory


@pytest.fixture
def home(written: Path, tmp_path: Path) -> Path:
    """A copy of that directory for the test to damage."""
    return Path(shutil.copytree(written, tmp_path / "home"))


def serve(home: Path, *arguments: str) -> str:
    """The last line of a broker that does not start; it must change nothing below `home`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AEROBEE_")}
    command = [sys.executable, "-m", "aerobee_broker", *_arguments(home), *arguments]
    with _unchanged(home):
        ended = subprocess.run(command, capture_output=True, timeout=60, env=environment)
    text = ended.stderr.decode()
    assert ended.returncode == 1, (ended.returncode, text)
    assert ended.stdout == b""
    assert "Traceback" not in text
    (line,) = (line for line in text.splitlines() if " INFO " not in line and " WARNING " not in line)
    return _one_reason(line)


@pytest.fixture
def refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The same as `serve` of `home`, without a process of its own, which would be most of the time."""
    for name in os.environ:
        if name.startswith("AEROBEE_"):
            monkeypatch.delenv(name)
    # The limits of this process remain those of the tests.
    monkeypatch.setattr("aerobee_broker.commands.serve.prepare_process", lambda: None)

    def started(*_: object) -> None:
        raise AssertionError("the broker has started")

    monkeypatch.setattr("aerobee_broker.commands.serve._announce", started)

    def run(*arguments: str) -> str:
        with _unchanged(home):
            return _one_reason(Shell("").error(*_arguments(home), *arguments))

    return run


def _arguments(home: Path) -> list[str]:
    return [
        *("serve", "--store", str(home / "store"), "--config", str(home / "aerobee.toml")),
        *("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"),
    ]


@contextmanager
def _unchanged(home: Path) -> Iterator[None]:
    before = content(home)
    yield
    assert content(home) == before, "it has changed something"


def _one_reason(line: str) -> str:
    assert line.startswith("aerobee: ")
    assert "internal error" not in line
    return line


def content(directory: Path) -> dict[str, str]:
    """A digest of every file, and the name of every directory, below `directory`."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.name != "lock" or path.is_dir():  # the file names the lock's present or last holder
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return found


# --- Configuration ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\x80\x00\xff", "not valid TOML"),
        (b"hello", "not valid TOML"),
        (b"store = 1", "a setting must be in a section"),
        (b"[warehouse]", "unknown section"),
        (b"[store]\nsegmentsize = 1", "store.segmentsize: unknown setting"),
        (b"[store]\nsegment_size = 'many'", "store.segment_size"),
        (b"[store]\nsegment_size = 100", "store.segment_size: 100 is not valid: expected a whole number >= 4096"),
        (b"[store]\nsegment_size = [1]", "store.segment_size"),
        (b"[store]\nsync_timeout_seconds = -1", "store.sync_timeout_seconds"),
        (b"[store]\nsync_timeout_seconds = nan", "store.sync_timeout_seconds"),
        (b"[listen]\nadvertise = 'nowhere'", "listen.advertise"),
        (b"[listen]\nadvertise = '127.0.0.1:99999'", "listen.advertise"),
        (b"[broker]\nname = 'a b'", "broker.name"),
        (b"[delivery]\ninvisible_seconds_min = 1e9", "delivery.invisible_seconds_min"),
    ],
)
def test_an_invalid_configuration(home: Path, refused: Callable[..., str], text: bytes, words: str) -> None:
    """The line names the file or the setting."""
    (home / "aerobee.toml").write_bytes(text)
    assert words in refused()


def test_a_log_that_another_process_writes(home: Path) -> None:
    """It is refused and unchanged, as that of a running RocketMQ, whose lock is in another directory."""
    segment = max((home / "store" / "commitlog").iterdir())
    program = "import sys; f = open(sys.argv[1], 'r+b'); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(segment)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        assert "has this segment of the log open for writing, perhaps a running RocketMQ" in serve(home)
        writer.kill()


def test_a_migration_beside_rocketmq_leaves_its_log_alone(written: Path, tmp_path: Path) -> None:
    """With --store, the storePathCommitLog of a broker.conf is not opened: a new store has its own log."""
    log = tmp_path / "rocketmq" / "commitlog"
    shutil.copytree(written / "store" / "commitlog", log)
    before = content(log)
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"storePathRootDir={tmp_path / 'root'}\nstorePathCommitLog={log}\nmappedFileSizeCommitLog=1048576\n"
    )
    (tmp_path / "own").mkdir()
    with run_broker(tmp_path / "own", ["--dev", "--rocketmq-conf", str(conf)]) as broker:
        asyncio.run(_send_one(broker.endpoint))
        assert f"ignored that the settings file names for another store: {log}" in broker.log_text()
    assert content(log) == before
    assert len(list((tmp_path / "own" / "store" / "commitlog").iterdir())) >= 1


@pytest.mark.parametrize("text", [bytes(range(256)) * 8, b"brokerName = \xff\xfe\0\n", b"\x1b[2J = 1\n"])
def test_a_file_that_is_not_a_broker_conf(home: Path, refused: Callable[..., str], text: bytes) -> None:
    """Bytes that no properties file contains were taken for unknown keys and printed unescaped to the terminal."""
    (home / "broker.conf").write_bytes(text)
    line = refused("--rocketmq-conf", str(home / "broker.conf"))
    assert "broker.conf" in line
    assert "not a properties file" in line
    assert line.isprintable()


# --- The store ----------------------------------------------------------------------------------------------


def test_another_segment_size(home: Path) -> None:
    """The line has the file, both sizes, and which one to choose."""
    (home / "aerobee.toml").write_text(SMALL.replace("1048576", "2097152"))
    line = serve(home)
    assert "commitlog/00000000000000000000: 1048576 bytes, but the configured file size is 2097152" in line


@pytest.mark.parametrize("table", ["topics", "consumerOffset", "subscriptionGroup"])
@pytest.mark.parametrize("damage", [b"{", b"[]", b"\xff\xfe", b'{"a": [1, 2'])
def test_a_table_without_a_readable_copy(home: Path, refused: Callable[..., str], table: str, damage: bytes) -> None:
    """A damaged table is neither taken for empty nor overwritten: the line names the file and what to do."""
    for suffix in ("", ".bak"):
        (home / "store" / "config" / f"{table}.json{suffix}").write_bytes(damage)
    line = refused()
    assert f"{table}.json" in line
    assert "repair" in line or "correct" in line


@pytest.mark.parametrize(
    ("name", "words"),
    [("commitlog/notes.txt", "not a file of this store"), ("commitlog/1", "not a file of this store")],
)
def test_a_foreign_file_in_the_log(home: Path, refused: Callable[..., str], name: str, words: str) -> None:
    """The line says that the file is not the store's, and the file stays as it is."""
    (home / "store" / name).write_text("mine")
    assert words in refused()


@pytest.mark.parametrize("name", ["commitlog", "lock"])
def test_a_file_in_place_of_a_directory_and_the_reverse(tmp_path: Path, name: str) -> None:
    """The error line names the file or directory."""
    (tmp_path / "aerobee.toml").write_text(SMALL)
    (tmp_path / "store").mkdir()
    if name == "lock":
        (tmp_path / "store" / "lock").mkdir()
    else:
        (tmp_path / "store" / "commitlog").write_text("mine")
    assert f"store/{name}" in serve(tmp_path)


async def _send_one(endpoint: str, retry_seconds: float = 30.0) -> None:
    async with connect(endpoint, retry_seconds=retry_seconds) as client:
        await client.producer().send(Message(topic="orders", body=b"one more"))


# --- A full disk --------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(mount_point)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no right to mount a small file system: {mounted.stderr.decode().strip()}")
    yield mount_point
    subprocess.run(["umount", "-l", str(mount_point)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    """Sends are refused before the disk is full, with what to do, while consuming and acknowledging continue.

    Sends work again once there is space. A kill and a start on the full disk lose nothing.
    """
    (small_disk / "aerobee.toml").write_text(SMALL + f"disk_headroom = {HEADROOM}\n")
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 << 20))
    with run_broker(small_disk, ["--dev", "--config", str(small_disk / "aerobee.toml")]) as broker:
        sent = asyncio.run(_send_until_refused(broker))
        assert broker.running
        broker.kill()
        broker.start()
        consumed = asyncio.run(_consume_all(broker.endpoint, len(sent)))
        assert sorted(consumed) == sorted(sent)
        ballast.unlink()
        asyncio.run(_send_again(broker.endpoint))
        assert broker.stop() == 0
        assert "Traceback" not in broker.log_text()


async def _send_until_refused(broker: BrokerProcess) -> list[str]:
    sent: list[str] = []
    async with connect(broker.endpoint, retry_seconds=1) as client:
        producer = client.producer()
        for _ in range(2000):
            try:
                sent.append((await producer.send(Message(topic="orders", body=os.urandom(20_000)))).message_id)
            except InternalServerError as error:
                assert "disk" in str(error)  # noqa: PT017
                assert str(broker.store) in str(error) or "free" in str(error), error  # noqa: PT017
                return sent
    pytest.fail("a disk of 6 MiB never got full")


async def _consume_all(endpoint: str, count: int) -> list[str]:
    consumed: list[str] = []
    async with connect(endpoint) as client, asyncio.timeout(60):
        consumer = client.simple_consumer("billing", "orders")
        while len(consumed) < count:
            received = await consumer.receive(32, wait_seconds=1)
            await consumer.ack(received)
            consumed += [message.message_id for message in received]
    return consumed


async def _send_again(endpoint: str) -> None:
    async with connect(endpoint) as client, asyncio.timeout(60):
        while True:  # the broker checks its disk every few seconds
            try:
                await client.producer().send(Message(topic="orders", body=b"room again"))
            except InternalServerError:
                await asyncio.sleep(0.2)
            else:
                return


def test_a_disk_without_free_space(small_disk: Path) -> None:
    """One line names the cause. No partial files are left: with free space, the same start works."""
    (small_disk / "aerobee.toml").write_text(SMALL + f"disk_headroom = {HEADROOM}\n")
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(8 << 20))
    command = ["serve", "--store", str(small_disk / "store"), "--config", str(small_disk / "aerobee.toml"), "--dev"]
    free = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    ended = subprocess.run(
        [sys.executable, "-m", "aerobee_broker", *command, *free], capture_output=True, timeout=60, text=True
    )
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == ""
    assert "no space left on the disk; free some space and start again" in ended.stderr
    assert "Traceback" not in ended.stderr
    ballast.unlink()
    with run_broker(small_disk, ["--dev", "--config", str(small_disk / "aerobee.toml")]) as broker:
        asyncio.run(_send_one(broker.endpoint))


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """If no segment can be created, sends are refused as on a full disk, and the broker runs on and stops cleanly."""
    (tmp_path / "aerobee.toml").write_text(SMALL)
    command = [sys.executable, "-c", LIMIT_FILES, "serve", "--dev", "--store", str(tmp_path / "store")]
    free = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--config", str(tmp_path / "aerobee.toml")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, *free], stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline().decode()
        assert ready, (tmp_path / "log").read_text()
        for _ in range(2):
            with pytest.raises(InternalServerError, match="no space left"):
                asyncio.run(_send_one(ready.split()[1].removeprefix("grpc="), retry_seconds=0))
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


# --- Lost tables --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["topics", "subscriptionGroup", "both", "RocketMQ's"])
def test_a_lost_table_is_refused_and_built_again(home: Path, refused: Callable[..., str], lost: str) -> None:
    """It is not taken for an empty one; with a store of RocketMQ, only the queues tell that there was a table."""
    store = home / "store"
    pattern = {"both": "[ts]*", "RocketMQ's": "topics"}.get(lost, lost)
    for path in (store / "config").glob(f"{pattern}.json*"):
        if path.suffix != ".crc" or lost == "RocketMQ's":
            path.unlink()
    line = refused()
    assert "topics.json" in line or "subscriptionGroup.json" in line
    assert "missing" in line
    assert "--tables" in line
    shell = Shell("")
    if lost != "RocketMQ's":
        code, verified, _ = shell.run("store", "verify", str(store))
        assert code == 1, verified
        assert "missing, although" in verified
    rebuild = ("store", "rebuild", str(store), "--tables")
    assert "not done" in shell.text(*rebuild)
    assert refused() == line, "a plan changes nothing"
    shell.text(*rebuild, "--apply")

    async def received(endpoint: str) -> set[bytes]:
        async with connect(endpoint) as client:
            consumer = client.simple_consumer("billing", "orders")
            found: set[bytes] = set()
            while len(found) < 45:
                found |= {message.body for message in await consumer.receive(20)}
            return found

    broker = BrokerProcess(store, home / "broker.log", ["--config", str(home / "aerobee.toml")])
    try:
        broker.start()
        found = asyncio.run(received(broker.endpoint))
    finally:
        broker.close()
    assert len(found) == 45
