"""`aerobee serve`: the broker."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aerobee_broker.commands.console import require_packages
from aerobee_broker.commands.terminal.options import ENDPOINT_DEFAULT, new_command

if TYPE_CHECKING:
    import asyncio

    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_broker.config import Address, BrokerConfig
    from aerobee_broker.listening.listeners import Listening
    from aerobee_store.clock import Clock

_EXAMPLES = """\
  aerobee serve --dev                          for development: topics and groups are created on first use
  aerobee serve --store /var/lib/aerobee       durable: a send is answered once it is on disk
  aerobee serve --listen 0.0.0.0:8081          reachable from other machines
  aerobee serve --listen 127.0.0.1:0           any free port; the line "ready grpc=HOST:PORT ..." names it
  aerobee serve --tls-cert C --tls-key K       with and without TLS on the same address
  aerobee serve --dev --listen-remoting 127.0.0.1:9876     also a name server and broker for RocketMQ 4 clients
  aerobee serve --rocketmq-conf broker.conf    settings and store of a RocketMQ broker

SIGTERM and Ctrl-C stop the broker cleanly, a second one without waiting for clients. Set other settings in a TOML file
(--config) or in the environment (AEROBEE_STORE_DIRECTORY for store.directory). Flags take precedence.
"""


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "serve", "run a broker", run, examples=_EXAMPLES)
    parser.add_argument("--store", metavar="DIR", help="directory of the store (default: data)")
    _add_addresses(parser)
    _add_replication(parser)
    parser.add_argument("--tls-cert", metavar="FILE", help="TLS certificate, PEM (with --dev: made when missing)")
    parser.add_argument("--tls-key", metavar="FILE", help="key of the certificate, PEM")
    parser.add_argument("--tls-client-ca", metavar="FILE", help="require certificates of clients that these sign, PEM")
    parser.add_argument("--accounts", metavar="FILE", help="accounts file in TOML (default: no authentication)")
    parser.add_argument(
        "--metrics", metavar="HOST:PORT", help="address of /metrics and /healthz (default: 127.0.0.1:5557)"
    )
    parser.add_argument("--console", metavar="HOST:PORT", help="serve `aerobee console` there, too (default: no)")
    parser.add_argument(
        "--flush",
        choices=("sync", "async"),
        help="sync: answer a send when it is on disk; async: answer earlier, a power failure may lose the last "
        "0.5 s (default: sync)",
    )
    parser.add_argument(
        "--write-mode",
        choices=("gathered", "mapped", "pool"),
        help="how messages reach the page cache (default: gathered); see docs/operating.md",
    )
    parser.add_argument("--dev", action="store_true", help="create topics and groups on first use")
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="address given to clients (default: the one they connected to)"
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings file, TOML")
    parser.add_argument("--rocketmq-conf", metavar="FILE", type=Path, help="settings file of RocketMQ (broker.conf)")


def _add_addresses(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen", metavar="ADDRESS", help="address for clients, HOST:PORT or unix:PATH (default: 127.0.0.1:8081)"
    )
    parser.add_argument(
        "--listen-tls", metavar="HOST:PORT", help="address for clients that use TLS only (default: none)"
    )
    parser.add_argument(
        "--listen-remoting", metavar="HOST:PORT", help="address for RocketMQ 4 clients and mqadmin (default: none)"
    )
    parser.add_argument(
        "--front", choices=("native", "grpcio"), help="the gRPC server: native HTTP/2 or grpcio (default: native)"
    )
    parser.add_argument(
        "--namesrv", metavar="ADDRESSES", help="name servers to register with, HOST:PORT;HOST:PORT (default: none)"
    )


def _add_replication(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--role",
        choices=("none", "master", "replica"),
        help="replication role (default: none); see docs/replication.md",
    )
    parser.add_argument(
        "--listen-replicas", metavar="HOST:PORT", help="address of a master for its replicas (default: none)"
    )
    parser.add_argument("--master", metavar="HOST:PORT", help="for a replica: the master's remoting address")
    parser.add_argument("--acks", metavar="N", help="replicas that must confirm a message: none, all, or a number")
    parser.add_argument("--etcd", metavar="URLS", help="etcd that keeps the lease of the master (default: no lease)")
    parser.add_argument("--kubernetes-lease", metavar="NAME", help="Lease object of Kubernetes that does so instead")


def run(arguments: argparse.Namespace) -> int:
    import_broker()
    import asyncio

    import uvloop

    config = load_config(arguments)
    if config.listen.console is not None:
        require_packages()
    prepare_process()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(config, asyncio.Event()))


def import_broker() -> None:
    """Import what every broker needs, without garbage collections: they take a sixth of the time, and nothing imported
    becomes garbage."""
    gc.disable()
    try:
        from aerobee_broker import server  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def load_config(arguments: argparse.Namespace, settings: Mapping[str, object] | None = None) -> BrokerConfig:
    """The configuration from the command line, the environment, and the files that they name. `settings` has full
    names."""
    from aerobee_broker.config import BrokerConfig

    flags = {
        "store.directory": arguments.store,
        "store.flush": arguments.flush,
        "store.write_mode": arguments.write_mode,
        "listen.grpc": arguments.listen,
        "listen.tls": arguments.listen_tls,
        "listen.remoting": arguments.listen_remoting,
        "broker.namesrv": arguments.namesrv,
        "listen.front": arguments.front,
        "replication.role": arguments.role,
        "replication.listen": arguments.listen_replicas,
        "replication.master": arguments.master,
        "replication.acks": arguments.acks,
        "replication.etcd": arguments.etcd,
        "replication.kubernetes_lease": arguments.kubernetes_lease,
        "tls.certificate": arguments.tls_cert,
        "tls.key": arguments.tls_key,
        "tls.client_authorities": arguments.tls_client_ca,
        "auth.accounts": arguments.accounts,
        "listen.metrics": arguments.metrics,
        "listen.console": arguments.console,
        "listen.advertise": arguments.advertise,
        "broker.dev": arguments.dev or None,
    }
    return BrokerConfig.load(
        flags={**flags, **(settings or {})},
        environment=os.environ,
        config_file=arguments.config,
        rocketmq_conf=arguments.rocketmq_conf,
    )


def prepare_process() -> None:
    """Configure logging to standard error, the descriptor limit, and the C library's memory allocator."""
    from aerobee_store.malloc import keep_freed_memory

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    _share_descriptors()
    keep_freed_memory()


