"""What a command proves to brokers and name servers: the secret and a certificate of the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from aerobee_broker.config.peers import PeersConfig


def add_peer_options(parser: argparse.ArgumentParser, secret: str) -> None:
    """The options of the section `peers`. `secret`: the help of the secret."""
    parser.add_argument("--secret-key-file", metavar="FILE", type=Path, help=secret)
    parser.add_argument(
        "--access-key", metavar="NAME", default="aerobee", help="the name of that secret (default: %(default)s)"
    )
    parser.add_argument(
        "--certificate",
        metavar="FILE",
        type=Path,
        help="use TLS with brokers, with this certificate of the cluster, PEM",
    )
    parser.add_argument("--key", metavar="FILE", type=Path, help="key of the certificate, PEM")
    parser.add_argument(
        "--authorities", metavar="FILE", type=Path, help="authorities that sign the certificates of the cluster, PEM"
    )


def peers_of(arguments: argparse.Namespace, **others: Any) -> PeersConfig:
    """The section `peers` that the options give. Raises ConfigError."""
    from aerobee_broker.config.peers import PeersConfig

    return PeersConfig(
        access_key=arguments.access_key,
        secret_key_file=arguments.secret_key_file,
        certificate=arguments.certificate,
        key=arguments.key,
        authorities=arguments.authorities,
        **others,
    )
