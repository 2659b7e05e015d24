"""Every block of code on the pages: programs and commands run on a real broker, all else is parsed.

Blocks that need Docker, Spark or several machines say so in their first line and are only parsed; they are counted.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from aerobee_broker.cli import build_parser
from aerobee_client.testing import BrokerProcess, run_broker
from tests.console.support import console_of
from tests.support.official_sdks import GO, JAVA, NODE
from tests.support.page_blocks import NOT_RUN, ROOT, Block, blocks, blocks_of, pages
from tests.support.ports import free_ports
from tests.support.programs import GRPCURL, go_program, program
from tests.support.shell import Shell

_DEFAULT: Final = "127.0.0.1:8081"
_BLOCKS: Final = blocks()
_NOT_RUN_COUNT_MAX: Final = 8
# Parts of a coroutine, as the page says; tests/integration/test_client_examples.py runs their statements.
_FRAGMENTS: Final = ("docs/client.md",)
_LANGUAGES: Final = {"console", "python", "toml", "javascript", "java", "go", "rust", "text", "nginx"}
_NEVER_RUN: Final = {"cpp", "csharp", "php"}
"""SDKs that cannot be had; each block says so."""
_SECONDS: Final = 120.0  # of one program on a busy machine

with_toolchains = [
    pytest.mark.toolchain,
    pytest.mark.skipif("AEROBEE_TOOLCHAINS" not in os.environ, reason="runs with `make test-sdks`"),
]


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    """A broker for one block, so that no block sees the messages of another."""
    with run_broker(memory=True) as running:
        yield running


def only_block(page: str, language: str, beginning: str = "") -> Block:
    """The only block of a page in a language that begins with a text after its first comment."""
    found = [
        block for block in blocks_of(ROOT / page) if block.language == language and block.code.startswith(beginning)
    ]
    assert len(found) == 1, f"{page} has {len(found)} blocks in {language} that begin with {beginning!r}"
    return found[0]


def of(*languages: str) -> pytest.MarkDecorator:
    """A test for each block in these languages."""
    return pytest.mark.parametrize("block", [each for each in _BLOCKS if each.language in languages], ids=str)


# --- Every block is parsed ------------------------------------------------------------------------------------


def test_every_block_is_in_a_language_that_the_tests_know() -> None:
    """A block in a new language needs a test; the blocks that nothing runs stay few."""
    known = {each.language: each for each in _BLOCKS if each.language not in _LANGUAGES}
    assert known.keys() <= _NEVER_RUN
    assert all(each.not_run for each in _BLOCKS if each.language in _NEVER_RUN)
    not_run = [each for each in _BLOCKS if each.not_run and each.language not in _NEVER_RUN]
    assert len(not_run) <= _NOT_RUN_COUNT_MAX, f"not run: {', '.join(map(str, not_run))}"


@of("python")
def test_a_python_block_is_a_program(block: Block) -> None:
    """Pasted into a file it is valid: no `await` outside of a coroutine, except in fragments of one."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if block.page in _FRAGMENTS else 0
    compile(block.code, str(block), "exec", flags=flags | ast.PyCF_ONLY_AST)
    compile(block.code, str(block), "exec", flags=flags)


@of("toml")
def test_a_toml_block_has_settings(block: Block) -> None:
    """It is valid TOML."""
    assert tomllib.loads(block.code)


@of("console")
def test_a_console_block_has_commands_that_exist(block: Block) -> None:
    """A shell accepts each line; commands of ours parse; targets of make, extras and modules exist."""
    assert block.commands, f"{block} has no line that begins with a prompt"
    for command in block.commands:
        subprocess.run(["bash", "-n", "-c", command], check=True, timeout=_SECONDS)
        words = shlex.split(command, comments=True)
        check = _CHECKS.get(Path(words[0]).name)
        if check is not None:
            check(words)


def test_no_message_advises_an_index_that_does_not_have_the_package() -> None:
    """Errors and help name the clone, as pages do."""
    sources = [file for part in ("broker", "client", "pipeline", "store") for file in (ROOT / part).rglob("*.py")]
    assert [str(file) for file in sources if re.search(r"pip install '?aerobee\b", file.read_text("utf-8"))] == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_indented_commands_parse(page: Path) -> None:
    """Lines of ours in blocks without a language parse; nothing is installed from an index that does not have it."""
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"pip install '?aerobee\b", text), "no index has the package: install it from a clone"
    for command in re.findall(r"(?m)^ {4,}(aerobee (?:.*\\\n)*.*)$", re.sub(r"(?ms)^```.*?^```$", "", text)):
        spoken = re.split(r"(?<=\S) {3,}", re.sub(r" *\\\n *", " ", command))[0]  # an explanation stands to the right
        _aerobee_parses([word for word in shlex.split(spoken, comments=True) if word[0] not in "[."])


