"""`aerobee console`: pages for people, in a process of its own."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import options
from aerobee_broker.commands.terminal.options import CommandError, new_command

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_broker.config import Address
    from aerobee_broker.console.settings import ConsoleSettings

LISTEN_DEFAULT = "127.0.0.1:8090"
_TIMEOUT_SECONDS = 10.0  # the history of a message may take seconds
_EXAMPLES = """\
  aerobee console                                      of the broker on 127.0.0.1:8081, on http://127.0.0.1:8090/
  aerobee console --endpoint broker.example:8081 --tls-ca ca.pem
  aerobee console --read-only                          for a screen that everybody sees
  aerobee console --url https://ops.example/aerobee    behind a proxy that serves this address
  aerobee serve --console 127.0.0.1:8090               a broker with its console

People sign in with the accounts of the broker; a broker without accounts needs no login. docs/console.md explains all.
"""


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "console", "serve pages about a broker to browsers", run, examples=_EXAMPLES)
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default=LISTEN_DEFAULT, help="address for browsers (default: %(default)s)"
    )
    parser.add_argument(
        "--url", metavar="URL", default="", help="the address that browsers use, if a proxy or a name is between"
    )
    parser.add_argument("--read-only", action="store_true", help="change nothing, whoever signs in")
    parser.add_argument("--https-cert", metavar="FILE", type=Path, help="serve HTTPS with this certificate, PEM")
    parser.add_argument("--https-key", metavar="FILE", type=Path, help="its key, PEM")
    options.add_endpoint_alone(parser)
    options.add_tls(parser)
    options.add_timeout(parser, _TIMEOUT_SECONDS)
    # How `aerobee serve --console` ties the console to its own life.
    parser.add_argument("--until-input-ends", action="store_true", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    require_packages()
    import asyncio

    import uvloop

    from aerobee_broker.config import Address
    from aerobee_broker.console.settings import ConsoleError, ConsoleSettings

    try:
        address = Address.parse(arguments.listen)
    except ValueError as error:
        raise CommandError(
            f"--listen: {arguments.listen!r} is not an address: {error}, such as {LISTEN_DEFAULT}"
        ) from None
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = ConsoleSettings(
            endpoint=arguments.endpoint,
            tls=options.tls_of(arguments),
            timeout_seconds=arguments.timeout,
            url=arguments.url,
            read_only=arguments.read_only,
            certificate=arguments.https_cert,
            key=arguments.https_key,
        )
        if not address.is_loopback and not settings.is_https:
            logging.getLogger(__name__).warning(
                "listening on %s without HTTPS: secret keys that people type cross the network readably; "
                "give --https-cert and --https-key, or --url with https:// behind a proxy that has them",
                address,
            )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, address, until_input_ends=arguments.until_input_ends))
    except ConsoleError as error:
        raise CommandError(str(error)) from None
    return 0


def require_packages() -> None:
    """CommandError if the packages of the extra `console` are not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("starlette", "jinja2", "uvicorn") if find_spec(name) is None]
    if missing:
        raise CommandError(f"the console needs {', '.join(missing)}; install them with: pip install '.[console]'")


async def _serve(settings: ConsoleSettings, address: Address, *, until_input_ends: bool) -> None:
    import asyncio

    from aerobee_broker.console import run as console

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_input_ends:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    await console.serve(
        settings, address.host, address.port, stop, lambda url: print(f"ready console={url}", flush=True)
    )
