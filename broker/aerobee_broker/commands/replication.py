"""`aerobee replication` and `aerobee promote`: the state of replication, and the promotion of a replica."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import questions
from aerobee_broker.commands.terminal.options import CommandError, new_command
from aerobee_broker.commands.terminal.peer_options import add_peer_options, peers_of

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_broker.config import Address
    from aerobee_broker.listening.peers import Peers
    from aerobee_broker.remoting_wire.frame import Command

_STATUS_EXAMPLES = """\
  aerobee replication                          of the broker at 127.0.0.1:10911
  aerobee replication --remoting b:10911       of another master or replica, Aerobee's or RocketMQ's
"""
_PROMOTE_EXAMPLES = """\
  aerobee promote --remoting b:10911           the replica at b:10911 becomes the master

Stop the old master first, or disconnect its clients: messages sent to it from now on are not replicated.
"""


def add_parser(commands: Commands) -> None:
    status = new_command(
        commands,
        "replication",
        "show the replicas of a master, or the progress of a replica",
        run,
        examples=_STATUS_EXAMPLES,
    )
    status.add_argument("--json", action="store_true", help="print the answer of the broker as JSON")
    promote = new_command(commands, "promote", "make a replica the master", run_promote, examples=_PROMOTE_EXAMPLES)
    promote.add_argument("--force", action="store_true", help="also a replica that lacks messages or tables")
    questions.add_confirmation(promote, "what the replica has and lacks")
    for parser in (status, promote):
        add_peer_options(parser, "sign with the secret of the cluster (peers.secret_key_file)")
        parser.add_argument(
            "--remoting",
            metavar="HOST:PORT",
            default="127.0.0.1:10911",
            help="the broker's remoting address (default: %(default)s)",
        )
        parser.add_argument("--timeout", metavar="SECONDS", type=float, default=5.0, help="(default: %(default)g)")


def run(arguments: argparse.Namespace) -> int:
    from aerobee_broker.remoting_wire.codes import Request
    from aerobee_broker.remoting_wire.frame import Command

    (answered,) = _ask(arguments, Command(Request.GET_BROKER_HA_STATUS))
    found = json.loads(answered.body)
    print(json.dumps(found, indent=2) if arguments.json else "\n".join(_lines(found)))
    return 0


def run_promote(arguments: argparse.Namespace) -> int:
    from aerobee_broker.remoting_wire.codes import Request
    from aerobee_broker.remoting_wire.frame import Command

    if arguments.dry_run:
        (answered,) = _ask(arguments, Command(Request.GET_BROKER_HA_STATUS))
        print(*_lines(json.loads(answered.body)), sep="\n")
        return 0
    if arguments.force:
        questions.confirm(arguments, f"make {arguments.remoting} the master, and lose what it lacks")
    (epochs,) = _ask(arguments, Command(Request.GET_BROKER_EPOCH_CACHE))
    broker_id = json.loads(epochs.body)["brokerId"]
    fields = {"masterBrokerId": str(broker_id), **({"force": "true"} if arguments.force else {})}
    _ask(arguments, Command(Request.NOTIFY_BROKER_ROLE_CHANGED, fields=fields))
    print(f"{arguments.remoting} is being promoted to master; `aerobee replication` shows its role")
    print("Set its replication.role to master now: a start with role replica makes it a replica again.")
    return 0


def _lines(found: dict[str, object]) -> list[str]:
    return [*_role_lines(found), *_lease_lines(found)]


def _lease_lines(found: dict[str, object]) -> list[str]:
    if "leaseEpoch" not in found:
        return []
    tails = found["divergedTails"]
    in_sync = found["leaseInSync"]
    assert isinstance(tails, list), "the broker lists them"
    assert isinstance(in_sync, list), "likewise"
    left = f", {found['leaseSecondsLeft']} s left here" if found["master"] else ""
    error = f"; no answer: {found['leaseError']}" if found["leaseError"] else ""
    brokers = ", ".join(map(str, in_sync)) or "none"
    return [
        f"lease of broker {found['leaseMaster']}, epoch {found['leaseEpoch']}{left}, brokers in sync {brokers}{error}",
        *(f"  set aside: quarantine/{name}, which the master never had" for name in tails),
    ]


def _role_lines(found: dict[str, object]) -> list[str]:
    end = found["masterCommitLogMaxOffset"]
    if not found["master"]:
        info = found["haClientRuntimeInfo"]
        assert isinstance(info, dict), "checked when it was stored"
        state = "connected" if info.get("connected") else f"not connected: {info.get('lastError') or 'no master yet'}"
        return [
            f"replica of {info.get('masterAddr') or 'no master'}, {state}",
            f"log end {end}, epoch {found.get('epoch', '-')}, {_behind(info)}",
            *_reseeding_lines(info),
            *(
                [f"topics, groups and offsets are missing: {info.get('tablesError') or 'not copied yet'}"]
                if info.get("tablesMissing")
                else []
            ),
        ]
    connections = found["haConnectionInfo"]
    assert isinstance(connections, list), "likewise"
    return [
        f"master, log end {end}, epoch {found.get('epoch', '-')}, replicas in sync {found['inSyncSlaveNums']}",
        *(
            f"  replica {item.get('replicaId', '-')} at {item['addr']}: {item['diff']} bytes behind, "
            f"{'in sync' if item['inSync'] else 'not in sync'}{'' if item.get('counts', True) else ', does not count'}"
            for item in connections
        ),
    ]


def _reseeding_lines(info: dict[str, object]) -> list[str]:
    if not info.get("reseeding"):
        return []
    end = f"its end {info['reseedOffset']}" if "reseedOffset" in info else "waiting for the master"
    return [f"the master has removed what follows this log: a new copy of its whole log is made, {end}"]


def _behind(info: dict[str, object]) -> str:
    if "lag" in info:
        return f"{info['lag']} bytes behind"
    known = f"; it lacked {info['lacking']} when it last heard of the master" if "lacking" in info else ""
    return f"bytes behind unknown{known}"


def _ask(arguments: argparse.Namespace, *requests: Command) -> list[Command]:
    import asyncio

    from aerobee_broker.config import Address
    from aerobee_broker.listening.peers import Peers

    try:
        address = Address.parse(arguments.remoting)
    except ValueError as error:
        raise CommandError(
            f"--remoting: {arguments.remoting!r} is not an address: {error}, such as 127.0.0.1:10911"
        ) from None
    peers = Peers.load(peers_of(arguments))
    return asyncio.run(_ask_all(address, requests, arguments.timeout, peers))


async def _ask_all(address: Address, requests: tuple[Command, ...], seconds: float, peers: Peers) -> list[Command]:
    import asyncio

    from aerobee_broker.remoting_wire.connection import Connection, PeerGoneError, RemotingServer

    async def refuse(_request: Command, _connection: Connection) -> None:
        return None

    answers = []
    outgoing = RemotingServer(refuse, identity=peers)
    try:
        async with asyncio.timeout(seconds):
            connection = await outgoing.connect(address)
            for request in requests:
                answers.append(await connection.ask(request, seconds))
            connection.close()
    except (OSError, TimeoutError, PeerGoneError) as error:
        raise CommandError(
            f"no answer from {address}: {error or 'timeout'}; is it a broker's remoting address?"
        ) from None
    for answered in answers:
        if answered.code:
            raise CommandError(f"{address} refused the request: code {answered.code}: {answered.remark}")
    return answers
