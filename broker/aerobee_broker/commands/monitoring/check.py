"""`aerobee check`: one figure against two limits, with the exit codes of monitoring plugins."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import options, output
from aerobee_broker.commands.terminal.options import new_command, with_client
from aerobee_store.records.decimals import decimal

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client

_EXAMPLES = """\
  aerobee check disk --warn 80% --critical 90%
  aerobee check lag --group billing --warn 1000 --critical 10000
  aerobee check lag --warn 5m --critical 1h             the age of the oldest unfinished message, of any group
  aerobee check sync --warn 100ms --critical 1s         how long the disk takes
"""
_DETAILS = "One line, and exit code 0: fine, 1: warning, 2: critical, 3: unknown, as monitoring plugins have."
_WORDS = ("OK", "WARNING", "CRITICAL")
_UNKNOWN = 3
Amount = Callable[[float], str]


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands, "check", "compare a figure with limits, for monitoring", details=_DETAILS, examples=_EXAMPLES
    )
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    disk = new_command(
        actions, "disk", "check how full the disk is", _disk, examples="  aerobee check disk --warn 80% --critical 90%"
    )
    lag = new_command(
        actions,
        "lag",
        "check the backlog of groups",
        _lag,
        details="A number is a count of messages, a duration the age of the oldest one.",
        examples="  aerobee check lag --group billing --warn 1000 --critical 10000",
    )
    lag.add_argument("--group", default="", help="only this group (default: the worst of all)")
    sync = new_command(
        actions, "sync", "check how long syncs take", _sync, examples="  aerobee check sync --warn 100ms --critical 1s"
    )
    for action, kind, form in ((disk, _percent, "N%"), (lag, _count_or_span, "N|AGE"), (sync, _span, "TIME")):
        for name in ("--warn", "--critical"):
            action.add_argument(name, metavar=form, type=kind, required=True, help="the limit that must not be passed")
        options.add_endpoint(action)


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage; give one such as 80%")
    return value


def _span(text: str) -> float:
    return options.span(text) / 1000


def _count_or_span(text: str) -> tuple[bool, float]:
    """Whether it is an age, and the number of messages or seconds."""
    count = decimal(text)
    return (True, _span(text)) if count is None else (False, float(count))


def _disk(arguments: argparse.Namespace) -> int:
    async def work(client: Client) -> float:
        store = await client.admin.store_status()
        return 100 * store.disk_used_bytes / max(store.disk_total_bytes, 1)

    return _judged(arguments, work, "disk", lambda value: f"{value:.1f}% used", arguments.warn, arguments.critical)


def _sync(arguments: argparse.Namespace) -> int:
    async def work(client: Client) -> float:
        return (await client.admin.store_status()).last_fsync_seconds

    return _judged(
        arguments,
        work,
        "sync",
        lambda value: f"the last took {value * 1000:.1f} ms",
        arguments.warn,
        arguments.critical,
    )


def _lag(arguments: argparse.Namespace) -> int:
    import time

    is_age = arguments.warn[0]
    if is_age != arguments.critical[0]:
        options.usage_error("--warn and --critical are both counts or both ages")

    async def work(client: Client) -> float:
        if arguments.group:
            await client.admin.describe_group(arguments.group)  # an error for one that does not exist
        now = time.time()
        worst = 0.0
        async for group in client.admin.group_status(order="age" if is_age else "lag", descending=True):
            if arguments.group in ("", group.group.name):
                oldest = group.oldest_timestamp.ToMilliseconds() / 1000
                age = now - oldest if group.HasField("oldest_timestamp") else 0.0
                worst = max(worst, age if is_age else group.lag)
        return worst

    def amount(value: float) -> str:
        if is_age:
            return f"the oldest message has waited {output.span_text(round(value * 1000))}"
        return f"{output.counted(round(value), 'message')} behind"

    whose = f"lag of {arguments.group}" if arguments.group else "lag"
    return _judged(arguments, work, whose, amount, arguments.warn[1], arguments.critical[1])


def _judged(
    arguments: argparse.Namespace,
    work: Callable[[Client], Awaitable[float]],
    what: str,
    amount: Amount,
    warn: float,
    critical: float,
) -> int:
    """Print one line; return the exit code."""
    from aerobee_client import ClientError

    try:
        value = with_client(arguments, work)
    except (ClientError, options.CommandError) as error:
        print(f"{what} UNKNOWN - {error}")
        return _UNKNOWN
    level = 2 if value > critical else 1 if value > warn else 0
    print(f"{what} {_WORDS[level]} - {amount(value)}")
    return level
