"""Heartbeats and terminations."""

from __future__ import annotations

from typing import Final

from aerobee_broker.clients.naming import group_name
from aerobee_broker.clients.registry import Client, ClientRegistry
from aerobee_proto import v2

_OK: Final = v2.Status(code=v2.Code.OK, message="OK")
_FIRST_CONSUMER_TYPE: Final = v2.ClientType.PUSH_CONSUMER


class HeartbeatProcessor:
    """The call itself proves that the client is alive; it also registers clients whose settings are unknown."""

    def __init__(self, clients: ClientRegistry) -> None:
        self._clients = clients

    def heartbeat(self, request: v2.HeartbeatRequest, client: Client) -> v2.HeartbeatResponse:
        if request.client_type >= _FIRST_CONSUMER_TYPE or request.group.name.strip():
            client.group = group_name(request.group, client)
        if request.client_type:
            client.client_type = request.client_type
        return v2.HeartbeatResponse(status=_OK)

    def terminate(
        self, request: v2.NotifyClientTerminationRequest, client: Client
    ) -> v2.NotifyClientTerminationResponse:
        if request.group.name.strip():  # Go's producers send an empty one
            group_name(request.group, client)
        self._clients.terminate(client.client_id)
        return v2.NotifyClientTerminationResponse(status=_OK)
