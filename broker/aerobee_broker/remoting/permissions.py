"""Permissions of remoting requests, if the broker has accounts: the signature, and the permission for each code.

A client signs the values of all fields except the signature, in the order of their names, followed by the body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aerobee_broker.clients.accounts import Account, Accounts
from aerobee_broker.errors import UnauthorizedError
from aerobee_broker.namesrv.registrar import TEMPLATE_TOPIC
from aerobee_broker.remoting_wire.codes import Request
from aerobee_broker.remoting_wire.fields import body_object, integer, member, objects, text
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.topics import RETRY_PREFIX
from aerobee_store import CorruptRecordError, MessageStore, RecordNotFoundError
from aerobee_store.records import properties as p

_SIGNATURE: Final = "Signature"
_ACCESS_KEY: Final = "AccessKey"
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_LAST_UNSIGNED_VERSION: Final = 399  # clients up to this version add _UNIQUE_KEY_QUERY after signing

Permit = Callable[[Account, Command], None]


class Permissions:
    """Checks requests. `accounts` None: no authentication."""

    def __init__(self, accounts: Accounts | None, store: MessageStore) -> None:
        self._accounts = accounts
        self._store = store
        self._permits: dict[int, Permit] = {
            **dict.fromkeys((Request.SEND_MESSAGE, Request.SEND_REPLY_MESSAGE), _publish("topic")),
            **dict.fromkeys(
                (Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE, Request.SEND_REPLY_MESSAGE_V2), _publish("b")
            ),
            **dict.fromkeys((Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE), _consume),
            **dict.fromkeys(
                (
                    Request.POP_MESSAGE,
                    Request.PEEK_MESSAGE,
                    Request.NOTIFICATION,
                    Request.ACK_MESSAGE,
                    Request.CHANGE_MESSAGE_INVISIBLE_TIME,
                ),
                _consume,
            ),
            Request.BATCH_ACK_MESSAGE: _batch,
            Request.QUERY_ASSIGNMENT: _assignment,
            **dict.fromkeys((Request.QUERY_CONSUMER_OFFSET, Request.UPDATE_CONSUMER_OFFSET), _consume),
            **dict.fromkeys(
                (
                    Request.GET_MAX_OFFSET,
                    Request.GET_MIN_OFFSET,
                    Request.SEARCH_OFFSET_BY_TIMESTAMP,
                    Request.GET_EARLIEST_MESSAGE_STORE_TIME,
                ),
                _use_topic,
            ),
            Request.GET_ROUTE_INFO_BY_TOPIC: _route,
            Request.QUERY_MESSAGE: _consume_topic,
            Request.VIEW_MESSAGE_BY_ID: lambda account, request: self._of_message(account, request, "offset"),
            Request.HEART_BEAT: _heartbeat,
            Request.UNREGISTER_CLIENT: _nothing,
            Request.CHECK_CLIENT_CONFIG: _nothing,
            Request.CONSUMER_SEND_MESSAGE_BACK: self._send_back,
            Request.END_TRANSACTION: self._end_transaction,
            Request.GET_CONSUMER_LIST_BY_GROUP: lambda account, request: account.require_group(
                text(request, "consumerGroup")
            ),
            **dict.fromkeys((Request.LOCK_BATCH_MQ, Request.UNLOCK_BATCH_MQ), _lock),
        }

    def check(self, request: Command) -> None:
        """Raise UnauthorizedError if the signature is not from a known account, and ForbiddenError if its account may
        not do this. Codes that are not listed are for administrators."""
        if self._accounts is None:
            return
        account = self._accounts.of_content(*_signed(request))
        if account.admin:
            return
        permit = self._permits.get(request.code)
        if permit is None:
            account.require_admin(f"request {request.code}")
        else:
            permit(account, request)

    def _send_back(self, account: Account, request: Command) -> None:
        account.require_group(text(request, "group"))
        self._of_message(account, request, "offset")

    def _of_message(self, account: Account, request: Command, name: str) -> None:
        topic = self._property_or_topic(integer(request, name), p.RETRY_TOPIC)
        if topic is not None:
            account.require_consume(topic)

    def _end_transaction(self, account: Account, request: Command) -> None:
        topic = self._property_or_topic(integer(request, "commitLogOffset"), p.REAL_TOPIC)
        if topic is not None:
            account.require_publish(topic)

    def _property_or_topic(self, physical_offset: int, name: str) -> str | None:
        """The topic of a stored message; None without such a message: the request then fails by itself."""
        try:
            record = self._store.record_at(physical_offset)
        except (RecordNotFoundError, CorruptRecordError):
            return None
        return record.properties.get(name) or record.topic


def _signed(request: Command) -> tuple[str, str, bytes]:
    """Access key, signature, and the signed bytes."""
    fields = request.fields
    access_key, signature = fields.get(_ACCESS_KEY), fields.get(_SIGNATURE)
    if not access_key or not signature:
        raise UnauthorizedError("this broker requires credentials; give the client an access key and a secret key")
    left_out = {_SIGNATURE}
    if request.version <= _LAST_UNSIGNED_VERSION:
        left_out.add(_UNIQUE_KEY_QUERY)
    values = [fields[name] for name in sorted(fields) if name not in left_out]
    return access_key, signature, "".join(values).encode("utf-8", "replace") + request.body


def _publish(field: str) -> Permit:
    def permit(account: Account, request: Command) -> None:
        topic = text(request, field)
        if topic.startswith(RETRY_PREFIX):
            account.require_group(topic.removeprefix(RETRY_PREFIX))
        else:
            account.require_publish(topic)

    return permit


def _assignment(account: Account, request: Command) -> None:
    body = body_object(request)
    account.require_group(member(body, "consumerGroup"))
    account.require_consume(member(body, "topic"))


def _batch(account: Account, request: Command) -> None:
    for entry in objects(body_object(request), "acks"):
        account.require_group(member(entry, "c") or member(entry, "consumerGroup"))
        account.require_consume(member(entry, "t") or member(entry, "topic"))


def _consume(account: Account, request: Command) -> None:
    account.require_group(text(request, "consumerGroup"))
    account.require_consume(text(request, "topic"))


def _consume_topic(account: Account, request: Command) -> None:
    account.require_consume(text(request, "topic"))


def _use_topic(account: Account, request: Command) -> None:
    account.require_use(text(request, "topic"))


def _route(account: Account, request: Command) -> None:
    """A producer whose topic does not exist yet asks for the template of new topics."""
    if text(request, "topic") != TEMPLATE_TOPIC:
        _use_topic(account, request)


def _heartbeat(account: Account, request: Command) -> None:
    for item in objects(body_object(request), "consumerDataSet"):
        account.require_group(member(item, "groupName"))
        for subscription in objects(item, "subscriptionDataSet"):
            account.require_consume(member(subscription, "topic"))


def _lock(account: Account, request: Command) -> None:
    account.require_group(member(body_object(request), "consumerGroup"))


def _nothing(account: Account, request: Command) -> None:
    """Allowed to every account."""
