"""Connected clients: their settings, when they were last seen, and their Telemetry streams.

Every call proves that a client is alive. A client that terminates, or is silent for two minutes, is removed:
`gone_listeners` are called with its id, its Telemetry stream ends, and its state is dropped. A client is served with or
without settings: after a restart the official ones do not resend them for up to five minutes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Final

from aerobee_broker.clients.accounts import Account
from aerobee_broker.errors import ClientNotConnectedError, ClientSilentError, TooManyRequestsError
from aerobee_broker.limits.ledger import Holdings, Ledger
from aerobee_broker.recent import Recent
from aerobee_proto import v2
from aerobee_store.clock import Clock, every

COMMAND_SECONDS: Final = 5.0  # the time for a client to answer a command; RocketMQ's
EXPIRY_SECONDS: Final = 120.0  # RocketMQ's; the official clients send a heartbeat every 10 s (Rust: 30 s)
_SCAN_SECONDS: Final = 5.0
_PENDING_COMMANDS_MAX: Final = 64  # one official client stops reading its stream permanently: the oldest are dropped
_FIRST_CONSUMER_TYPE: Final = v2.ClientType.PUSH_CONSUMER  # unspecified 0, producer 1; all others consume
_CLIENTS_MAX: Final = 100_000  # invented ids must not fill the memory
_CLIENT_SIZE: Final = 1_000  # bytes of memory of a client without its settings


SETTINGS_BYTES_MAX: Final = 64 << 20  # bytes of the settings of all clients, as received


class TelemetryStream:
    """The open Telemetry call of a client: a bounded queue of commands. Writing never waits.

    Commands wait as bytes: as messages, large settings take four times as much.
    """

    __slots__ = ("_closed", "_commands", "_holdings", "_wake", "failure")

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._commands: list[tuple[bool, bytes]] = []  # whether it is settings, and the encoded command
        self._wake = asyncio.Event()
        self._closed = False
        self.failure: str | None = None  # the client's error, for the status that ends the stream

    @property
    def backlog(self) -> int:
        """Commands that were not sent yet."""
        return len(self._commands)

    def write(self, command: v2.TelemetryCommand) -> None:
        """Queue a command; of more than 64 that the client has not read, the oldest is dropped. Settings replace those
        that were not sent yet: each is as large as the client's own."""
        is_settings, data = command.HasField("settings"), command.SerializeToString()
        if is_settings and (earlier := next((kept for kept in self._commands if kept[0]), None)) is not None:
            self._commands.remove(earlier)
            self._holdings.add("commands", -len(earlier[1]))
        if len(self._commands) >= _PENDING_COMMANDS_MAX:
            self._holdings.add("commands", -len(self._commands.pop(0)[1]))
        self._commands.append((is_settings, data))
        self._holdings.add("commands", len(data))
        self._wake.set()

    def drop_commands(self) -> None:
        """Forget the commands that were not sent yet."""
        self._holdings.add("commands", -sum(len(data) for _, data in self._commands))
        self._commands.clear()

    def close(self) -> None:
        """End the stream after the queued commands."""
        self._closed = True
        self._wake.set()

    async def next(self) -> bytes | None:
        """The next command to send, encoded; None at the end of the stream."""
        while not self._commands:
            if self._closed:
                return None
            self._wake.clear()
            await self._wake.wait()
        _, data = self._commands.pop(0)
        self._holdings.add("commands", -len(data))
        return data


class Client:
    """One client id. `namespace`, `language` and `version` are from the headers of its calls."""

    __slots__ = (
        "account",
        "client_id",
        "client_type",
        "connection",
        "group",
        "language",
        "last_seen",
        "namespace",
        "peer",
        "secure",
        "settings_at",
        "settings_data",
        "stream",
        "topics",
        "version",
    )

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.account: Account | None = None  # the account of its calls; None without authentication
        self.namespace = ""
        self.language = ""
        self.version = ""
        self.connection = ""  # its name
        self.peer: tuple[str, int] = ("127.0.0.1", 0)  # address of the connection: IP address and port
        self.secure = False  # whether the connection uses TLS
        self.last_seen = 0.0  # of the monotonic clock
        self.client_type: v2.ClientType.ValueType = v2.ClientType.CLIENT_TYPE_UNSPECIFIED
        self.group: str | None = None  # stored name (with the namespace) of a consumer's group
        self.topics: frozenset[str] = frozenset()  # stored names of a producer's topics
        self.settings_data = b""  # as received: a quarter of the memory of the message, or less
        self.settings_at = 0.0  # on the monotonic clock: when they were last used
        self.stream: TelemetryStream | None = None

    @property
    def settings(self) -> v2.Settings | None:
        """The client's settings; None if it sent none, or they were dropped."""
        return v2.Settings.FromString(self.settings_data) if self.settings_data else None

    @property
    def is_consumer(self) -> bool:
        return self.client_type >= _FIRST_CONSUMER_TYPE

    def command(self, command: v2.TelemetryCommand) -> bool:
        """Send a command over the client's Telemetry stream; False if it has none."""
        if self.stream is None:
            return False
        self.stream.write(command)
        return True


