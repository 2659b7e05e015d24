"""`aerobee store`: inspect, repair and copy stores. Nothing is changed without `--apply`."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerobee_broker.commands.terminal import options, output
from aerobee_broker.commands.terminal.options import CommandError, new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_broker.tables.rebuilt_tables import TablesReport
    from aerobee_store.tools.actions import GivenSizes
    from aerobee_store.tools.findings import Finding
    from aerobee_store.tools.rebuild import RebuildReport
    from aerobee_store.tools.repair import RepairReport

_EXAMPLES = """\
  aerobee store inspect data                          the contents of a directory
  aerobee store inspect --endpoint 127.0.0.1:8081     the store of a running broker
  aerobee store verify data                           check every byte; exit code 1 if something is damaged
  aerobee store dump data | jq .topic                 every record as one JSON object, in log order
  aerobee store backup data /backup/monday            a copy, while a broker runs or not
  aerobee store repair data                           show the repairs; --apply performs them
  aerobee store rebuild data                          show the rebuild; --apply performs it
"""
_SIZE_HELP = "size of the files, if no file shows it (default: the broker's)"
_CANNOT_LOOK = 2  # exit code of verify: the store's state is unknown


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands, "store", "inspect, verify, dump, back up and repair stores, including RocketMQ's", examples=_EXAMPLES
    )
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_inspect(actions)
    _add_verify(actions)
    _add_dump(actions)
    _add_repair(actions)
    _add_rebuild(actions)
    _add_backup(actions)


def _add_inspect(actions: Commands) -> None:
    inspect = new_command(
        actions,
        "inspect",
        "show the contents of a store (read-only)",
        _inspect,
        examples="  aerobee store inspect data\n  aerobee store inspect --endpoint 127.0.0.1:8081 --json",
    )
    inspect.add_argument("directory", metavar="DIR", type=Path, nargs="?", help="directory of a store, in use or not")
    inspect.add_argument("--endpoint", metavar="HOST:PORT", help="ask a running broker instead")
    options.add_connection(inspect)
    inspect.add_argument("--full", action="store_true", help="read the whole log: count records, find damage")
    options.add_json(inspect)


def _add_verify(actions: Commands) -> None:
    verify = new_command(
        actions,
        "verify",
        "check every record, queue and index of a store (read-only)",
        _verify,
        details="""\
Exit code 0: clean, perhaps with warnings, 1: errors, 2: the store could not be read.
Opening the store with a broker repairs missing parts of queues and index and a torn end of the log.
`log-damaged`, `segment-missing` and `queue-offset-gap` mean that messages are lost.""",
        examples="  aerobee store verify data\n  aerobee store verify data --json",
    )
    _add_directory(verify)
    _add_index_counts(verify, "if the files do not show them")
    options.add_json(verify)


def _add_dump(actions: Commands) -> None:
    dump = new_command(
        actions,
        "dump",
        "print all records as JSON lines, in log order",
        _dump,
        details="Damaged ranges are reported on standard error and skipped.",
        examples="""\
  aerobee store dump data
  aerobee store dump data | jq -r .topic | sort | uniq -c
  aerobee store dump data --topic orders --time 2026-01-31T12:00 2026-01-31T12:30
  aerobee store dump data --offset 1073741824 1074000000""",
    )
    _add_directory(dump)
    dump.add_argument("--topic", help="only the records of one topic")
    dump.add_argument(
        "--time",
        metavar=("BEGIN", "END"),
        nargs=2,
        type=options.moment,
        help="only records stored between these times, inclusive: 2026-01-31T12:00, 15m (ago), now, or Unix "
        "milliseconds",
    )
    dump.add_argument(
        "--offset",
        metavar=("BEGIN", "END"),
        nargs=2,
        type=options.offset,
        help="only records at these physical offsets, END excluded",
    )
    dump.add_argument("--bodies", action="store_true", help="print bodies above 256 bytes in full, not as hashes")


def _add_repair(actions: Commands) -> None:
    repair = new_command(
        actions,
        "repair",
        "repair a stopped store; a dry run without --apply",
        _repair,
        details="""\
Prints the repairs; --apply performs them. Make a backup first.
Damage within the log cannot be repaired; readers skip it.
Exit code 0: nothing left to repair, 1: problems remain, 2: the store could not be read.""",
        examples="  aerobee store repair data\n  aerobee store repair data --apply",
    )
    _add_change(repair)


def _add_rebuild(actions: Commands) -> None:
    rebuild = new_command(
        actions,
        "rebuild",
        "rebuild queues and index of a stopped store from the log",
        _rebuild,
        details="""\
