"""The bounds of the front end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from aerobee_store.config import Positive, Seconds, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontConfig(Section):
    """What connections and calls may take of the broker. Sizes in bytes, durations in seconds."""

    section: ClassVar[str] = "front"

    connection_count_max: Positive = 20_000  # a further one is closed at once
    stream_count_max: Positive = 10_000  # calls of one connection at a time; a further one is refused
    header_size_max: Positive = 32 << 10  # of one call, by HTTP/2's rule: names, values and 32 bytes for each
    header_count_max: Positive = 128
    connection_request_size_max: Positive = 64 << 20  # of a connection's requests that are incomplete or unread
    request_size_max: Positive = 256 << 20  # the same, of all connections
    connection_answer_size_max: Positive = 64 << 20  # of answers that a connection does not take; then no more calls
    handshake_seconds: Seconds = 20.0  # from the connection to the first frame
    idle_seconds: Seconds = 120.0  # a connection without calls is closed, as in RocketMQ; a Telemetry stream is a call
    keepalive_seconds: Seconds = 60.0  # without a byte, until a connection is asked whether it lives
    keepalive_timeout_seconds: Seconds = 20.0  # so long it may take to answer
    stall_seconds: Seconds = 60.0  # a client that takes almost nothing of its answers, or a call whose request stalls
    cheap_frame_count_max: Positive = 2_000  # frames that cost us more than their sender at once; a second: a quarter
