"""The audit: successful changes by `mqadmin` and the dashboard are noted among the operations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Request
from aerobee_broker.remoting_wire.connection import Connection, Handler
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.operations import Operations

CHANGES: Final = frozenset(
    (
        *(Request.UPDATE_AND_CREATE_TOPIC, Request.UPDATE_AND_CREATE_TOPIC_LIST, Request.DELETE_TOPIC_IN_BROKER),
        *(Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP_LIST),
        *(Request.DELETE_SUBSCRIPTION_GROUP, Request.INVOKE_BROKER_TO_RESET_OFFSET, Request.UPDATE_BROKER_CONFIG),
        *(Request.SET_MESSAGE_REQUEST_MODE, Request.CONSUME_MESSAGE_DIRECTLY),
        *(Request.PUT_KV_CONFIG, Request.DELETE_KV_CONFIG, Request.DELETE_TOPIC_IN_NAME_SERVER),
        *(Request.WIPE_WRITE_PERMISSION_OF_BROKER, Request.ADD_WRITE_PERMISSION_OF_BROKER),
    )
)
"""The requests that change something for an operator, by code."""
_PRIVATE: Final = frozenset(("AccessKey", "Signature", "SecurityToken"))
_BODY_SHOWN: Final = 500  # bytes


def audited(handlers: Mapping[int, Handler], operations: Operations) -> dict[int, Handler]:
    """Those of the handlers that change something; a request that succeeds is noted."""
    return {code: _audited(handler, operations) for code, handler in handlers.items() if code in CHANGES}


def _audited(handler: Handler, operations: Operations) -> Handler:
    async def handle(request: Command, connection: Connection) -> Command | None:
        answered = await handler(request, connection)
        operations.note(Request(request.code).name, request.access_key, str(Address(*connection.peer)), _text(request))
        return answered

    return handle


def _text(request: Command) -> str:
    fields = (f"{name}: {json.dumps(value)}" for name, value in request.fields.items() if name not in _PRIVATE)
    body = bytes(request.body[:_BODY_SHOWN]).decode("utf-8", "replace").split()
    return " ".join((*fields, *body))
