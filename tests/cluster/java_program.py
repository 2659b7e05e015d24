"""Released RocketMQ programs as child processes: the client of release 4.9 and `mqadmin`.

Downloads stay in Maven's repository; compiled classes go to `target/`, which git ignores.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.java_classes import java_classes

HERE: Final = Path(__file__).parent
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
def java_server(
    release: Release, home: Path, main: str, settings: Mapping[str, object]
) -> Iterator[subprocess.Popen[bytes]]:
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
            yield process
        finally:
            process.kill()


def prepare_servers(version: str, folder: Path = HERE / "servers") -> Release:
    """Download the servers that the pom.xml of `folder` names, by default name server and broker, and compile the
    programs there.

    Skips the test if Java, Maven or its registry is missing.
    """
    programs = sorted(folder.glob("*.java"))
    return Release(version, *java_classes(version, folder / "target" / version, folder / "pom.xml", programs))


def prepare(version: str) -> Release:
    """Download a release and compile the stories for it. Skips the test if Java, Maven or its registry is missing."""
    sources = sorted((HERE / "src").glob("*.java"))
    return Release(version, *java_classes(version, HERE / "target" / version, HERE / "pom.xml", sources))
