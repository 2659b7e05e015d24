"""The released official SDKs, unmodified: how each is installed or built, and how its programs are started.

| SDK | version | needs | its programs |
| --- | --- | --- | --- |
| Python | `PYTHON.version` | `make setup` | tests/integration/sdk_python, one module each |
| Node.js | `package.json` | node, npm | tests/integration/sdk_node, one file each |
| Java | `pom.xml` | java and javac 17, mvn | tests/sdk/java |
| Go | `go.mod` | go | tests/sdk/go |

Java and Go are built once, into `build/sdks`, and again when their sources change. A missing tool skips the test and is
named; a failed build with all tools present is a failure, unless no registry can be reached.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.sdk_program import SdkProgram

ROOT = Path(__file__).parents[2]
_BUILD = ROOT / "build" / "sdks"
_INSTALL_SECONDS, _BUILD_SECONDS = 100, 280  # less than the timeout of the test in which it happens
_IMPORTS_ITSELF = ("broker_and_client",)  # in an order that matters
_UNREACHABLE = re.compile(
    r"ENOTFOUND|ECONNREFUSED|EAI_AGAIN|ETIMEDOUT|no such host|connection refused|i/o timeout|Unknown host"
    r"|Could not transfer artifact|could not be resolved|Temporary failure in name resolution",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class OfficialSdk:
    """One SDK; `mark` goes to each test that runs it."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def mark(self) -> pytest.MarkDecorator:
        return pytest.mark.sdk(str(self))

    def program(self, program: str, home: Path, **options: Any) -> SdkProgram:
        """Start a program, after installing or building its SDK if necessary. Skips the test if that is impossible."""
        command, folder = _COMMANDS[self.name](program, home)
        module = command[-1] if self is PYTHON and program not in _IMPORTS_ITSELF else None
        return SdkProgram(command, home, folder, module=module, **options)

    def installed(self, home: Path) -> tuple[list[str], Path]:
        """Install or build the SDK if necessary; return the command of a program and the folder of its sources. Skips
        the test if that is impossible."""
        return _COMMANDS[self.name]("", home)


def _pinned(file: str, pattern: str) -> str:
    match = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"))
    assert match is not None, f"{file} does not name the SDK's version"
    return match[1]


PYTHON = OfficialSdk("Python", "5.1.2")
NODE = OfficialSdk(
    "Node.js", _pinned("tests/integration/sdk_node/package.json", r'"rocketmq-client-nodejs": "([^"]+)"')
)
JAVA = OfficialSdk(
    "Java", _pinned("tests/sdk/java/pom.xml", r"<artifactId>rocketmq-client-java</artifactId>\s*<version>([^<]+)<")
)
GO = OfficialSdk("Go", _pinned("tests/sdk/go/go.mod", r"rocketmq-clients/golang/v5 v(\S+)"))


def _python(program: str, home: Path) -> tuple[list[str], Path]:
    try:
        installed = importlib.metadata.version("rocketmq-python-client")
    except importlib.metadata.PackageNotFoundError:
        installed = None
    if installed != PYTHON.version:
        pytest.skip(f"needs rocketmq-python-client=={PYTHON.version}: make setup")
    return [sys.executable, "-m", f"tests.integration.sdk_python.{program}"], ROOT


def _node(program: str, home: Path) -> tuple[list[str], Path]:
    """The SDK is installed beside the programs; git ignores the folder."""
    node, npm = _tools("node", "npm")
    folder = ROOT / "tests" / "integration" / "sdk_node"
    installed = folder / "node_modules" / "rocketmq-client-nodejs" / "package.json"
    with _one_at_a_time(folder / "package.json"):
        if not installed.exists() or json.loads(installed.read_text())["version"] != NODE.version:
            _run(
                [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
                folder,
                "npm cannot install the SDK",
                _INSTALL_SECONDS,
            )
    return [node, f"{program}.js"], folder


def _java(program: str, home: Path) -> tuple[list[str], Path]:
    java, _, maven = _tools("java", "javac", "mvn")
    source, built = ROOT / "tests" / "sdk" / "java", _BUILD / "java"
    with _build_when_changed(source, built) as changed:
        if changed:
            command = [maven, "-q", "-B", f"-Doutput={built}", "clean", "compile", "dependency:copy-dependencies"]
            _run(command, source, "Maven cannot build the programs", _BUILD_SECONDS)
    # A JVM takes the home directory from the account, not from HOME; the other flags speed up its start.
    flags = [f"-Duser.home={home}", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-Xmx256m"]
    class_path = os.pathsep.join((str(built / "classes"), f"{built / 'lib'}/*"))
    return [java, *flags, "-cp", class_path, "aerobee.sdk.Main", program], source


def _go(program: str, home: Path) -> tuple[list[str], Path]:
    (go,) = _tools("go")
    source, built = ROOT / "tests" / "sdk" / "go", _BUILD / "go"
    with _build_when_changed(source, built) as changed:
        if changed:
            _run([go, "build", "-o", str(built / "sdk"), "."], source, "Go cannot build the programs", _BUILD_SECONDS)
    return [str(built / "sdk"), program], source


_COMMANDS = {"Python": _python, "Node.js": _node, "Java": _java, "Go": _go}


def _tools(*names: str) -> list[str]:
    paths = [shutil.which(name) for name in names]
    missing = [name for name, path in zip(names, paths, strict=True) if path is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)} on the PATH")
    return [path for path in paths if path is not None]


@contextmanager
def _one_at_a_time(file: Path) -> Iterator[None]:
    """One test run installs or builds while others wait."""
    with file.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _build_when_changed(source: Path, built: Path) -> Iterator[bool]:
    """Whether `built` was made from other sources than `source`; updated when the body succeeds."""
    built.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(source)}\0".encode() + path.read_bytes())
    stamp = built.with_suffix(".sha256")
    stamp.touch()
    with _one_at_a_time(stamp):
        changed = stamp.read_text() != digest.hexdigest()
        yield changed
        if changed:
            stamp.write_text(digest.hexdigest())


def _run(command: Sequence[str], folder: Path, cannot: str, seconds: float) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
    output = f"{done.stdout}\n{done.stderr}"
    if done.returncode != 0 and _UNREACHABLE.search(output):
        pytest.skip(f"{cannot}: its registry cannot be reached")
    assert done.returncode == 0, f"{cannot}:\n{output}"
