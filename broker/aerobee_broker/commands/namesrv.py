"""`aerobee namesrv`: a name server for brokers of RocketMQ and of Aerobee."""

from __future__ import annotations

import argparse
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal.options import new_command

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_broker.config import Address
    from aerobee_broker.remoting_wire.signature import PeerKey

_EXAMPLES = """\
  aerobee namesrv                                     on 127.0.0.1:9876
  aerobee namesrv --listen 0.0.0.0:9876 --store /var/lib/aerobee-namesrv
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
    parser.add_argument(
        "--secret-key-file",
        metavar="FILE",
        type=Path,
        help="the secret of the cluster: only brokers that sign with it may register, and operators change routes",
    )
    parser.add_argument(
        "--access-key", metavar="NAME", default="aerobee", help="the name of that secret (default: %(default)s)"
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
    from aerobee_broker.config.peers import PeersConfig
    from aerobee_broker.remoting_wire.signature import PeerKey
    from aerobee_store.errors import ConfigError

    try:
        address = Address.parse(arguments.listen)
    except ValueError as error:
        raise ConfigError(
            f"--listen: {arguments.listen!r} is not an address: {error}, such as 127.0.0.1:9876"
        ) from None
    peers = PeerKey.load(PeersConfig(access_key=arguments.access_key, secret_key_file=arguments.secret_key_file))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(address, arguments.store, peers))


async def _serve(address: Address, directory: Path, peers: PeerKey | None) -> int:
    import asyncio

    from aerobee_broker.limits.garbage import leave_collections_to_the_loop
    from aerobee_broker.namesrv import server
    from aerobee_broker.remoting.permissions import check_cluster

    if peers is None and not address.is_loopback:
        logging.getLogger(__name__).warning(
            "listening on %s without --secret-key-file: anyone who can reach it may register brokers and change routes",
            address,
        )

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    def serving(bound: Address) -> None:
        leave_collections_to_the_loop()
        print(f"ready remoting={bound}", flush=True)

    return await server.run(
        address,
        directory,
        stop,
        serving,
        check=lambda request: check_cluster(request, peers),
    )
