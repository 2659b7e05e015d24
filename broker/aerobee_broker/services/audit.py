"""The audit log: one line for each successful change by an operator."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import Message
from google.protobuf.text_format import MessageToString

from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Address
from aerobee_broker.services.rpc import UnaryCall
from aerobee_broker.tables.operations import Operations
from aerobee_store.clock import Clock

_log = logging.getLogger(__name__)
_log.setLevel(logging.INFO)  # independent of the level that an operator sets for other loggers
_TOLD_SIZE_MAX: Final = 8192  # bytes
_REQUEST_SIZE_MAX: Final = 500  # characters
_NOT_TOLD: Final = (
    "body",
    "user_properties",
    "system_properties",
    "edit",
)  # of AdminSendMessage: the content of messages is private


def audited(calls: Mapping[str, UnaryCall], operations: Operations, clock: Clock) -> dict[str, UnaryCall]:
    """The same calls; successful ones are logged and noted with the account, the address and the request."""
    return {method: _audited(method, call, operations, clock) for method, call in calls.items()}


def _audited(method: str, call: UnaryCall, operations: Operations, clock: Clock) -> UnaryCall:
    async def handle(request: Any, client: Client) -> Message | bytes:
        response = await call(request, client)
        if not getattr(request, "dry_run", False):
            account = "" if client.account is None else client.account.access_key
            address, text = str(Address(*client.peer)), _text(request)
            _log.info("operator method=%s account=%s address=%s request=%r", *(method, account or "-", address, text))
            operations.note(clock.now_ms(), method, account, address, text)
        return response

    return handle


def _text(request: Message) -> str:
    if (size := request.ByteSize()) > _TOLD_SIZE_MAX:  # formatting all of it would take a tenth of a second
        return f"{size} bytes"
    told = type(request)()
    told.CopyFrom(request)
    for name in _NOT_TOLD:
        if name in told.DESCRIPTOR.fields_by_name:
            told.ClearField(name)
    text = MessageToString(told, as_one_line=True)
    return text if len(text) <= _REQUEST_SIZE_MAX else f"{text[:_REQUEST_SIZE_MAX]}..."