def _aerobee_parses(words: list[str]) -> None:
    end = next((index for index, word in enumerate(words) if word in (">", "|", "&")), len(words))
    if "--help" not in words:
        build_parser().parse_args(words[1:end])


def _targets_exist(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in words[1:]:
        assert "=" in target or re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), f"no target {target}"


def _extras_exist(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words[2:]:
        assert not word.startswith("aerobee"), "no index has the package: install it from a clone"
        if found := re.fullmatch(r"\.\[(.+)\]", word):
            assert set(found[1].split(",")) <= set(extras), f"no such extra: {word}"


def _module_exists(words: list[str]) -> None:
    if words[1] == "-m" and words[2].startswith("examples."):
        assert (ROOT / words[2].replace(".", "/")).with_suffix(".py").exists()


_CHECKS: Final[dict[str, Callable[[list[str]], None]]] = {
    "aerobee": _aerobee_parses,
    "make": _targets_exist,
    "pip": _extras_exist,
    "python": _module_exists,
}


# --- Programs run ---------------------------------------------------------------------------------------------


def run_program(command: list[str], broker: BrokerProcess, folder: Path, **environment: str) -> str:
    """Run a program or script until it ends, without a proxy; return its output."""
    inherited = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**inherited, "PATH": path, "HOME": str(folder), "AEROBEE_ENDPOINT": broker.endpoint, **environment},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def saved(block: Block, file: Path, broker: BrokerProcess) -> Path:
    """The block pasted into a file, for this broker."""
    assert block.code.count(_DEFAULT) == 1
    file.write_text(block.code.replace(_DEFAULT, broker.endpoint))
    return file


def lag(broker: BrokerProcess, folder: Path) -> int:
    """Messages of `orders` that the group `billing` has not acknowledged."""
    answer = run_program([sys.executable, "-m", "aerobee_broker", "group", "lag", "billing", "--json"], broker, folder)
    return int(json.loads(answer)["lag"])


@pytest.mark.parametrize(
    ("page", "beginning", "said"),
    [
        ("README.md", "from rocketmq", "received b'hello' attempt 1"),
        ("README.md", "import asyncio", "b'hello' 1"),
        ("docs/client.md", "import asyncio", "b'hello' 1"),
    ],
)
def test_a_first_program_in_python(page: str, beginning: str, said: str, broker: BrokerProcess, tmp_path: Path) -> None:
    """It sends, receives and acknowledges."""
    program = saved(only_block(page, "python", beginning), tmp_path / "first.py", broker)
    assert said in run_program([sys.executable, str(program)], broker, tmp_path)
    assert lag(broker, tmp_path) == 0


@NODE.mark
def test_a_first_program_in_javascript(broker: BrokerProcess, tmp_path: Path) -> None:
    """It sends, receives and acknowledges."""
    node, folder = NODE.installed(tmp_path)
    program = saved(only_block("docs/sdks.md", "javascript"), tmp_path / "first.js", broker)
    said = run_program([node[0], str(program)], broker, tmp_path, NODE_PATH=str(folder / "node_modules"))
    assert "received hello" in said
    assert lag(broker, tmp_path) == 0


@pytest.mark.toolchain
@JAVA.mark
@with_toolchains[1]
def test_a_first_program_in_java(broker: BrokerProcess, tmp_path: Path) -> None:
    """It sends, receives and acknowledges."""
    java, _ = JAVA.installed(tmp_path)
    program = saved(only_block("docs/sdks.md", "java"), tmp_path / "Hello.java", broker)
    assert "received 01" in run_program([*java[:-2], str(program)], broker, tmp_path)
    assert lag(broker, tmp_path) == 0


@pytest.mark.toolchain
@GO.mark
@with_toolchains[1]
def test_a_first_program_in_go(broker: BrokerProcess, tmp_path: Path) -> None:
    """It sends, receives and acknowledges."""
    _, sources = GO.installed(tmp_path)
    for name in ("go.mod", "go.sum"):
        (tmp_path / name).write_text((sources / name).read_text())
    saved(only_block("docs/sdks.md", "go"), tmp_path / "first.go", broker)
    home = os.environ["HOME"]  # of the compiler's cache; the SDK logs below HOME, too
    assert "received hello" in run_program(["go", "run", "first.go"], broker, tmp_path, HOME=home)
    assert lag(broker, tmp_path) == 0


