"""The audit: successful changes by operators over gRPC are noted among the operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import Message
from google.protobuf.text_format import MessageToString

from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Address
from aerobee_broker.services.rpc import UnaryCall
from aerobee_broker.tables.operations import Operations

_TOLD_SIZE_MAX: Final = 8192  # bytes
_NOT_TOLD: Final = (
    "body",
    "user_properties",
    "system_properties",
    "edit",
)  # of AdminSendMessage: the content of messages is private


def audited(calls: Mapping[str, UnaryCall], operations: Operations) -> dict[str, UnaryCall]:
    """The same calls; successful ones are noted with the account, the address and the request."""
    return {method: _audited(method, call, operations) for method, call in calls.items()}


def _audited(method: str, call: UnaryCall, operations: Operations) -> UnaryCall:
    async def handle(request: Any, client: Client) -> Message | bytes:
        response = await call(request, client)
        if not getattr(request, "dry_run", False):
            account = "" if client.account is None else client.account.access_key
            operations.note(method, account, str(Address(*client.peer)), _text(request))
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
    return MessageToString(told, as_one_line=True)
