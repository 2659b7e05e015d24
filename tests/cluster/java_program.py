"""Released RocketMQ programs as child processes: the client of release 4.9 and `mqadmin`.

Downloads stay in Maven's repository; compiled classes go to `target/`, which git ignores.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
_COMPILE_SECONDS: Final = 120.0
_MAVEN_SECONDS: Final = 600.0  # a first run downloads a hundred files
_START_SECONDS: Final = 90.0
# Release 4.9 was made for Java 8 and accesses internal buffers that later Javas protect.
_OPEN_BUFFERS: Final = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
)
_JAVA_OPTIONS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(frozen=True, slots=True)
class Release:
    """A release of RocketMQ, ready to run."""

    version: str
    java: str
    class_path: str

    def command(self, home: Path, *arguments: str) -> list[str]:
        """The command line for a main class with arguments."""
        home.mkdir(parents=True, exist_ok=True)
        return [self.java, *_JAVA_OPTIONS, f"-Duser.home={home}", "-cp", self.class_path, *arguments]

    def run(self, home: Path, *arguments: str, seconds: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run a main class to its end; the result has its output."""
        return subprocess.run(
            self.command(home, *arguments),
            cwd=home,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


@contextmanager
def java_server(release: Release, home: Path, main: str, settings: Mapping[str, object]) -> Iterator[None]:
    """A RocketMQ name server or broker with these settings, ready after "boot success"; killed at the end."""
    (home / "conf").mkdir(parents=True)
    for name in ("namesrv", "broker"):
        (home / "conf" / f"logback_{name}.xml").write_text("<configuration/>")
    file = home / "server.conf"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = [release.java, *_JAVA_OPTIONS, *_OPEN_BUFFERS, f"-Duser.home={home}", "-cp", release.class_path, main]
    with (
        (home / "output").open("w") as output,
        subprocess.Popen(
            [*command, "-c", str(file)], cwd=home, stdout=output, stderr=output, env={"ROCKETMQ_HOME": str(home)}
        ) as process,
    ):
        try:
            until = time.monotonic() + _START_SECONDS
            while "boot success" not in (text := (home / "output").read_text()):
                assert process.poll() is None, text
                assert time.monotonic() < until, text
                time.sleep(0.1)
            yield
        finally:
            process.kill()


def prepare_servers(version: str, folder: Path = HERE / "servers") -> Release:
    """Download the servers that the pom.xml of `folder` names; by default, name server and broker.

    Skips the test if Java, Maven or its registry is missing.
    """
    java, maven = shutil.which("java"), shutil.which("mvn")
    if java is None or maven is None:
        pytest.skip("needs java and mvn on the PATH")
    target = folder / "target" / version
    target.mkdir(parents=True, exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return Release(version, java, _dependencies(maven, version, target, folder / "pom.xml"))


def prepare(version: str) -> Release:
    """Download a release and compile the stories for it. Skips the test if Java, Maven or its registry is missing."""
    java, javac, maven = (shutil.which(name) for name in ("java", "javac", "mvn"))
    if java is None or javac is None or maven is None:
        pytest.skip("needs java, javac and mvn on the PATH (a JDK of version 11 or later, and Maven)")
    target = HERE / "target" / version
    target.mkdir(parents=True, exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one test run builds while others wait
        dependencies = _dependencies(maven, version, target, HERE / "pom.xml")
        _compile(javac, target, dependencies)
    return Release(version, java, f"{target / 'classes'}:{dependencies}")


def _dependencies(maven: str, version: str, target: Path, pom: Path) -> str:
    listed = target / "class-path"
    if listed.exists():
        found = listed.read_text().strip()
        if all(Path(path).exists() for path in found.split(":")):
            return found
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={listed}", f"-Drocketmq.version={version}"]
    command = [maven, "--quiet", "--batch-mode", "--file", str(pom), *goal]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_MAVEN_SECONDS, check=False)
    if done.returncode:
        cause = next((line for line in done.stdout.splitlines() if "ERROR" in line), done.stdout[-300:])
        pytest.skip(f"Maven cannot fetch RocketMQ {version}: {cause}")
    return listed.read_text().strip()


def _compile(javac: str, target: Path, dependencies: str) -> None:
    sources = sorted((HERE / "src").glob("*.java"))
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    stamp = target / "compiled"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    command = [javac, "-nowarn", "-d", str(target / "classes"), "-cp", dependencies, *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    stamp.write_text(wanted)