def _share_descriptors() -> None:
    """Set the soft descriptor limit to half of the hard limit; the usual 1,024 is for programs that call `select`.

    Connections, and queue files while there are few connections, use the descriptors below the soft limit. Only the
    store uses the other half, once the first is exhausted (see DiskFileSystem). A client that opens connections without
    end is refused at some point, but the store can always open its files.
    """
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # a sandbox may forbid it; the lower limit stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard == resource.RLIM_INFINITY else hard // 2, hard))


async def serve(config: BrokerConfig, stop: asyncio.Event, *, clock: Clock | None = None) -> int:
    """Run a broker until `stop` is set or a signal arrives; a second signal ends the wait for clients."""
    import asyncio

    from aerobee_broker import server
    from aerobee_broker.limits.garbage import leave_collections_to_the_loop

    loop, hurry = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)

    def begin_to_stop() -> None:
        if stop.is_set():
            hurry.set()
            for number in signals:  # a third signal ends the process, as a crash does
                loop.remove_signal_handler(number)
        stop.set()

    for number in signals:
        loop.add_signal_handler(number, begin_to_stop)

    address: asyncio.Future[Address] = loop.create_future()

    def serving(listening: Listening, metrics: Address) -> None:
        leave_collections_to_the_loop()
        _announce(config, listening, metrics)
        if not address.done():  # a replica may become the master more than once
            address.set_result(listening.grpc.dialled)

    def following(remoting: Address, metrics: Address) -> None:
        print(f"ready role=replica remoting={remoting} metrics={metrics}", flush=True)

    broker = server.run(config, stop, serving, hurry=hurry, clock=clock, announce_replica=following)
    if config.listen.console is None:
        return await broker
    async with asyncio.TaskGroup() as tasks:
        console = tasks.create_task(_console(config.listen.console, address), name="console")
        try:
            return await broker
        finally:
            console.cancel()


