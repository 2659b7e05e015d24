"""Apache RocketMQ's store as a child process: built from the sources beside this file, spoken to in lines.

`src/StoreProgram.java` describes commands and answers. What is downloaded stays where Maven keeps it; what is compiled
goes to `target/`, which git ignores.
"""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support.java_classes import java_classes

HERE: Final = Path(__file__).parent
_SECONDS: Final = 60.0  # for anything that normally takes a moment; machines that test may be very busy

# Release 4.9 was made for Java 8 and reaches for buffers that later Javas keep to themselves.
_JAVA_OPTIONS: Final = (
    "-Xmx512m",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
)


class RefusedError(Exception):
    """RocketMQ did not open the directory; the text says why."""


class FailedError(Exception):
    """RocketMQ failed at a command; the text says why."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release of RocketMQ, ready to run."""

    version: str
    java: str
    class_path: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def prepare(version: str) -> Release:
    """Download a release and compile the program for it. Skips the test if Java, Maven or its registry is missing."""
    folders = (HERE / "src", HERE / f"src{version.split('.')[0]}")
    sources = sorted(path for folder in folders for path in folder.glob("*.java"))
    return Release(version, *java_classes(version, HERE / "target" / version, HERE / "pom.xml", sources))


class JavaStore:
    """RocketMQ's store on `directory`, open until the end of the `with` block. RefusedError if it does not open."""

    def __init__(self, release: Release, directory: Path, home: Path, settings: Mapping[str, object]) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._errors = home / "stderr.log"
        command = [release.java, *_JAVA_OPTIONS, f"-Duser.home={home}", "-cp", release.class_path]
        arguments = [f"{name}={str(value).lower()}" for name, value in settings.items()]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, "StoreProgram", str(directory), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=home,
                text=True,
            )
        self._lines: queue.Queue[list[str] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.min_offset = self.max_offset = -1

    def __enter__(self) -> Self:
        first = self._line("its start")
        if first[0] != "ready":
            self._end()
            raise RefusedError("\t".join(first))
        self.min_offset, self.max_offset = int(first[1]), int(first[2])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """No program outlives its test, whatever happened."""
        try:
            if kind is None and self._process.poll() is None:
                self.close()
        finally:
            self._end()

    def ask(self, command: str, *fields: object) -> list[list[str]]:
        """What it answers, without the last line. FailedError if the command failed."""
        self.tell(command, *fields)
        found: list[list[str]] = []
        while True:
            line = self._line(command)
            if line[0] == "done":
                return found
            if line[0] == "failed":
                raise FailedError(f"{command} {fields}: {line[1:]}\n{self.errors()}")
            found.append(line)

    def tell(self, command: str, *fields: object) -> None:
        """Send a command and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join([command, *map(str, fields)]) + "\n")
        self._process.stdin.flush()

    def answers(self, count: int) -> list[list[str]]:
        """The next lines, whatever they are."""
        return [self._line(f"{count} lines") for _ in range(count)]

    def wait_dispatched(self) -> None:
        """Until every message is in its queue and in the index: RocketMQ answers before."""
        deadline = time.monotonic() + _SECONDS
        while self.ask("behind") != [["behind", "0"]]:
            assert time.monotonic() < deadline, f"dispatch does not get on\n{self.errors()}"
            time.sleep(0.01)

    def close(self) -> None:
        """Let it shut down in an orderly way."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        if self._process.poll() is None or not self._lines.empty():
            last = self._line("its end")
            while last[0] != "closed":
                last = self._line("its end")
        assert self._process.wait(_SECONDS) == 0, self.errors()

    def kill(self) -> list[list[str]]:
        """SIGKILL. Returns the answers that were not read yet."""
        self._end()
        left = []
        while (line := self._lines.get_nowait()) is not None:
            left.append(line)
        return left

    def errors(self) -> str:
        """The end of what it wrote to standard error."""
        return self._errors.read_text(errors="replace")[-4000:]

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _line(self, what: str) -> list[str]:
        try:
            line = self._lines.get(timeout=_SECONDS)
        except queue.Empty:
            raise AssertionError(f"no answer in {_SECONDS:g} s: {what}\n{self.errors()}") from None
        assert line is not None, f"it ended before: {what}\n{self.errors()}"
        return line

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # of a killed process the last line may be half
                self._lines.put(line[:-1].split("\t"))
        self._lines.put(None)


def settings_of(sizes: Sequence[int]) -> dict[str, object]:
    """RocketMQ's names for the sizes of the files: segment, queue file, index slots, index entries."""
    names = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
    return dict(zip(names, sizes, strict=True))
