"""The bounds of the front end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from aerobee_store.config import Positive, Seconds, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontConfig(Section):
    """Limits for connections and calls. Sizes in bytes, durations in seconds."""

    section: ClassVar[str] = "front"

    # further connections are closed at once; idle ones in plaintext, 5.3 KB each, fit into limits.waiting_bytes_max
    connection_count_max: Positive = 18_000
    stream_count_max: Positive = 10_000  # concurrent calls of one connection; further calls are refused
    call_count_max: Positive = 30_000  # concurrent calls of all connections; further calls are refused
    # headers of one call, counted as in HTTP/2: names, values and 32 bytes for each
    header_size_max: Positive = 32 << 10
    header_count_max: Positive = 128
    connection_request_size_max: Positive = 32 << 20  # incomplete or unread requests of a connection
    connection_answer_size_max: Positive = 32 << 20  # unread answers of a connection; beyond it new calls are refused
    handshake_count_max: Positive = 500  # TLS handshakes at a time, 55 KiB each; beyond it the oldest ends
    handshake_seconds: Seconds = 20.0  # from the connection to the first frame
    # a connection without calls is closed after this time, as in RocketMQ; a Telemetry stream is a call
    idle_seconds: Seconds = 120.0
    keepalive_seconds: Seconds = 60.0  # silence after which a PING is sent
    keepalive_timeout_seconds: Seconds = 20.0  # the time to answer the PING
    # for a client that reads almost nothing of its answers, or a request that stops arriving
    stall_seconds: Seconds = 60.0
    # frames that cost the broker more than their sender: the burst; a quarter of it is the rate per second
    cheap_frame_count_max: Positive = 2_000
