"""Who sends a remoting request, and whether it may: the signature, and the table of permissions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aerobee_broker.clients.accounts import Account, Accounts, Right
from aerobee_broker.clients.permissions import REMOTING, ask
from aerobee_broker.listening.peers import Peers
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.remoting_wire.signature import signed_parts
from aerobee_store import CorruptRecordError, MessageStore, RecordNotFoundError

_OF_CLUSTER: Final = frozenset(
    code for code, row in REMOTING.items() if any(need.right is Right.CLUSTER for need in row)
)


class Permissions:
    """Checks requests. `accounts` None: no authentication."""

    def __init__(
        self,
        accounts: Accounts | None,
        store: MessageStore,
        owner_of: Callable[[str], str | None],
        peers: Peers | None = None,
    ) -> None:
        """`owner_of`: the access key of the account to which a client id belongs, None for nobody's."""
        self._accounts = accounts
        self._peers = peers
        self._known = _Known(store, owner_of)

    def check(self, request: Command, connection: Connection | None = None) -> None:
        """Set the access key of the request's account. Raise UnauthorizedError if the signature is not from a known
        account, and ForbiddenError if the account may not do this, or if the code has no row in the table."""
        if self._accounts is None:
            check_cluster(request, connection, self._peers)
            return
        if self._peers is not None and self._peers.is_named(request):
            self._peers.check(request, connection)
            account = Account(request.access_key, None, cluster=True)
        else:
            account = self._accounts.of_content(*signed_parts(request))
        ask(account, REMOTING.get(request.code), f"request {request.code:d}", request, self._known)
        request.access_key = account.access_key


def check_cluster(request: Command, connection: Connection | None, peers: Peers | None) -> None:
    """Without accounts: what brokers do among themselves needs the secret and a certificate of the cluster, if there
    are such. UnauthorizedError."""
    if peers is None:
        return
    if request.code in _OF_CLUSTER or peers.is_named(request):
        peers.check(request, connection)


class _Known:
    """What permissions depend on besides the request."""

    def __init__(self, store: MessageStore, owner_of: Callable[[str], str | None]) -> None:
        self._store = store
        self.owner_of = owner_of

    def property_or_topic(self, physical_offset: int, name: str) -> str | None:
        """This property of a stored message, or its topic; None without such a message."""
        try:
            record = self._store.record_at(physical_offset)
        except (RecordNotFoundError, CorruptRecordError):
            return None
        return record.properties.get(name) or record.topic
