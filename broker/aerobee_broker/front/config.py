"""The bounds of the front end."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from aerobee_store.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontConfig:
    """What connections and calls may take of the broker. Sizes in bytes, durations in seconds."""

    connection_count_max: int = 20_000  # a further one is closed at once
    stream_count_max: int = 10_000  # calls of one connection at a time; a further one is refused, and may be repeated
    header_size_max: int = 32 << 10  # of one call, by HTTP/2's rule: names, values and 32 bytes for each
    header_count_max: int = 128
    message_size_max: int = 130 << 20  # RocketMQ's limit; a body above 4 MiB then gets a clear answer
    connection_request_size_max: int = 160 << 20  # of requests of a connection that are incomplete or were not read
    request_size_max: int = 512 << 20  # the same, of all connections
    connection_answer_size_max: int = 64 << 20  # of answers that a connection does not take; then no more calls
    handshake_seconds: float = 20.0  # from the connection to the first frame
    idle_seconds: float = 120.0  # a connection without calls is closed, as RocketMQ does; a Telemetry stream is a call
    keepalive_seconds: float = 60.0  # without a byte, until a connection is asked whether it lives
    keepalive_timeout_seconds: float = 20.0  # so long it may take to answer
    stall_seconds: float = 60.0  # a client that takes almost nothing of its answers, or a call whose request stalls
    cheap_frame_count_max: int = 2_000  # frames that cost us more than their sender: at once ...
    cheap_frame_rate_max: int = 500  # ... and a second

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            if not getattr(self, item.name) > 0:
                raise ConfigError(f"front.{item.name}: {getattr(self, item.name)} is not above 0")
        if self.connection_request_size_max < self.message_size_max:
            raise ConfigError(
                f"front.connection_request_size_max: {self.connection_request_size_max} is below "
                f"front.message_size_max, {self.message_size_max}; a message of that size would never fit"
            )
