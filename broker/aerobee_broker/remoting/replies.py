"""Request-reply: the reply goes back to the waiting client, and is stored as well."""

from __future__ import annotations

from typing import Final

from aerobee_broker.remoting.clients import RemotingClients
from aerobee_broker.remoting.send import LONG_NAMES, SHORT_NAMES, SendRequests
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection, PeerGoneError
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.fields import text
from aerobee_broker.remoting_wire.frame import Command
from aerobee_store.clock import Clock
from aerobee_store.records import properties as p

_REPLY_TO: Final = "REPLY_TO_CLIENT"
_PUSH_TIME: Final = "PUSH_REPLY_TIME"
_PUSH_SECONDS: Final = 10.0
_PUSHED: Final = (
    *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag"),
    *("bornTimestamp", "flag", "reconsumeTimes", "unitMode"),
)


class ReplyRequests:
    """Answers SEND_REPLY_MESSAGE and SEND_REPLY_MESSAGE_V2."""

    def __init__(self, clients: RemotingClients, send: SendRequests, clock: Clock) -> None:
        self._clients = clients
        self._send = send
        self._clock = clock

    async def reply(self, request: Command, connection: Connection) -> Command:
        """The form with long field names."""
        return await self._reply(request, connection, short=False)

    async def reply_v2(self, request: Command, connection: Connection) -> Command:
        """The form with short field names."""
        return await self._reply(request, connection, short=True)

    async def _reply(self, request: Command, connection: Connection, *, short: bool) -> Command:
        """Push the reply to the waiting client, then store it in any case. The answer tells whether the client has
        received it."""
        failure = await self._push(request, connection, short=short)
        stored = await (self._send.send_v2 if short else self._send.send)(request, connection)
        if failure and stored.code == Answer.SUCCESS:
            raise RemotingError(Answer.SYSTEM_ERROR, f"{failure}; the reply is stored")
        return stored

    async def _push(self, request: Command, connection: Connection, *, short: bool) -> str:
        """The reason why the waiting client has not received it; empty if it has."""
        names = SHORT_NAMES if short else LONG_NAMES
        encoded = text(request, names["properties"], "")
        properties = p.decode_properties(encoded.encode("utf-8", "replace"))
        client_id = properties.get(_REPLY_TO, "")
        found = self._clients.find_producer(client_id)
        if found is None:
            return f"client {client_id[:80]!r}, which waits for this reply, is not connected"
        now_ms = self._clock.now_ms()
        properties[_PUSH_TIME] = str(now_ms)
        fields = {long: request.fields.get(names[long], "") for long in _PUSHED}
        fields = {long: value for long, value in fields.items() if value}
        fields["properties"] = p.encode_properties(properties).decode()
        fields["bornHost"] = f"{connection.peer[0]}:{connection.peer[1]}"
        fields["storeHost"] = str(connection.local)
        fields["storeTimestamp"] = str(now_ms)
        push = Command(Request.PUSH_REPLY_MESSAGE_TO_CLIENT, fields=fields, body=request.body)
        try:
            answered = await found.connection.ask(push, _PUSH_SECONDS)
        except (TimeoutError, PeerGoneError):
            return f"client {client_id[:80]!r}, which waits for this reply, has not read it"
        return "" if answered.code == Answer.SUCCESS else f"client {client_id[:80]!r} refused it: {answered.remark}"