Rebuilds both unless --queues or --index is given. A dry run without --apply. With --tables alone: topics of queues, and
groups with offsets or a retry topic, that the tables lack; their settings are lost, and are the defaults.""",
        examples="""\
  aerobee store rebuild data
  aerobee store rebuild data --index --apply
  aerobee store rebuild data --tables --apply           topics.json is lost""",
    )
    rebuild.add_argument("--queues", action="store_true", help="the consume queues")
    rebuild.add_argument("--index", action="store_true", help="the index of keys")
    rebuild.add_argument("--tables", action="store_true", help="topics and groups, from queues and offsets")
    _add_change(rebuild)


def _add_backup(actions: Commands) -> None:
    backup = new_command(
        actions,
        "backup",
        "copy a store, in use or not",
        _backup,
        details="""\
A copy of a store in use contains all messages stored before the copy began, and is recovered when it is opened.""",
        examples="  aerobee store backup data /backup/monday\n  aerobee store backup data data.copy --hard-links",
    )
    _add_directory(backup)
    backup.add_argument("target", metavar="TARGET", type=Path, help="new or empty directory of the copy")
    backup.add_argument(
        "--hard-links", action="store_true", help="link full segments of the log instead of copying them"
    )
    options.add_json(backup)


def _add_directory(action: argparse.ArgumentParser) -> None:
    action.add_argument("directory", metavar="DIR", type=Path, help="directory of a store (contains commitlog)")


def _add_change(action: argparse.ArgumentParser) -> None:
    """The options of a command that changes files of a stopped store."""
    _add_directory(action)
    action.add_argument("--apply", action="store_true", help="perform the actions; without this, only print them")
    action.add_argument("--queue-file-size", metavar="BYTES", type=options.count, help=_SIZE_HELP)
    action.add_argument("--batch-queue-file-size", metavar="BYTES", type=options.count, help=_SIZE_HELP)
    _add_index_counts(action, "if no file shows them")
    options.add_json(action)


def _add_index_counts(action: argparse.ArgumentParser, when: str) -> None:
    action.add_argument(
        "--index-counts",
        metavar=("SLOTS", "ENTRIES"),
        nargs=2,
        type=options.count,
        default=(None, None),
        help=f"counts of the index files (maxHashSlotNum, maxIndexNum), {when}",
    )


def _inspect(arguments: argparse.Namespace) -> int:
    if (arguments.directory is None) == (arguments.endpoint is None):
        options.usage_error("give a directory, or --endpoint for the store of a running broker")
    if arguments.endpoint is not None:
        findings: list[Finding] = []
        status = with_client(arguments, lambda client: client.admin.store_status())
        values = output.protobuf_json(status)
        del values["status"]
    else:
        with _looking_at(arguments.directory) as directory, output.counting_bytes("reading") as progress:
            from aerobee_store.tools.inspect import inspect

            report = inspect(directory, full=arguments.full, progress=progress)
        values, findings = report.to_json(), report.findings
    if arguments.json:
        output.print_json(values)
    else:
        _print_report(values, findings)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    with _looking_at(arguments.directory) as directory, output.counting_bytes("verifying") as progress:
        from aerobee_store.tools.verify import verify

        slots, entries = arguments.index_counts
        report = verify(directory, index_slot_count=slots, index_entry_count=entries, progress=progress)
    values = report.to_json()
    if arguments.json:
        output.print_json(values)
    else:
        del values["ok"]
        _print_report(values, report.findings)
        print("clean" if report.ok else "not clean; `aerobee store verify --help` explains how to repair it")
    return 0 if report.ok else 1


def _dump(arguments: argparse.Namespace) -> int:
    bar = output.counting_bytes("dumping", beside_data=True)
    with _looking_at(arguments.directory) as directory, bar as progress:
        from aerobee_store.tools.dump import dump

        times = {} if arguments.time is None else dict(zip(("begin_time", "end_time"), arguments.time, strict=True))
        offsets = {} if arguments.offset is None else dict(zip(("begin", "end"), arguments.offset, strict=True))
        for record in dump(
            directory,
            topic=arguments.topic,
            bodies=arguments.bodies,
            on_finding=lambda finding: print(f"aerobee: {finding}", file=sys.stderr),
            progress=progress,
            **times,
            **offsets,
        ):
            output.print_json(record, at_once=False)
    return 0


def _repair(arguments: argparse.Namespace) -> int:
    changed = arguments.directory if arguments.apply else None
    with _looking_at(arguments.directory, changed) as directory, output.counting_bytes("looking") as progress:
        from aerobee_store.tools.repair import repair

        report = repair(directory, apply=arguments.apply, sizes=_given_sizes(arguments), progress=progress)
    _print_repairs(report, as_json=arguments.json)
    return 1 if report.left or (report.actions and not report.applied) else 0


def _rebuild(arguments: argparse.Namespace) -> int:
    if arguments.tables:
        return _rebuild_tables(arguments)
    both = not (arguments.queues or arguments.index)
    changed = arguments.directory if arguments.apply else None
    with _looking_at(arguments.directory, changed) as directory, output.counting_bytes("rebuilding") as progress:
        from aerobee_store.tools.rebuild import rebuild

        report = rebuild(
            directory,
            queues=arguments.queues or both,
            index=arguments.index or both,
            apply=arguments.apply,
            sizes=_given_sizes(arguments),
            progress=progress,
        )
    _print_repairs(report, as_json=arguments.json)
    return 0


def _rebuild_tables(arguments: argparse.Namespace) -> int:
    if arguments.queues or arguments.index:
        raise CommandError("--tables goes without --queues and --index; run the command twice")
    with _looking_at(arguments.directory, arguments.directory if arguments.apply else None) as directory:
        from aerobee_broker.tables.rebuilt_tables import rebuild_tables

        report = rebuild_tables(directory, apply=arguments.apply)
    _print_repairs(report, as_json=arguments.json)
    return 0


def _backup(arguments: argparse.Namespace) -> int:
    with _looking_at(arguments.directory, arguments.target) as directory, output.counting_bytes("copying") as progress:
        from aerobee_store.tools.backup import backup

        report = backup(directory, arguments.target, hard_links=arguments.hard_links, progress=progress)
    if arguments.json:
        output.print_json(report.to_json())
    else:
        _print_report(report.to_json(), [])
    return 0


def _given_sizes(arguments: argparse.Namespace) -> GivenSizes:
    from aerobee_store.tools.actions import GivenSizes

    slots, entries = arguments.index_counts
    return GivenSizes(
        queue_file_size=arguments.queue_file_size,
        batch_queue_file_size=arguments.batch_queue_file_size,
        index_slot_count=slots,
        index_entry_count=entries,
    )


def _print_repairs(report: RepairReport | RebuildReport | TablesReport, *, as_json: bool) -> None:
    """The actions, planned or done, and the damage that is left."""
    if as_json:
        output.print_json(report.to_json())
        return
    actions = report.actions
    for action in actions:
        print(action)
    if not actions:
        print("nothing to do")
    elif report.applied:
        print(f"done: {output.counted(len(actions), 'action')}")
    else:
        print(
            f"not done: {output.counted(len(actions), 'action')}; run with --apply to do "
            f"{'it' if len(actions) == 1 else 'them'}"
        )
    for finding in report.left:
        print(f"left: {finding}")


@contextmanager
def _looking_at(directory: Path, changed: Path | None = None) -> Iterator[Path]:
    """Ends the command with its own exit code if the directory cannot be read; `changed` are the files that it
    writes."""
    from aerobee_store.errors import StoreError

    try:
        yield directory
    except BrokenPipeError:
        raise
    except StoreError as error:
        raise CommandError(str(error), exit_code=_CANNOT_LOOK) from error
    except OSError as error:
        reason = f"{error.filename or directory}: {error.strerror or error}"
        if changed is not None and _is_about(Path(error.filename or changed), changed):
            hint = "look at its disk, and run it again" if changed == directory else "name another place"
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                hint = "it takes the right to read and write there"
            raise CommandError(f"cannot change {reason}; {hint}", exit_code=_CANNOT_LOOK) from error
        raise CommandError(
            f"cannot read {reason}; name the directory of a store that you may read", exit_code=_CANNOT_LOOK
        ) from error


def _is_about(path: Path, place: Path) -> bool:
    """Whether a path is the given directory, lies below it, or would lie there."""
    path, place = path.absolute(), place.absolute()
    return path.is_relative_to(place) or place.is_relative_to(path)


def _print_report(report: Mapping[str, Any], findings: Sequence[Finding]) -> None:
    """Print the report of a tool: its values, its tables, its findings."""
    values = {name: value for name, value in report.items() if name != "findings"}
    facts: list[tuple[str, object]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            facts += [(f"{_words(name)}: {_words(key)}", _shown(key, item)) for key, item in value.items()]
        elif not isinstance(value, list):
            facts.append((_words(name), _shown(name, value)))
        elif not any(isinstance(item, dict) for item in value):
            facts.append((_words(name), ", ".join(map(str, value)) or "none"))
    output.print_facts(facts)
    for name, rows in values.items():
        if not isinstance(rows, list) or not rows or not isinstance(rows[0], dict):
            continue
        print(f"\n{_words(name)}")
        columns = list(rows[0])
        output.print_table(
            [_words(column) for column in columns],
            ([_shown(column, row[column]) for column in columns] for row in rows),
            empty="none",
        )
    for finding in findings:
        print(finding)


def _words(name: str) -> str:
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)


def _shown(name: str, value: object) -> object:
    """A value as text, formatted by the last word of its name."""
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        unit = _words(name).split()[-1]
        if unit in ("time", "timestamp"):
            return output.time_text(value) if value > 0 else "-"
        if unit in ("bytes", "size", "total", "available", "used"):
            return f"{value:,} ({output.size_text(value)})" if value >= 1024 else f"{value:,}"
    return value
