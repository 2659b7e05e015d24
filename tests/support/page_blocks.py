"""The blocks of code on the pages for people: README.md, CONTRIBUTING.md, docs/ and the READMEs of examples.

A block of shell lines that no test can run says why in its first line, to the reader: `NOT_RUN` and a sentence.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
NOT_RUN: Final = "The tests do not run these lines: "
"""After the sign of a comment."""
_FENCE: Final = re.compile(r"^(?P<indent> *)```(?P<language>\w*).*\n(?P<code>(?:.*\n)*?)^(?P=indent)```$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; `line` counts from 1 and is that of the fence."""

    page: str
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def not_run(self) -> str | None:
        """Why no test runs it, as its first line says."""
        first = self.code.partition("\n")[0].removeprefix("<?php").lstrip("#/ ")
        return first.removeprefix(NOT_RUN) if first.startswith(NOT_RUN) else None

    @property
    def commands(self) -> list[str]:
        """The lines after a prompt, with their continuations; other lines are output."""
        text = re.sub(r"\\\n +", "", self.code)
        lines = text.splitlines()
        found = []
        for index, line in enumerate(lines):
            if line.startswith("$ "):
                command = line[2:]
                while _quote_is_open(command) and index + 1 < len(lines):
                    index += 1
                    command += "\n" + lines[index]
                found.append(command)
        return found


def _quote_is_open(command: str) -> bool:
    """Whether a quoted text goes on in the next line."""
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


def pages() -> list[Path]:
    """All pages with code for readers."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    ]


def blocks() -> list[Block]:
    """The blocks of all pages, in order."""
    return [block for page in pages() for block in blocks_of(page)]


def blocks_of(page: Path) -> list[Block]:
    """The blocks of one page."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    return [
        Block(name, text.count("\n", 0, found.start()) + 1, found["language"], found["code"])
        for found in _FENCE.finditer(text)
    ]