async def _console(listen: Address, broker: asyncio.Future[Address]) -> None:
    """Serve the console once the broker serves clients; of a replica, once it is the master."""
    from aerobee_broker.console.child import keep_console

    await keep_console(["--listen", str(listen), "--endpoint", str(await broker)])


def _announce(config: BrokerConfig, listening: Listening, metrics: Address) -> None:
    """Print the ready line, for which scripts wait, and hints for a person."""
    tls = "" if listening.tls is None else f" tls={listening.tls}"
    remoting = "" if listening.remoting is None else f" remoting={listening.remoting}"
    print(f"ready grpc={listening.grpc} metrics={metrics}{tls}{remoting}", flush=True)
    if sys.stderr.isatty():
        command = "aerobee"
        if shutil.which(command) is None and not sys.argv[0].endswith(".py"):
            command = sys.argv[0]  # as the command was called, so that the lines can be copied
        for name, value in banner(config, listening, metrics, command):
            print(f"{name:<12}{value}", file=sys.stderr)
        heading = "next, in another terminal:"
        for number, line in enumerate(first_steps(config, listening.grpc, command)):
            print(f"{heading if number == 0 else '':{len(heading)}}  {line}", file=sys.stderr)


def banner(config: BrokerConfig, listening: Listening, metrics: Address, command: str) -> list[tuple[str, str]]:
    """What a person at the terminal wants to know of a broker that serves."""
    from aerobee_broker.processors.administration.status import broker_version

    durability = "sync: a message is on disk before its send is acknowledged"
    if config.store.flush == "async":
        durability = "async: a power cut may lose the messages of the last flush interval"
    found = [
        ("aerobee", broker_version() + (", for development: creates topics and groups" if config.dev else "")),
        ("store", str(config.store.directory.absolute())),
        ("durability", durability),
        ("clients", f"{listening.grpc}{'' if listening.tls is None else f', with TLS {listening.tls}'}"),
    ]
    if listening.remoting is not None:
        found.append(("remoting", f"{listening.remoting} (clients of RocketMQ 4)"))
    found += [("metrics", f"http://{metrics}/metrics"), ("console", _console_text(config, listening.grpc, command))]
    return [*found, ("to stop", "Ctrl-C")]


def _console_text(config: BrokerConfig, broker: Address, command: str) -> str:
    """Where a browser finds the console, or how to get one."""
    address = config.listen.console
    if address is None:
        return f"none; start one with: {command} console{_endpoint_option(broker)}"
    if address.port == 0:
        return 'on a free port; the line "ready console=..." will name it'
    return f"http://{address.dialled}/"


def first_steps(config: BrokerConfig, listening: Address, command: str) -> list[str]:
    """Commands that send and receive a first message on a broker with this configuration."""
    options = _endpoint_option(listening)
    if config.auth.accounts is not None:
        options += " --credentials FILE"
    steps = []
    if not config.auto_create_topics:
        steps.append(f"{command} topic create hello{options}")
    if not config.auto_create_groups:
        steps.append(f"{command} group create first{options}")
    return [
        *steps,
        f"{command} send hello 'hello, world'{options}",
        f"{command} receive hello --group first{options}",
    ]


def _endpoint_option(listening: Address) -> str:
    """What a command needs to find this broker; empty if it looks there anyway."""
    endpoint = str(listening.dialled)
    return "" if endpoint == ENDPOINT_DEFAULT else f" --endpoint {endpoint}"
