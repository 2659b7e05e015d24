"""`aerobee spark`: jobs on stores and topics that run on Spark, here or on a cluster."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerobee_broker.commands.terminal import options, output
from aerobee_broker.commands.terminal.options import CommandError, new_command

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_pipeline.jobs import JobResult

_SAMPLE = 1000
"""Bodies for a schema."""
_EXAMPLES = """\
  aerobee spark audit --store data                             every record, queue and index, in parallel
  aerobee spark audit --store a=/stores/a --store b=/stores/b    of several brokers
  aerobee spark rebuild --store data --output rebuilt          queues and index from the log
  aerobee spark export --store data --topic orders --output archive --checkpoint archive.state
  aerobee spark table orders --to delta --endpoint 127.0.0.1:8081 --warehouse /lake --once
  aerobee spark replay --archive archive --topic orders --target again --job-id 2026-01-31
  aerobee spark stats --endpoint 127.0.0.1:8081 --topic orders --by key
"""


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands, "spark", "run Spark jobs: audit, rebuild, export, table, replay, stats, lag", examples=_EXAMPLES
    )
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_audit(actions)
    _add_rebuild(actions)
    _add_export(actions)
    _add_table(actions)
    _add_replay(actions)
    _add_stats(actions)
    _add_lag(actions)


def _add_audit(actions: Commands) -> None:
    audit = new_command(
        actions,
        "audit",
        "check logs, queues and indexes (read-only)",
        _audit,
        details="Exit code 0: no errors, 1: errors, 2: the store could not be read.",
        examples="  aerobee spark audit --store data\n  aerobee spark audit --store data --no-index --json",
    )
    _add_log_reading(audit)
    _add_job(audit)


def _add_rebuild(actions: Commands) -> None:
    rebuild = new_command(
        actions,
        "rebuild",
        "rebuild queues and indexes from logs in a new directory",
        _rebuild,
        details="To use the files, stop the broker and move them into its store.",
        examples="  aerobee spark rebuild --store data --output rebuilt",
    )
    _add_log_reading(rebuild)
    rebuild.add_argument(
        "--output",
        metavar="DIR",
        type=options.output_directory,
        required=True,
        help="new directory that all workers reach",
    )
    rebuild.add_argument(
        "--queue-file-size", metavar="BYTES", type=options.count, help="size of the queue files, if no file shows it"
    )
    rebuild.add_argument("--step-over-damage", action="store_true", help="skip damaged records")
    _add_job(rebuild)


def _add_export(actions: Commands) -> None:
    export = new_command(
        actions,
        "export",
        "write topics to Parquet, by topic and date",
        _export,
        examples="  aerobee spark export --store data --topic orders --output archive --checkpoint archive.state",
    )
    _add_source(export)
    export.add_argument(
        "--output",
        metavar="PATH",
        type=options.output_directory,
        required=True,
        help="target as Spark names it: a directory, s3a://...",
    )
    export.add_argument("--checkpoint", metavar="PATH", help="write only messages since the last run with this path")
    export.add_argument(
        "--on-bad-body",
        choices=("fail", "null"),
        default="fail",
        help="a body that cannot be decompressed: an error, or null with its reason in the column decodeError",
    )
    _add_job(export)


def _add_table(actions: Commands) -> None:
    table = new_command(
        actions,
        "table",
        "keep a topic as a table: each message once",
        _table,
        details="Progress is in the table's own commits. Without --once it goes on until it is interrupted. "
        "Two writers conflict: the later one ends and has added nothing.",
        examples="  aerobee spark table orders --to delta --endpoint 127.0.0.1:8081 --warehouse /lake --once\n"
        "  aerobee spark table orders --endpoint 127.0.0.1:8081 --infer > orders.json    a JSON Schema of bodies\n"
        "  aerobee spark table orders --to iceberg --warehouse s3://lake/topics --catalog https://catalog:8181 "
        "--schema orders.json",
    )
    table.add_argument("topic", metavar="TOPIC")
    table.add_argument("--to", choices=("delta", "iceberg"), help="format of the table")
    table.add_argument(
        "--warehouse", metavar="PLACE", help="directory or s3://BUCKET/PREFIX; the table is in PLACE/TOPIC"
    )
    table.add_argument(
        "--catalog",
        metavar="URI",
        help="of Iceberg: REST (https://...) or a database (default: sqlite:////PLACE/catalog.db)",
    )
    table.add_argument(
        "--schema",
        metavar="FILE",
        type=Path,
        help="of the bodies: JSON Schema (*.json), Avro (*.avsc) or a descriptor set of Protobuf (*.desc, *.binpb)",
    )
    table.add_argument("--message", metavar="NAME", help="message in the descriptor set, such as shop.v1.Order")
    table.add_argument("--no-body", action="store_true", help="only the columns of the schema, not the body itself")
    table.add_argument("--infer", action="store_true", help="print a JSON Schema of the last 1000 bodies, and end")
    table.add_argument("--once", action="store_true", help="add what the topic has now, and end")
    table.add_argument(
        "--every", metavar="SECONDS", type=options.count, default=60, help="look for messages so often (default: 60)"
    )
    table.add_argument(
        "--rows", metavar="COUNT", type=options.count, default=1_000_000, help="messages per commit (default: 1000000)"
    )
    table.add_argument("--keep-days", metavar="DAYS", type=options.count, help="delete older days (default: keep all)")
    table.add_argument(
        "--version-days",
        metavar="DAYS",
        type=options.count,
        default=5,
        help="how long old versions of the table can be read (default: 5)",
    )
    table.add_argument("--no-housekeeping", action="store_true", help="join no small files, delete nothing")
    table.add_argument("--skip-lost", action="store_true", help="go on with a warning if messages are gone")
    _add_stores(table, required=False)
    options.add_endpoint(table)
    _add_job(table)


def _add_replay(actions: Commands) -> None:
    replay = new_command(
        actions,
        "replay",
        "resend the messages of an export",
        _replay,
        examples="  aerobee spark replay --archive archive --topic orders --target again --job-id 2026-01-31",
    )
    options.add_endpoint(replay)
    replay.add_argument("--archive", metavar="PATH", required=True, help="output of `export`, or warehouse of `table`")
    replay.add_argument("--topic", required=True, help="topic of the archive")
    replay.add_argument("--target", metavar="TOPIC", help="target topic (default: the same topic)")
    replay.add_argument("--begin", metavar="TIME", help="stored at or after this time, such as 2026-01-31T12:00")
    replay.add_argument("--end", metavar="TIME", help="stored before this time")
    replay.add_argument("--any-queue", action="store_true", help="let the broker choose the queues")
    replay.add_argument(
        "--job-id", metavar="ID", required=True, help="id of the replay; repeating it sends the same message ids"
    )
    replay.add_argument("--rate", metavar="COUNT", type=options.count, help="maximum messages per second")
    replay.add_argument(
        "--format", default="parquet", help="parquet: an export; delta, iceberg: a warehouse of `aerobee spark table`"
    )
    _add_job(replay)


def _add_stats(actions: Commands) -> None:
    stats = new_command(
        actions,
        "stats",
        "count messages by queue, topic, tag, key or hour",
        _stats,
        examples="  aerobee spark stats --store data --topic orders --by hour",
    )
    _add_source(stats)
    stats.add_argument("--by", default="queue", choices=("queue", "topic", "tag", "key", "hour"))
    stats.add_argument(
        "--top", metavar="COUNT", type=options.count, default=100, help="number of rows by tag or key (default: 100)"
    )
    _add_job(stats)


def _add_lag(actions: Commands) -> None:
    lag = new_command(
        actions,
        "lag",
        "show the lag of groups, from the files of stores",
        _lag,
        examples="  aerobee spark lag --store data",
    )
    _add_stores(lag, required=True)
    _add_job(lag)


def _add_job(job: argparse.ArgumentParser) -> None:
    """The options of every job."""
    options.add_json(job)
    job.add_argument("--master", metavar="URL", help="URL of a Spark cluster (default: this machine, all cores)")
    job.add_argument(
        "--conf",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a setting of Spark; repeat it for several",
    )


def _add_log_reading(job: argparse.ArgumentParser) -> None:
    """The options of a job that reads logs and compares or rebuilds the derived files."""
    _add_stores(job, required=True)
    job.add_argument("--no-queues", action="store_true", help="skip the consume queues")
    job.add_argument("--no-index", action="store_true", help="skip the index")
    job.add_argument("--split-bytes", metavar="BYTES", type=options.count, default=128 << 20, help="size of a task")
    job.add_argument(
        "--index-counts",
        metavar=("SLOTS", "ENTRIES"),
        nargs=2,
        type=options.count,
        help="counts of the index files (maxHashSlotNum, maxIndexNum), if the files do not show them",
    )


def _add_stores(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "--store",
        metavar="[NAME=]DIR",
        action="append",
        default=[],
        required=required,
        help="store of a broker; repeat with names for several brokers",
    )


def _add_source(parser: argparse.ArgumentParser) -> None:
    _add_stores(parser, required=False)
    options.add_endpoint(parser)
    parser.add_argument("--topic", action="append", default=[], help="topic; may be repeated (default: all topics)")


def _stores(arguments: argparse.Namespace) -> dict[str, str]:
    stores: dict[str, str] = {}
    for text in arguments.store:
        name, separator, directory = text.partition("=")
        if not separator:
            name, directory = "", text
        if name in stores:
            options.usage_error(f"--store: give each store its own name, such as broker-b={directory}")
        stores[name] = directory
    return stores


def _source(arguments: argparse.Namespace) -> dict[str, str]:
    found = _place(arguments)
    if arguments.topic:
        return {**found, "subscribe": ",".join(arguments.topic)}
    return {**found, "subscribePattern": ".*"}


def _place(arguments: argparse.Namespace) -> dict[str, str]:
    """The stores or the broker to read."""
    import json

    stores = _stores(arguments)
    return {"storePath": json.dumps(stores)} if stores else _connection(arguments)


def _connection(arguments: argparse.Namespace) -> dict[str, str]:
    found = {"endpoint": arguments.endpoint}
    if arguments.access_key or arguments.secret_key:
        options.usage_error("--access-key: Spark's workers read credentials from a file; give --credentials")
    if arguments.tls_cert is not None:
        options.usage_error("--tls-cert: Spark jobs have no client certificates; give --credentials")
    if arguments.credentials is not None:
        found["credentialsFile"] = str(arguments.credentials)
    if arguments.tls or arguments.tls_ca is not None:
        found["tlsCa"] = str(arguments.tls_ca or "")
    return found


def _session(arguments: argparse.Namespace) -> Any:
    from aerobee_pipeline import local_session

    settings = {"spark.ui.showConsoleProgress": "true" if sys.stderr.isatty() else "false"}
    for text in arguments.conf:
        name, separator, value = text.partition("=")
        if not separator or not name:
            options.usage_error(f"--conf {text}: give it as NAME=VALUE, such as spark.executor.memory=2g")
        settings[name] = value
    session = local_session("aerobee", master=arguments.master, settings=settings)
    session.sparkContext.setLogLevel("ERROR")
    return session


def _run(arguments: argparse.Namespace, job: Any) -> int:
    """Run a job in a session and print its result."""
    from aerobee_pipeline.errors import OptionError, PipelineError

    try:
        session = _session(arguments)
    except PipelineError as error:
        raise CommandError(str(error), exit_code=2) from error
    try:
        result = job(session)
    except OptionError as error:
        raise CommandError(str(error), exit_code=2) from error
    except Exception as error:
        raise CommandError(_cause(error), exit_code=2) from error
    finally:
        session.stop()
    return _print(arguments, result)


def _jobs() -> Any:
    """The jobs, imported once Spark is known to be available."""
    from aerobee_pipeline import jobs

    return jobs


def _cause(error: Exception) -> str:
    """The message of a pipeline error that a worker returned as text with its traceback."""
    lines = [line for line in str(error).splitlines() if line.startswith("aerobee_pipeline.errors.")]
    return lines[-1].partition(": ")[2] if lines else str(error)


def _print(arguments: argparse.Namespace, result: JobResult) -> int:
    if arguments.json:
        output.print_json(_plain(result.to_json()))
    else:
        output.print_table(result.columns, result.rows, empty="nothing found")
        output.print_facts(result.facts.items())
    return result.exit_status


def _plain(value: Any) -> Any:
    """A value in JSON's types."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _audit(arguments: argparse.Namespace) -> int:
    return _run(
        arguments,
        lambda session: _jobs().audit(
            session,
            _stores(arguments),
            split_bytes=arguments.split_bytes,
            queues=not arguments.no_queues,
            index=not arguments.no_index,
            index_counts=tuple(arguments.index_counts) if arguments.index_counts else None,
        ),
    )


