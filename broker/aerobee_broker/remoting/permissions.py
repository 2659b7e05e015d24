"""Who sends a remoting request, and whether it may: the signature, and the table of permissions.

A client signs the values of all fields except the signature, in the order of their names, followed by the body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aerobee_broker.clients.accounts import Accounts
from aerobee_broker.clients.permissions import REMOTING, ask
from aerobee_broker.errors import UnauthorizedError
from aerobee_broker.remoting_wire.frame import Command
from aerobee_store import CorruptRecordError, MessageStore, RecordNotFoundError

_SIGNATURE: Final = "Signature"
_ACCESS_KEY: Final = "AccessKey"
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_LAST_UNSIGNED_VERSION: Final = 399  # clients up to this version add _UNIQUE_KEY_QUERY after signing


class Permissions:
    """Checks requests. `accounts` None: no authentication."""

    def __init__(self, accounts: Accounts | None, store: MessageStore, owner_of: Callable[[str], str | None]) -> None:
        """`owner_of`: the access key of the account to which a client id belongs, None for nobody's."""
        self._accounts = accounts
        self._known = _Known(store, owner_of)

    def check(self, request: Command) -> None:
        """Set the access key of the request's account. Raise UnauthorizedError if the signature is not from a known
        account, and ForbiddenError if the account may not do this, or if the code has no row in the table."""
        if self._accounts is None:
            return
        account = self._accounts.of_content(*_signed(request))
        ask(account, REMOTING.get(request.code), f"request {request.code:d}", request, self._known)
        request.access_key = account.access_key


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
