"""`aerobee status`: a running broker at a glance."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aerobee_broker.commands import options, output
from aerobee_broker.commands.options import new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.options import Commands
    from aerobee_client import Client
    from aerobee_proto import admin_v1

_EXAMPLES = """\
  aerobee status
  aerobee status --endpoint broker.example:8081 --json | jq .store.diskUsedBytes
"""
_DETAILS = "Exit code 0 if the broker takes messages, else 1. Rates are those of the last minute."


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands, "status", "show what a running broker does", run, details=_DETAILS, examples=_EXAMPLES
    )
    options.add_endpoint(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
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
    state = broker.store_state
    takes = "yes" if state.writable else f"no: {state.reason}"
    figures = broker.statistics
    disk = store.disk_used_bytes / max(store.disk_total_bytes, 1)
    oldest = "none"
    if store.HasField("oldest_timestamp"):
        oldest = output.age_text(store.oldest_timestamp.ToMilliseconds()) + " ago"
    output.print_facts(
        [
            ("broker", f"{broker.name} of {broker.cluster}, Aerobee {broker.version}"),
            ("up for", output.span_text(broker.uptime.ToMilliseconds())),
            ("listens on", ", ".join(broker.listen_addresses)),
            ("takes messages", takes),
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
            ("store", store.directory),
            ("oldest message", oldest),
            ("log", f"{output.size_text(store.max_physical_offset - store.min_physical_offset)}"),
            ("disk", f"{disk:.0%} used of {output.size_text(store.disk_total_bytes)}"),
            ("syncs", f"{store.fsync_count:,}, the last in {store.last_fsync_seconds * 1000:.2f} ms"),
            ("damage", f"{store.damaged_range_count} ranges, {store.checksum_failures} failed checksums"),
        ]
    )
    return exit_code
