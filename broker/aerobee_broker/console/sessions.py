"""Sessions: who is signed in, each with a client of its own whose calls are signed by its account.

Secret keys stay in the memory of this process: the cookie of the browser is a random number. Times are seconds.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aerobee_broker.recent import Recent
from aerobee_client import Client, Credentials

COUNT_MAX: Final = 256
"""Sessions at a time; another one ends the one that was not used for the longest time."""
COUNT_PER_ACCOUNT_MAX: Final = 16
IDLE_SECONDS: Final = 3600.0
SECONDS_MAX: Final = 12 * 3600.0
FAILURES_MAX: Final = 10
"""Failed logins from one address within FAILURE_SECONDS."""
FAILURE_SECONDS: Final = 60.0
_ADDRESSES_MAX: Final = 4096


@dataclass(slots=True, eq=False)
class Session:
    """One login."""

    token: str
    account: str
    client: Client = field(repr=False)
    begun: float
    used: float


class Sessions:
    """All sessions of this process."""

    def __init__(self, connect: Callable[[Credentials], Client], clock: Callable[[], float] = time.monotonic) -> None:
        self._connect = connect
        self._clock = clock
        self._sessions: dict[str, Session] = {}  # by their last use; no Recent, because ending one waits
        self._failures: Recent[str, deque[float]] = Recent(_ADDRESSES_MAX)

    def __len__(self) -> int:
        return len(self._sessions)

    def dial(self, credentials: Credentials) -> Client:
        """A client of this account, which no session has yet. To be closed by the caller, or given to `begin`."""
        return self._connect(credentials)

    async def begin(self, account: str, client: Client) -> Session:
        """A new session; too many others end."""
        await self._end_old()
        of_account = [each for each in self._sessions.values() if each.account == account]
        if len(of_account) >= COUNT_PER_ACCOUNT_MAX:
            await self.end(of_account[0].token)
        elif len(self._sessions) >= COUNT_MAX:
            await self.end(next(iter(self._sessions)))
        now = self._clock()
        session = Session(secrets.token_urlsafe(32), account, client, now, now)
        self._sessions[session.token] = session
        return session

    async def find(self, token: str) -> Session | None:
        """The session with this token, if it is not over; this counts as a use."""
        await self._end_old()
        session = self._sessions.pop(token, None)
        if session is not None:
            session.used = self._clock()
            self._sessions[token] = session
        return session

    async def end(self, token: str) -> None:
        """End a session, if there is one."""
        session = self._sessions.pop(token, None)
        if session is not None:
            await session.client.close()

    async def close(self) -> None:
        """End all."""
        for token in list(self._sessions):
            await self.end(token)

    async def _end_old(self) -> None:
        now = self._clock()
        for session in list(self._sessions.values()):
            if now - session.used >= IDLE_SECONDS or now - session.begun >= SECONDS_MAX:
                await self.end(session.token)

    # --- Failed logins ----------------------------------------------------------------------------------------

    def may_try(self, address: str) -> bool:
        """Whether this address has failed less often than FAILURES_MAX lately."""
        failures = self._failures.get(address)
        while failures and failures[0] <= self._clock() - FAILURE_SECONDS:
            failures.popleft()
        return failures is None or len(failures) < FAILURES_MAX

    def failed(self, address: str) -> None:
        """A login from this address failed."""
        failures = self._failures.get(address) or deque(maxlen=FAILURES_MAX)
        failures.append(self._clock())
        self._failures[address] = failures