def _rebuild(arguments: argparse.Namespace) -> int:
    return _run(
        arguments,
        lambda session: _jobs().rebuild(
            session,
            _stores(arguments),
            arguments.output,
            queues=not arguments.no_queues,
            index=not arguments.no_index,
            queue_file_size=arguments.queue_file_size,
            index_counts=tuple(arguments.index_counts) if arguments.index_counts else None,
            split_bytes=arguments.split_bytes,
            fail_on_data_loss=not arguments.step_over_damage,
        ),
    )


def _export(arguments: argparse.Namespace) -> int:
    return _run(
        arguments,
        lambda session: _jobs().export(
            session,
            {**_source(arguments), "onBadBody": arguments.on_bad_body},
            arguments.output,
            checkpoint=arguments.checkpoint,
        ),
    )


def _table(arguments: argparse.Namespace) -> int:
    place = {**_place(arguments), "failOnDataLoss": str(not arguments.skip_lost).lower()}
    if arguments.infer:
        return _inferred(place, arguments.topic)
    if arguments.to is None or arguments.warehouse is None:
        options.usage_error("give --to and --warehouse, or --infer for a schema")
    from aerobee_pipeline.errors import PipelineError

    try:
        table = _table_options(arguments)
    except PipelineError as error:
        raise CommandError(str(error), exit_code=2) from error
    every = None if arguments.once else float(arguments.every)
    return _run(
        arguments, lambda session: _jobs().keep_table(session, place, arguments.topic, table, every_seconds=every)
    )


