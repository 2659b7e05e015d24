"""Features in every state that a broker can be in, against a small model of what clients were promised.

A real broker with movable time is killed, stopped, started with its clock elsewhere, with a full disk, and while calls
are in flight; topics are deleted and made again. At the end all that was promised must arrive. `make test-random`
explores with fresh seeds; AEROBEE_MODEL_EXAMPLES and AEROBEE_MODEL_STEPS set how far.
"""

from __future__ import annotations

from typing import ClassVar, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from aerobee_client.testing import BrokerProcess
from tests.model.calls import SETTINGS, Calls
from tests.model.client_rules import SEEDS, ClientRules, explore
from tests.support import golden, seeds

_DAY: Final = 86_400
pytestmark = pytest.mark.timeout(14_400 if seeds.FRESH else 900)  # a busy machine may need minutes


class Crossings(ClientRules):
    """One broker and the model."""

    flush: ClassVar[str] = "sync"

    @initialize(seed=SEEDS, of_rocketmq=st.booleans())
    def begin(self, seed: int, of_rocketmq: bool) -> None:
        """`of_rocketmq`: on a store that RocketMQ wrote, with messages of its POP consumers in flight."""
        path = self.prepare(seed)
        settings = {**SETTINGS, "listen.leave_seconds": 0.0, "listen.drain_seconds": 0.5}
        if of_rocketmq:
            golden.unpack_pop("in-flight", path)
            settings |= golden.POP_SIZES
        arguments = ("--dev", "--flush", self.flush)
        self.broker = BrokerProcess(path / "store", path / "log", arguments, settings=settings, moving_time=True)
        self.is_full = False
        self.broker.start()
        self.calls = Calls(self.broker.endpoint, self.promises)
        self.make_tables()

    def teardown(self) -> None:
        if not hasattr(self, "calls"):
            return
        try:
            self.everything_arrives()
            assert self.broker.stop() == 0, self.broker.log_text()[-3000:]
        finally:
            self.calls.close()
            self.broker.kill()
            self.broker.close()
            self.directory.cleanup()

    # --- What happens to the broker

    @rule(seconds=st.sampled_from([1, 15, 90, 7200, 2 * _DAY]))
    def time_passes(self, seconds: int) -> None:
        self.note(f"time_passes({seconds!r})")
        self.advance(seconds)

    @rule(seconds=st.sampled_from([0, 0, 0, 120, 400 * _DAY, -3600, -30 * _DAY]), orderly=st.booleans())
    def restart(self, seconds: int, orderly: bool) -> None:
        """A restart with the clock elsewhere, and with space on the disk."""
        self.note(f"restart({seconds!r}, {orderly!r})")
        if orderly:
            assert self.broker.stop() == 0, self.broker.log_text()[-3000:]
        else:
            self.broker.kill()
        self.look_at_clock()  # at which it ended: it may have delivered until then
        self.is_full = False
        self._start(seconds)

    @rule(is_full=st.booleans(), orderly=st.booleans())
    def disk_fills(self, is_full: bool, orderly: bool) -> None:
        """A restart on a full disk, or on one with space again."""
        self.note(f"disk_fills({is_full!r}, {orderly!r})")
        if orderly:
            self.broker.stop()
        else:
            self.broker.kill()
        self.is_full = is_full
        self._start(0)

    @rule(is_running=st.booleans())
    def restore_backup(self, is_running: bool) -> None:
        self.note(f"restore_backup({is_running!r})")
        self._restore_backup(is_running=is_running)

    # --- What the rules of clients need

    def revive(self) -> None:
        self._start(0)

    def heal(self) -> None:
        if self.is_full or not self.broker.running:
            self.broker.kill()
            self.is_full = False
            self._start(0)

    @property
    def takes_changes(self) -> bool:
        return not self.is_full

    def _start(self, seconds: float) -> None:
        ratio = 1e-9 if self.is_full else 1.0
        self.broker.start(clock_moved_seconds=seconds, settings={"store.disk_full_ratio": ratio})
        self.connect()


def test_promises_hold_in_every_state() -> None:
    """No message is lost, stuck, doubled, early, out of order or returned after it was finished."""
    explore(Crossings, examples=8, steps=40)
