"""`aerobee namesrv`: a name server for brokers of RocketMQ and of Aerobee."""

from __future__ import annotations

import argparse
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal.options import new_command
from aerobee_broker.commands.terminal.peer_options import add_peer_options, peers_of

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_broker.config import Address
    from aerobee_broker.listening.peers import Peers
    from aerobee_broker.metrics.name_server_metrics import NameServerEndpoint

_EXAMPLES = """\
  aerobee namesrv                                     on 127.0.0.1:9876
  aerobee namesrv --listen 0.0.0.0:9876 --secret-key-file S --certificate C --key K --authorities A
  aerobee serve --listen-remoting 127.0.0.1:10911 --namesrv "127.0.0.1:9876;127.0.0.1:9877"   register a broker

A single broker needs no name server: `aerobee serve --listen-remoting` answers for itself. SIGTERM and Ctrl-C
stop the name server.
"""


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands, "namesrv", "run a name server for RocketMQ's older protocol", run, examples=_EXAMPLES
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default="127.0.0.1:9876", help="for brokers and clients (default: %(default)s)"
    )
    add_peer_options(
        parser, "the secret of the cluster: only brokers that sign with it may register, and operators change routes"
    )
    parser.add_argument(
        "--addresses",
        metavar="ADDRESSES",
        default="",
        help="private addresses of RocketMQ's brokers, which sign and use no TLS, as 10.0.0.7;10.0.0.8",
    )
    parser.add_argument(
        "--private-network",
        action="store_true",
        help="only trusted machines reach --listen, so neither secret nor certificate is needed there",
    )
    parser.add_argument(
        "--metrics", metavar="HOST:PORT", help="address of /metrics, /healthz and /readyz (default: none)"
    )
    parser.add_argument(
        "--store",
        metavar="DIR",
        default="namesrv",
        type=Path,
        help="directory for routes and values (default: namesrv)",
    )


def run(arguments: argparse.Namespace) -> int:
    import asyncio

    import uvloop

    from aerobee_broker.config import Address
    from aerobee_broker.listening.peers import Peers
    from aerobee_store.errors import ConfigError

    addresses: dict[str, Address | None] = {}
    for option, text, example in (("--listen", arguments.listen, 9876), ("--metrics", arguments.metrics, 5558)):
        try:
            addresses[option] = Address.parse(text) if text else None
        except ValueError as error:
            raise ConfigError(f"{option}: {text!r} is not an address: {error}, such as 127.0.0.1:{example}") from None
    address = addresses["--listen"]
    if address is None:
        raise ConfigError("--listen: missing; give the address for brokers and clients, such as 127.0.0.1:9876")
    config = peers_of(
        arguments,
        addresses=tuple(filter(None, arguments.addresses.split(";"))),
        private_network=arguments.private_network,
    )
    if not address.is_loopback:
        config.check_reach(f"brokers that register at {address}")
    peers = Peers.load(config)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(address, addresses["--metrics"], arguments.store, peers))


async def _serve(address: Address, metrics: Address | None, directory: Path, peers: Peers) -> int:
    import asyncio

    from aerobee_broker.limits.garbage import leave_collections_to_the_loop
    from aerobee_broker.namesrv import server
    from aerobee_broker.remoting.permissions import check_cluster

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    endpoint: NameServerEndpoint | None = None

    def serving(bound: Address, parts: server.NameServerParts) -> None:
        nonlocal endpoint
        shown = ""
        if metrics is not None:
            from aerobee_broker.metrics.name_server_metrics import NameServerEndpoint

            endpoint = NameServerEndpoint(metrics, bound, parts)
            shown = f" metrics={endpoint.start()}"
        leave_collections_to_the_loop()
        print(f"ready remoting={bound}{shown}", flush=True)

    try:
        return await server.run(
            address,
            directory,
            stop,
            serving,
            check=lambda request, connection: check_cluster(request, connection, peers),
            identity=peers,
        )
    finally:
        if endpoint is not None:
            await endpoint.stop()
