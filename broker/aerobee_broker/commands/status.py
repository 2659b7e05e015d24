"""`aerobee status`: an overview of a running broker."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import options, output
from aerobee_broker.commands.terminal.options import new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_client import Client
    from aerobee_proto import admin_v1

_EXAMPLES = """\
  aerobee status
  aerobee status --endpoint broker.example:8081 --json | jq .store.diskUsedBytes
  aerobee status --traffic hour --max 20               the busiest topics and groups
  aerobee status --brokers                             all brokers that the name servers know
"""
_TRAFFIC_MAX = 1000  # the broker's limit
_DETAILS = "Exit code 0 if the broker takes messages, else 1. Rates are averages over the last minute."


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands, "status", "show the state and traffic of a running broker", run, details=_DETAILS, examples=_EXAMPLES
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--brokers", action="store_true", help="show the brokers of the name servers instead")
    instead.add_argument(
        "--traffic", choices=("minute", "hour", "day"), help="show recent traffic instead, busiest first"
    )
    parser.add_argument("--topic", default="", help="with --traffic: only this topic")
    parser.add_argument(
        "--max", metavar="N", type=options.count, default=100, help="with --traffic: at most N (default: 100)"
    )
    options.add_endpoint(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.traffic is not None:
        return _traffic(arguments)
    if arguments.brokers:
        return _brokers(arguments)

    async def work(client: Client) -> tuple[admin_v1.GetBrokerStatusResponse, admin_v1.GetStoreStatusResponse]:
        return await client.admin.broker_status(), await client.admin.store_status()

    broker, store = with_client(arguments, work)
    exit_code = 0 if broker.store_state.writable else 1
    if arguments.json:
        answer = {"broker": output.protobuf_json(broker), "store": output.protobuf_json(store)}
        for part in answer.values():
            del part["status"]
        output.print_json(answer)
        return exit_code
    _print_status(broker, store)
    return exit_code


def _print_status(broker: admin_v1.GetBrokerStatusResponse, store: admin_v1.GetStoreStatusResponse) -> None:
    output.print_facts([*_broker_facts(broker), *_store_facts(store)])


def _broker_facts(broker: admin_v1.GetBrokerStatusResponse) -> list[tuple[str, object]]:
    state, figures = broker.store_state, broker.statistics
    return [
        ("broker", f"{broker.name} of {broker.cluster}, Aerobee {broker.version}"),
        ("up for", output.span_text(broker.uptime.ToMilliseconds())),
        ("listens on", ", ".join(broker.listen_addresses)),
        ("takes messages", "yes" if state.writable else f"no: {state.reason}"),
        ("durability", _durability(broker)),
        *replication_facts(broker),
        ("topics, groups", f"{broker.topic_count:,}, {broker.group_count:,}"),
        ("clients", f"{figures.producers:,} producers, {figures.consumers:,} consumers"),
        ("in", f"{figures.messages_in_rate:,.1f}/s, {figures.messages_in:,} since the start"),
        ("out", f"{figures.messages_out_rate:,.1f}/s, {figures.messages_out:,} since the start"),
        ("acknowledged", figures.acknowledged),
        ("redelivered", figures.redelivered),
        ("dead letters", figures.dead_letters),
        ("waiting receives", figures.waiting_receives),
        ("delayed messages", figures.delayed),
        ("undecided transactions", figures.undecided),
    ]


def _store_facts(store: admin_v1.GetStoreStatusResponse) -> list[tuple[str, object]]:
    oldest = "none"
    if store.HasField("oldest_timestamp"):
        oldest = output.age_text(store.oldest_timestamp.ToMilliseconds()) + " ago"
    return [
        ("store", store.directory),
        ("oldest message", oldest),
        ("log", f"{output.size_text(store.max_physical_offset - store.min_physical_offset)}"),
        ("disk", _used(store.disk_used_bytes, store.disk_total_bytes)),
        *(
            (
                "disk of the log",
                f"{each.path}: {_used(each.used_bytes, each.total_bytes)}",
            )
            for each in store.log_disks
            if Path(each.path) != Path(store.directory) / "commitlog"
        ),
        ("syncs", f"{store.fsync_count:,}, the last in {store.last_fsync_seconds * 1000:.2f} ms"),
        (
            "damage",
            f"{output.counted(store.damaged_range_count, 'range')}, "
            f"{output.counted(store.checksum_failures, 'failed checksum')}",
        ),
    ]


def _used(used: int, total: int) -> str:
    return f"{used / max(total, 1):.0%} used of {output.size_text(total)}"


def _durability(broker: admin_v1.GetBrokerStatusResponse) -> str:
    from aerobee_proto import admin_v1

    if broker.flush_mode == admin_v1.FlushMode.FLUSH_MODE_SYNC:
        return "sync: a message is on disk before its send is acknowledged"
    return "async: a power cut may lose the messages of the last flush interval"


def replication_facts(broker: admin_v1.GetBrokerStatusResponse) -> list[tuple[str, str]]:
    """Nothing for a broker without replication."""
    if not broker.HasField("replication"):
        return []
    found = broker.replication
    facts = [("role", f"master, epoch {found.epoch}")]
    if found.HasField("lease"):
        lease = found.lease
        text = f"of broker {lease.holder}, {output.span_text(lease.left.ToMilliseconds())} left"
        facts.append(("lease", f"{text}; not renewed: {lease.error}" if lease.error else text))
        facts.append(("brokers in sync", ", ".join(map(str, lease.in_sync))))
    for replica in found.replicas:
        state = "in sync" if replica.in_sync else "not in sync"
        if not replica.counts:
            state += ", does not count"
        behind = output.size_text(replica.lag_bytes)
        facts.append((f"replica {replica.id}", f"at {replica.address}: {behind} behind, {state}"))
    if not found.replicas:
        facts.append(("replicas", "none connected"))
    return facts


def _brokers(arguments: argparse.Namespace) -> int:
    from aerobee_broker.console import words

    found = with_client(arguments, lambda client: client.admin.brokers())
    if arguments.json:
        answer = output.protobuf_json(found)
        del answer["status"]
        output.print_json(answer)
        return 0
    output.print_table(
        ("broker", "cluster", "clients", "older protocol, by id"),
        (
            (
                f"{each.name} (this one)" if each.is_this else each.name,
                each.cluster,
                each.grpc_address or "-",
                words.addresses(each) or "-",
            )
            for each in found.brokers
        ),
        empty="no broker is registered: this one has no name server",
    )
    if found.error:
        print(f"brokers may be missing, as no name server answers: {found.error}", file=sys.stderr)
    return 0


def _traffic(arguments: argparse.Namespace) -> int:
    found = with_client(
        arguments,
        lambda client: client.admin.traffic(
            arguments.traffic, topic=arguments.topic, count=min(arguments.max, _TRAFFIC_MAX)
        ),
    )
    if arguments.json:
        answer = output.protobuf_json(found)
        del answer["status"]
        output.print_json(answer)
        return 0
    print(f"the last {output.span_text(found.window.ToMilliseconds())}")
    output.print_table(
        ("topic", "messages in", "a second", "size", "answered in"),
        (
            (
                *(sent.topic, sent.messages, sent.messages_rate, output.size_text(sent.bytes)),
                f"{sent.latency.ToMicroseconds() / 1000:.2f} ms",
            )
            for sent in found.topics
        ),
        empty="nothing was sent",
        least=("answered in", "size"),
    )
    output.print_table(
        ("topic", "group", "messages out", "a second", "size", "waited", "acknowledged", "dead letters"),
        (
            (
                *(got.topic, got.group, got.messages, got.messages_rate, output.size_text(got.bytes)),
                output.span_text(got.latency.ToMilliseconds()),
                *(got.acknowledged, got.dead_letters),
            )
            for got in found.groups
        ),
        empty="nothing was delivered",
        least=("dead letters", "waited", "size", "a second"),
    )
    return 0
