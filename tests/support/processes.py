"""A pytest plugin: `--processes N` shares the tests among N processes, which fork after one collection.

    first process                         each forked process
    collects all tests, and forks
                                      <-  asks for tests
    those of the next module          ->  runs them
                                      <-  one report after the other
    no module is left                 ->  ends its fixtures, and itself
    end of the connection             ->  ends after the current test

Importing and collecting all tests takes five seconds of a core. Forked processes do not repeat that, share its memory,
and begin with their first test.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pytest
from _pytest.config import create_terminal_writer


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=0, metavar="N", help="share the tests among N processes")
    parser.addoption(
        "--share",
        choices=["modules", "tests"],
        default="modules",
        help="what a process takes at once: all tests of a module, whose fixtures are made once, or one test",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in processes, if the option is given and there is something to run."""
    config = session.config
    count = config.getoption("processes")
    if not count or session.testsfailed or config.getoption("collectonly"):
        return None
    share = config.getoption("share")
    units = [list(items) for _, items in groupby(session.items, lambda item: item.path if share == "modules" else item)]
    assert threading.active_count() == 1, "a process with threads must not fork"
    config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # made once, for all
    sys.stdout.flush()  # else each process might write what is in the buffer
    processes: list[_Process] = []
    for number in range(min(count, len(units))):
        ours, theirs = Pipe()
        pid = os.fork()
        if not pid:
            for end in (ours, *(process.connection for process in processes)):
                end.close()
            os._exit(_work(session, number, theirs, units))  # without what the first process does at its end
        theirs.close()
        processes.append(_Process(pid, ours))
    try:
        _follow(session, processes, units)
    finally:
        for process in processes:
            process.end()
    return True


# --- The first process -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Process:
    """A process that runs tests."""

    pid: int
    connection: Connection
    test: str = "no test"  # the last one that began
    has_ended: bool = False  # as it should
    exit_code: int | None = None

    def end(self) -> None:
        """Wait for its end, which comes after the current test at the latest."""
        self.connection.close()
        if self.exit_code is None:
            self.exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _follow(session: pytest.Session, processes: Sequence[_Process], units: list[list[pytest.Item]]) -> None:
    """Hand out the tests, and report what comes back, until all processes have ended."""
    hook = session.config.hook
    terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    terminal.showfspath = False  # several modules run at a time
    running = {process.connection: process for process in processes}
    upcoming = iter(range(len(units)))
    while running:
        for connection in wait(list(running)):
            process = running[connection]  # type: ignore[index]  # no socket is among them
            try:
                kind, content = process.connection.recv()
            except EOFError:
                del running[process.connection]
                process.end()
                if process.exit_code or not process.has_ended:
                    why = f"the process ended with {process.exit_code}, without the rest of its tests"
                    where = (process.test.partition("::")[0], None, process.test)
                    hook.pytest_runtest_logreport(
                        report=pytest.TestReport(process.test, where, {}, "failed", why, "call")
                    )
                    raise session.Failed(why) from None
                continue
            match kind:
                case "next":
                    process.connection.send(next(upcoming, None))
                case "end":
                    process.has_ended = True
                case "test":
                    process.test = content
                case "warning":
                    hook.pytest_warning_recorded.call_historic(kwargs=_warning(**content))
                case "report":
                    report = hook.pytest_report_from_serializable(config=session.config, data=content)
                    hook.pytest_runtest_logreport(report=report)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)


def _warning(text: str, category: str, filename: str, lineno: int, **other: object) -> dict[str, object]:
    message = warnings.WarningMessage(f"{category}: {text}", UserWarning, filename, lineno)
    return {"warning_message": message, **other}


# --- A forked process ------------------------------------------------------------------------------------------------


def _work(session: pytest.Session, number: int, connection: Connection, units: list[list[pytest.Item]]) -> int:
    """Run tests until none is left; returns the exit code."""
    try:
        _enter(session.config, number, _Reporter(session.config, connection))
        try:
            tests = _tests(connection, units)
            following = next(tests, None)
            while following is not None and not session.shouldfail and not session.shouldstop:
                test, following = following, next(tests, None)
                test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        finally:
            session.config.hook.pytest_sessionfinish(session=session, exitstatus=pytest.ExitCode.OK)
        connection.send(("end", None))
    except (KeyboardInterrupt, BrokenPipeError, EOFError):  # the first process has seen it too, or is gone
        return pytest.ExitCode.INTERRUPTED
    except BaseException:
        traceback.print_exc()
        return pytest.ExitCode.INTERNAL_ERROR
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return pytest.ExitCode.OK


def _tests(connection: Connection, units: list[list[pytest.Item]]) -> Iterator[pytest.Item]:
    """All tests for this process. The next unit is asked for before the last test of the one before, which keeps the
    fixtures that both need."""
    while True:
        connection.send(("next", None))
        number = connection.recv()
        if number is None:
            return
        yield from units[number]


def _enter(config: pytest.Config, number: int, reporter: _Reporter) -> None:
    """Make this process one that runs tests for another."""
    plugins = config.pluginmanager
    config.workerinput = {"workerid": f"process-{number}"}  # type: ignore[attr-defined]  # plugins look for it
    plugins.unregister(name="terminalreporter")
    plugins.register(_StandardError(config), "terminalreporter")
    plugins.register(reporter)
    capture: Any = plugins.get_plugin("capturemanager")
    if capture.is_globally_capturing():
        capture.stop_global_capturing()  # its files are those of the first process
        capture.start_global_capturing()
        capture.suspend_global_capture(in_=True)
    first = config._tmp_path_factory  # type: ignore[attr-defined]
    atexit.unregister(first._exit_stack.close)  # it removes the lock of the first process
    config.option.basetemp = str(first.getbasetemp() / f"process-{number}")
    config._tmp_path_factory = pytest.TempPathFactory.from_config(config, _ispytest=True)  # type: ignore[attr-defined]


class _StandardError:
    """What plugins find as the reporter, for a message in an emergency; nothing is reported to it."""

    def __init__(self, config: pytest.Config) -> None:
        self._tw = create_terminal_writer(config, sys.stderr)


class _Reporter:
    """A plugin that sends reports to the first process."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._connection.send(("test", nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        content = {
            "text": str(warning_message.message),
            "category": warning_message.category.__name__,
            "filename": warning_message.filename,
            "lineno": warning_message.lineno,
        }
        self._connection.send(("warning", {**content, "when": when, "nodeid": nodeid, "location": location}))
