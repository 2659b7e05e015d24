"""The settings of the section `listen`: the addresses of the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from aerobee_broker.config.address import Address
from aerobee_store.config import SecondsOrZero, Section

_GRPC: Final = Address("127.0.0.1", 8081)
_METRICS: Final = Address("127.0.0.1", 5557)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConfig(Section):
    """The addresses of the broker."""

    section: ClassVar[str] = "listen"

    grpc: Address = _GRPC  # plaintext, and also TLS if there is a certificate; or a Unix socket
    unix_mode: str = "600"  # permissions of a Unix socket, as for chmod
    tls: Address | None = None  # TLS only; None: not used
    remoting: Address | None = None  # for RocketMQ 4 clients and mqadmin; None: not used
    front: Literal["native", "grpcio"] = "native"  # the gRPC server: native HTTP/2 or grpcio's server
    metrics: Address = _METRICS  # /metrics, /healthz, /readyz; the port of RocketMQ's exporter
    console: Address | None = None  # pages for browsers, by a process beside the broker; None: none
    advertise: Address | None = None  # the address given to clients; None: the one they connected to
    advertise_remoting: Address | None = None  # the address given to name servers; None: the listening address
    advertise_tls: Address | None = None  # as `advertise`, for clients that connected with TLS
    # how long a stop goes on serving clients that may still have the broker in their routes, if other brokers can serve
    # them; with drain_seconds less than the ten seconds after which Docker kills. Clients refresh routes every 30 s
    leave_seconds: SecondsOrZero = 4.0
    drain_seconds: SecondsOrZero = 5.0  # how long a stop then waits for running calls