def _table_options(arguments: argparse.Namespace) -> Any:
    from aerobee_pipeline.tables.bodies import BodySchema

    jobs = _jobs()
    schema = None
    if arguments.schema is not None:
        try:
            content = arguments.schema.read_bytes()
        except OSError as error:
            raise CommandError(f"--schema {arguments.schema}: {error.strerror}", exit_code=2) from error
        schema = BodySchema.of(arguments.schema.name, content, arguments.message)
    elif arguments.message is not None:
        options.usage_error("--message: it is the name of a message in a descriptor set; give --schema, too")
    house = jobs.Housekeeping(keep_days=arguments.keep_days, version_days=arguments.version_days)
    return jobs.TableOptions(
        to=arguments.to,
        warehouse=arguments.warehouse,
        catalog=arguments.catalog,
        body_schema=schema,
        keep_body=not arguments.no_body,
        rows_per_commit=arguments.rows,
        housekeeping=None if arguments.no_housekeeping else house,
    )


def _inferred(place: dict[str, str], topic: str) -> int:
    """Print a JSON Schema of the last bodies. No Spark starts for it."""
    from aerobee_pipeline.errors import PipelineError
    from aerobee_pipeline.tables.json_bodies import inferred

    try:
        schema = inferred(_jobs().sample(place, topic, _SAMPLE))
    except PipelineError as error:
        raise CommandError(str(error), exit_code=2) from error
    output.print_json(schema)
    return 0


def _replay(arguments: argparse.Namespace) -> int:
    return _run(
        arguments,
        lambda session: _jobs().replay(
            session,
            arguments.archive,
            _connection(arguments),
            topic=arguments.topic,
            target=arguments.target,
            begin=arguments.begin,
            end=arguments.end,
            keep_queues=not arguments.any_queue,
            job_id=arguments.job_id,
            messages_per_second=arguments.rate,
            file_format=arguments.format,
        ),
    )


def _stats(arguments: argparse.Namespace) -> int:
    return _run(
        arguments, lambda session: _jobs().statistics(session, _source(arguments), by=arguments.by, top=arguments.top)
    )


def _lag(arguments: argparse.Namespace) -> int:
    from aerobee_pipeline.errors import OptionError

    try:
        return _print(arguments, _jobs().lag(_stores(arguments)))
    except OptionError as error:
        raise CommandError(str(error), exit_code=2) from error
