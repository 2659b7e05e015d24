"""Who changed what: the latest changes by operators, in memory and in `config/aerobeeOperations.json`.

    {"operations": [{"at": 1735787045000, "method": "DeleteTopic", "account": "ops", "address": "10.0.0.7:50112",
                     "request": "name: \\"orders\\""}]}

The file is written some seconds after a change: a crash loses the last ones here, while the log of the broker has them:
each change is a line there.
"""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path
from typing import Final

from msgspec import Struct

from aerobee_store import MessageStore
from aerobee_store.clock import Clock, every
from aerobee_store.tables import java_json
from aerobee_store.tables.json_table import JsonTable

_log = logging.getLogger(__name__)
_log.setLevel(logging.INFO)  # independent of the level that an operator sets for other loggers

FILE_NAME: Final = "aerobeeOperations.json"
OPERATIONS_MAX: Final = 1000
_SAVE_SECONDS: Final = 5.0
_REQUEST_SIZE_MAX: Final = 500  # characters


class Operation(Struct, frozen=True):
    """One change. `number` rises with each, and is unique in this process."""

    number: int
    at_ms: int
    method: str
    account: str
    address: str
    request: str


class Operations:
    """The changes of one store. Event loop only, except its save."""

    name: Final = "operations"

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        """Read the file. UnreadableTableError, OSError."""
        path: Path = store.config.directory / "config" / FILE_NAME
        self._store = store
        self._clock = clock
        self._file = JsonTable(store.file_system, path, stats=store.stats)
        self._operations: deque[Operation] = deque(maxlen=OPERATIONS_MAX)
        self._next = 1
        self._changed = False
        content = self._file.load()
        found = content.get("operations") if isinstance(content, dict) else None
        for each in found if isinstance(found, list) else ():
            if isinstance(each, dict):
                texts = (str(each.get(name, "")) for name in ("method", "account", "address", "request"))
                at = each.get("at")
                self._add(at if isinstance(at, int) else 0, *texts)
        self._changed = False

    def _add(self, at_ms: int, method: str, account: str, address: str, request: str) -> None:
        self._operations.append(Operation(self._next, at_ms, method, account, address, request))
        self._next += 1
        self._changed = True

    def note(self, method: str, account: str, address: str, request: str) -> None:
        """A change was made: log and keep it. `account`: its access key, empty without accounts. `request`: as text,
        without what is private; a long one is cut."""
        if len(request) > _REQUEST_SIZE_MAX:
            request = f"{request[:_REQUEST_SIZE_MAX]}..."
        _log.info("operator method=%s account=%s address=%s request=%r", method, account or "-", address, request)
        self._add(self._clock.now_ms(), method, account, address, request)

    def newest_first(self) -> list[Operation]:
        return list(reversed(self._operations))

    async def run(self) -> None:
        """Save changes from time to time, until cancelled."""
        await every(_SAVE_SECONDS, self.save)

    async def save(self) -> None:
        """Write the file if there is something new. A disk that cannot take it is no reason to stop."""
        if not self._changed:
            return
        self._changed = False
        operations = [
            java_json.Bean(
                at=each.at_ms, method=each.method, account=each.account, address=each.address, request=each.request
            )
            for each in self._operations
        ]
        try:
            await self._store.in_disk_thread(self._file.save, java_json.Bean(operations=operations))
        except OSError as error:
            self._changed = True
            _log.warning("operations not saved cause=%s", error)