@pytest.mark.toolchain
@with_toolchains[1]
@pytest.mark.sdk("Rust (first program)")
@pytest.mark.skipif(shutil.which("cargo") is None, reason="needs cargo on the PATH")
@pytest.mark.timeout(1200)  # the first build takes minutes
def test_a_first_program_in_rust(broker: BrokerProcess, tmp_path: Path) -> None:
    """It sends, receives and acknowledges."""
    (tmp_path / "src").mkdir()
    saved(only_block("docs/sdks.md", "rust"), tmp_path / "src" / "main.rs", broker)
    (tmp_path / "Cargo.toml").write_text(
        '[package]\nname = "first"\nversion = "0.0.0"\nedition = "2021"\n\n[dependencies]\nrocketmq = "5"\n'
        'tokio = { version = "1", features = ["macros", "rt-multi-thread"] }\n'
        'time = { version = "0.3", features = ["local-offset"] }\n'
    )
    build = ROOT / "build" / "sdks" / "rust-first"
    subprocess.run(["cargo", "build", "--quiet", "--target-dir", str(build)], cwd=tmp_path, check=True)
    assert "received hello" in run_program([str(build / "debug" / "first")], broker, tmp_path)
    assert lag(broker, tmp_path) == 0


# --- Commands run ---------------------------------------------------------------------------------------------


def run_commands(block: Block, broker: BrokerProcess, folder: Path) -> list[str]:
    """Run the lines of a block one after the other; return the output of each."""
    assert block.not_run is None
    commands = [command.replace(_DEFAULT, broker.endpoint) for command in block.commands]
    return [run_program(["bash", "-euc", command], broker, folder) for command in commands]


def test_the_commands_of_the_readme(broker: BrokerProcess, tmp_path: Path) -> None:
    """Typed one after the other on a fresh broker, each succeeds and shows the message of the first."""
    (tmp_path / "data").symlink_to(broker.store)
    outputs = run_commands(only_block("README.md", "console", "$ aerobee send"), broker, tmp_path)
    sent, received, queried, timeline, *_ = outputs
    assert all(outputs[:5])
    assert "hello" in received
    assert "order-7" in queried
    assert "billing" in timeline
    assert "orders" in sent


@pytest.mark.sdk("grpcurl")
@pytest.mark.timeout(400)  # the first run builds grpcurl, for a minute or two
def test_the_grpcurl_commands(broker: BrokerProcess, tmp_path: Path) -> None:
    """The services are listed and a message is sent, by reflection alone."""
    (tmp_path / "grpcurl").symlink_to(go_program(GRPCURL))
    block = only_block("docs/sdks.md", "console", "$ grpcurl")
    commands = [command.replace(_DEFAULT, broker.endpoint) for command in block.commands]
    path = f"{tmp_path}:{os.environ['PATH']}"
    listed, sent = (run_program(["bash", "-euc", each], broker, tmp_path, PATH=path) for each in commands)
    assert "apache.rocketmq.v2.MessagingService" in listed
    assert json.loads(sent)["status"]["code"] == "OK"


def test_the_lines_for_nginx(broker: BrokerProcess, tmp_path: Path) -> None:
    """Through it a message is sent and received, and the console's page and its live tail are seen."""
    nginx = program("nginx")
    clients, people = free_ports(2)
    with console_of(broker.endpoint, "--url", f"http://127.0.0.1:{people}/aerobee") as console:
        console_address = console.removeprefix("http://").partition("/")[0]
        lines = only_block("docs/operating.md", "nginx", "server").code
        for there, here in (
            ("listen 8443", f"listen 127.0.0.1:{clients}"),
            ("listen 8080", f"listen 127.0.0.1:{people}"),
            ("127.0.0.1:8081", broker.endpoint),
            ("127.0.0.1:8090", console_address),
        ):
            assert there in lines
            lines = lines.replace(there, here)
        temporary = "".join(f"{kind}_temp_path {tmp_path / kind};" for kind in _NGINX_TEMPORARY)
        (tmp_path / "nginx.conf").write_text(
            f"daemon off; user root; pid {tmp_path}/pid; events {{}} http {{ access_log off; {temporary} {lines} }}"
        )
        with subprocess.Popen([nginx, "-e", tmp_path / "log", "-c", tmp_path / "nginx.conf"]) as process:
            try:
                shell = Shell(f"127.0.0.1:{clients}")
                _wait_until_listening(clients, people)
                shell.text("send", "orders", "through nginx")
                assert "through nginx" in shell.text("receive", "orders", "--group", "billing", "--timeout", "20")
                address = f"http://127.0.0.1:{people}/aerobee/topics/orders"
                with httpx.Client(timeout=30) as client:
                    assert "/aerobee/topics/orders/tail" in client.get(address).text
                    with client.stream("GET", f"{address}/tail/events") as events:
                        assert any("through nginx" in line for line in events.iter_lines())
            finally:
                process.terminate()


def _wait_until_listening(*ports: int) -> None:
    ends = time.monotonic() + 60
    for port in ports:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except ConnectionRefusedError:
                assert time.monotonic() < ends, f"nginx does not listen on port {port}"
                time.sleep(0.05)


_NGINX_TEMPORARY: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def test_blocks_that_are_not_run_say_why() -> None:
    """The reason is a sentence in the first line, where a reader sees it."""
    for block in _BLOCKS:
        if NOT_RUN.strip() in block.code:
            assert block.not_run is not None
            assert block.not_run.endswith("."), str(block)
