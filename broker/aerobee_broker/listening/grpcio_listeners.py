"""grpcio's server on the configured addresses (`listen.front = "grpcio"`): its options and its TLS.

Imported only with that front, because grpcio takes 10 MB and a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import grpc

from aerobee_broker.config import Address, BrokerConfig
from aerobee_broker.errors import ListenError
from aerobee_broker.front.grpcio_front import GrpcioServer
from aerobee_broker.front.methods import Methods
from aerobee_broker.listening.certificate_files import CertificateContents, CertificateFiles
from aerobee_broker.listening.listeners import Listening, make_certificate

_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    # Clients choose their ping interval: C++ pings every 60 s without calls.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # RocketMQ's limit: a connection without calls is closed after two minutes. A Telemetry stream is a call.
    ("grpc.max_connection_idle_ms", 120_000),
    # The time for a new connection to speak HTTP/2 (or TLS); grpcio's default is 120 s.
    ("grpc.server_handshake_timeout_ms", 20_000),
    # A client that vanished keeps its streams no longer than this.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # gRPC cancels calls at random when more than 1,000 begin at once, as when thousands of clients reconnect.
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
    # Otherwise a second broker on the same port would take half of the connections instead of failing.
    ("grpc.so_reuseport", 0),
)


def listen_grpcio(methods: Methods, config: BrokerConfig, *, request_size_max: int) -> tuple[GrpcioServer, Listening]:
    """A server bound to the configured addresses; it serves when it is started.

    Raises ListenError, and ConfigError for an unusable certificate.
    """
    server = GrpcioServer(
        methods,
        (
            *_OPTIONS,
            ("grpc.max_receive_message_length", request_size_max),
            ("grpc.max_concurrent_streams", config.front.stream_count_max),
            ("grpc.max_metadata_size", config.front.header_size_max),
        ),
        has_client_certificates=config.tls.client_authorities is not None,
    )
    tls = None
    if config.listen.tls is not None:
        address, credentials = config.listen.tls, _tls_credentials(config)
        tls = _bound("listen.tls", address, lambda: server.server.add_secure_port(str(address), credentials))
    plain = config.listen.grpc
    return server, Listening(_bound("listen.grpc", plain, lambda: server.server.add_insecure_port(str(plain))), tls)


def _tls_credentials(config: BrokerConfig) -> grpc.ServerCredentials:
    if config.tls.certificate is None or config.tls.key is None:
        issued = make_certificate(config)
        authorities = config.tls.client_authorities
        trusted = None if authorities is None else authorities.read_bytes()  # check_certificate could load it
        return grpc.ssl_server_credentials([(issued.key, issued.certificate)], trusted, trusted is not None)
    files = CertificateFiles(config.tls.certificate, config.tls.key, config.tls.client_authorities)

    def changed() -> grpc.ServerCertificateConfiguration | None:
        found = files.load_if_changed()
        return None if found is None else _configuration(found)

    # None from the second function means no change, as documented; its stub does not say so.
    return grpc.dynamic_ssl_server_credentials(
        _configuration(files.load()),
        changed,  # type: ignore[arg-type]
        require_client_authentication=config.tls.client_authorities is not None,
    )


def _configuration(found: CertificateContents) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(found.key, found.certificate)], found.authorities)


def _bound(setting: str, address: Address, bind: Callable[[], int]) -> Address:
    try:
        return Address(address.host, bind())
    except RuntimeError as error:
        raise ListenError(setting, address, str(error).partition(";")[0]) from None
