"""The command line, in the process of the tests."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest

from aerobee_broker.cli import main


class Shell:
    """The command line with a broker. Commands run in this process, which saves starting one."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def run(self, *arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        """Exit code, standard output and standard error of one command."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setenv("AEROBEE_ENDPOINT", self.endpoint)
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            code = main(arguments)
        return code, out.getvalue(), err.getvalue()

    def text(self, *arguments: str, stdin: bytes = b"") -> str:
        """The output of a command that must succeed."""
        code, out, err = self.run(*arguments, stdin=stdin)
        assert (code, err) == (0, "")
        return out

    def json(self, *arguments: str) -> Any:
        """The one JSON document that a command prints."""
        return json.loads(self.text(*arguments, "--json"))

    def lines(self, *arguments: str) -> list[dict[str, Any]]:
        """The JSON objects that a command prints, one per line."""
        return [json.loads(line) for line in self.text(*arguments, "--json").splitlines()]

    def error(self, *arguments: str, code: int = 1) -> str:
        """The one error line of a command that must fail with this exit code."""
        found, out, err = self.run(*arguments)
        assert (found, out) == (code, "")
        (line,) = err.splitlines()
        return line