class ClientRegistry:
    """All connected clients, by id."""

    name: Final = "clients"

    def __init__(self, clock: Clock, *, expiry_seconds: float = EXPIRY_SECONDS, ledger: Ledger | None = None) -> None:
        self._clock = clock
        self._holdings = (ledger or Ledger()).open_table("clients", self._shrink)
        # The latest call last.
        self._clients: Recent[str, Client] = Recent(_CLIENTS_MAX, lambda _, client: self._gone(client))
        self.settings_bytes = 0  # of all clients
        self._streams: set[TelemetryStream] = set()  # includes clients that terminated but have not disconnected yet
        self._expiry_seconds = expiry_seconds
        self._nonces = itertools.count(1)
        self._asked: dict[tuple[str, str], asyncio.Future[v2.TelemetryCommand]] = {}  # by client id and nonce
        self.gone_listeners: list[Callable[[str], None]] = []
        self.producer_listeners: list[Callable[[Client], None]] = []  # called when a client has sent its settings

    def __len__(self) -> int:
        return len(self._clients)

    def seen(self, client_id: str) -> Client:
        """The client of a call that arrived now; a new one if the id is unknown."""
        client = self._clients.get(client_id)
        if client is None:
            client = self._clients[client_id] = Client(client_id)
            self._holdings.add("clients", _CLIENT_SIZE)
        else:
            self._clients.move_to_end(client_id)
        client.last_seen = self._clock.monotonic()
        return client

    def __contains__(self, client_id: object) -> bool:
        """Whether a client of this id is connected, or was until just now."""
        return client_id in self._clients

    def get(self, client_id: str) -> Client | None:
        return self._clients.get(client_id)

    def all(self) -> list[Client]:
        return list(self._clients.values())

    def of_group(self, group: str) -> list[Client]:
        """The connected consumers of a group, by its stored name."""
        return [client for client in self._clients.values() if client.group == group]

    def producers_of(self, topic: str) -> list[Client]:
        """The connected producers that listed a topic, by its stored name."""
        return [client for client in self._clients.values() if topic in client.topics]

    def remember(self, client: Client, settings: v2.Settings) -> None:
        """Store the settings of a client, replacing earlier ones.

        The limit for all clients is 64 MiB. Beyond it, clients without a Telemetry stream lose their settings: they
        have left, and are served without settings too. TooManyRequestsError if all have a stream.
        """
        data = settings.SerializeToString()
        self.settings_bytes -= len(client.settings_data)
        client.settings_data = b""
        if self.settings_bytes + len(data) > SETTINGS_BYTES_MAX:
            for other in self._clients.values():
                if other.stream is None:
                    self._forget_settings(other)
        if self.settings_bytes + len(data) > SETTINGS_BYTES_MAX:
            raise TooManyRequestsError(
                f"the settings of all clients take {self.settings_bytes} bytes; the limit leaves no space for "
                f"{len(data)} "
                "more; subscribe to fewer topics, or try again later"
            )
        client.settings_data = data
        self.settings_bytes += len(data)
        self._holdings.set("settings", self.settings_bytes)

    def _forget_settings(self, client: Client) -> None:
        self.settings_bytes -= len(client.settings_data)
        client.settings_data = b""
        client.topics = frozenset()
        self._holdings.set("settings", self.settings_bytes)

    def _shrink(self) -> None:
        """Forget the clients without a Telemetry stream that were silent for the longest time, an eighth of all."""
        silent = [client for client in self._clients.values() if client.stream is None]
        for client in silent[: max(1, len(self._clients) // 8)]:
            self._remove(client)
        if self._holdings.size_of("commands") > self._holdings.size // 2:
            for stream in self._streams:
                stream.drop_commands()

    def introduced(self, client: Client) -> None:
        """Note that the client has sent its settings."""
        client.settings_at = self._clock.monotonic()
        if client.client_type == v2.ClientType.PRODUCER:
            for listener in self.producer_listeners:
                listener(client)

    def reconnect(self, client: Client) -> bool:
        """Ask the client to reopen its Telemetry stream and resend its settings; False if it has none."""
        command = v2.ReconnectEndpointsCommand(nonce=str(next(self._nonces)))
        return client.command(v2.TelemetryCommand(reconnect_endpoints_command=command))

    def notify_unsubscribe_lite(self, client_id: str, lite_topic: str) -> None:
        """Notify a connected client that a lite topic to which it has subscribed is deleted."""
        if (client := self._clients.get(client_id)) is not None:
            command = v2.NotifyUnsubscribeLiteCommand(lite_topic=lite_topic)
            client.command(v2.TelemetryCommand(notify_unsubscribe_lite_command=command))

    async def print_stacks(self, client: Client, *, seconds: float = COMMAND_SECONDS) -> v2.TelemetryCommand:
        """The thread stacks of the client: the answer has a status and `thread_stack_trace`. Raises like `ask`."""
        return await self.ask(
            client, print_thread_stack_trace_command=v2.PrintThreadStackTraceCommand(), seconds=seconds
        )

    async def verify_message(
        self, client: Client, message: v2.Message, *, seconds: float = COMMAND_SECONDS
    ) -> v2.TelemetryCommand:
        """Let a push consumer's listener consume a message; the answer's status is the result. See `ask`."""
        command = v2.VerifyMessageCommand(message=message)
        return await self.ask(client, verify_message_command=command, seconds=seconds)

    async def ask(
        self,
        client: Client,
        *,
        print_thread_stack_trace_command: v2.PrintThreadStackTraceCommand | None = None,
        verify_message_command: v2.VerifyMessageCommand | None = None,
        seconds: float,
    ) -> v2.TelemetryCommand:
        """Send a command with a new nonce, and return the answer with the same nonce.

        One official client ignores both commands, and one stops reading, so callers must not rely on an answer. Raises
        ClientNotConnectedError without a Telemetry stream, or when it ends; ClientSilentError after the timeout.
        """
        nonce = str(next(self._nonces))
        command = v2.TelemetryCommand(
            print_thread_stack_trace_command=print_thread_stack_trace_command,
            verify_message_command=verify_message_command,
        )
        getattr(command, command.WhichOneof("command") or "").nonce = nonce
        if not client.command(command):
            raise ClientNotConnectedError(client.client_id)
        key = (client.client_id, nonce)
        answer: asyncio.Future[v2.TelemetryCommand] = asyncio.get_running_loop().create_future()
        self._asked[key] = answer
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise ClientSilentError(client.client_id, seconds) from None
        finally:
            del self._asked[key]

    def answered(self, client: Client, command: v2.TelemetryCommand) -> None:
        """Take a command other than settings from the client; an answer without a waiting caller is ignored.

        Node's client answers in the field of the command instead of the result.
        """
        field = command.WhichOneof("command")
        nonce = getattr(getattr(command, field), "nonce", "") if field is not None else ""
        asked = self._asked.get((client.client_id, nonce))
        if asked is not None and not asked.done():
            asked.set_result(command)

    def open_stream(self, client: Client) -> TelemetryStream:
        """Open a new Telemetry stream of the client, and end an older one."""
        if client.stream is not None:
            client.stream.close()
        client.stream = TelemetryStream(self._holdings)
        self._streams.add(client.stream)
        return client.stream

    def close_stream(self, client: Client, stream: TelemetryStream) -> None:
        """Forget `stream`, whose call has ended; a newer stream of the client stays."""
        stream.close()
        stream.drop_commands()
        self._streams.discard(stream)
        if client.stream is stream:
            client.stream = None
            self._give_up(client)

    def hang_up(self, wanted: Callable[[Client], bool]) -> None:
        """End the Telemetry streams of the clients for which `wanted` is false."""
        for client in self._clients.values():
            if client.stream is not None and not wanted(client):
                client.stream.close()

    def close_streams(self) -> None:
        """End all Telemetry streams, because the broker stops."""
        for stream in self._streams:
            stream.close()

    def terminate(self, client_id: str) -> None:
        """Remove a client that terminates. Unknown ids are ignored.

        The client ends its Telemetry stream next. If the broker ended the stream first, Node's client would treat this
        as a failure and open another one, which keeps its process alive forever.
        """
        if client := self._clients.get(client_id):
            client.stream = None
            self._remove(client)

    def disconnect(self, client: Client) -> None:
        """Remove a client that an operator sends away: its stream and its waiting calls end."""
        self._remove(client)

    def expire(self) -> None:
        """Remove the clients that were silent for too long."""
        limit = self._clock.monotonic() - self._expiry_seconds
        for client in [client for client in self._clients.values() if client.last_seen < limit]:
            self._remove(client)

    def idle_seconds(self, client: Client) -> float:
        """Seconds since the last call of the client."""
        return self._clock.monotonic() - client.last_seen

    async def run(self) -> None:
        """Remove silent clients, until cancelled."""
        await every(_SCAN_SECONDS, self.expire)

    def _remove(self, client: Client) -> None:
        del self._clients[client.client_id]
        self._gone(client)

    def _gone(self, client: Client) -> None:
        """Undo what belongs to a client that was removed."""
        self._holdings.add("clients", -_CLIENT_SIZE)
        self._forget_settings(client)
        self._give_up(client)
        if client.stream is not None:
            client.stream.close()
            client.stream = None
        for listener in self.gone_listeners:
            listener(client.client_id)

    def _give_up(self, client: Client) -> None:
        """Fail all commands that wait for an answer of the client."""
        for (client_id, _), answer in self._asked.items():
            if client_id == client.client_id and not answer.done():
                answer.set_exception(ClientNotConnectedError(client_id))
