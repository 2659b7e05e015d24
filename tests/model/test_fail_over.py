"""Two brokers, a master and its replica, against the same model of what clients were promised.

Either broker is killed, stopped, paused, or started with its clock elsewhere or a full disk. The replica falls behind,
begins with an empty store, or with one from before the master's first segment; it is promoted, and the old master
follows it. At the end all that was promised arrives, and the replica takes over twice more.
"""

from __future__ import annotations

import shutil
from typing import Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_store.tools.backup import backup
from tests.model.calls import SETTINGS, Calls
from tests.model.client_rules import SEEDS, explore
from tests.model.promises import Kind
from tests.model.two_brokers import DAY, TwoBrokers
from tests.support import seeds
from tests.support.paired_broker import DivergedError, PairedBroker
from tests.support.remoting_client import send_fields

_SEGMENT_SIZE: Final = 1 << 20
_FULL: Final = "store.disk_full_ratio"
_ENDS: Final = ("kill", "stop", "pause")
pytestmark = pytest.mark.timeout(14_400 if seeds.FRESH else 900)  # a busy machine may need minutes


class FailOver(TwoBrokers):
    """An operator promotes the replica."""

    @initialize(seed=SEEDS, acks=st.sampled_from(["1", "1", "none"]))
    def begin(self, seed: int, acks: str) -> None:
        self.path = self.prepare(seed)
        self.acks = acks
        settings = {
            **SETTINGS,
            "store.segment_size": _SEGMENT_SIZE,
            "replication.acks": acks,
            "replication.ack_timeout_seconds": 1.0,
        }
        self.broker, self.other = (PairedBroker(self.path, name, settings) for name in ("a", "b"))
        self.note(f"begin({acks!r})")
        self.broker.serve()
        self.calls = Calls(self.broker.endpoint, self.promises)
        self._keep_an_old_copy()
        self.is_full = False
        self._follow()
        self.make_tables()
        self._catch_up()

    def teardown(self) -> None:
        if not hasattr(self, "calls"):
            return
        try:
            self.everything_arrives()
            self._catch_up()
            self.finish_out_of_order()
            self._take_over("kill", list(Kind), is_late=True)
            self.everything_arrives()
            self._catch_up()
            self._take_over("stop", has_answered=True)
            self._follow()
            self.everything_arrives()
            for each in (self.broker, self.other):
                assert each.stop() == 0, each.log_text()[-3000:]
        finally:
            self.close()

    # --- The replica

    @rule(orderly=st.booleans())
    def replica_ends(self, orderly: bool) -> None:
        self.note(f"replica_ends({orderly!r})")
        self.end(self.other, "stop" if orderly else "kill")
        self.is_known = False

    @rule()
    def replica_pauses(self) -> None:
        self.note("replica_pauses()")
        if self.other.running and not self.other.is_paused:
            self.other.pause()

    @rule(seconds=st.sampled_from([0, 0, 120, -3600]), is_full=st.sampled_from([False, False, False, True]))
    def replica_returns(self, seconds: int, is_full: bool) -> None:
        """The replica goes on, or is started with its clock elsewhere, or on a full disk."""
        self.note(f"replica_returns({seconds!r}, {is_full!r})")
        self.other.resume()
        if not self.other.running or is_full or self.other_is_full:
            self.other.kill()
            self._follow(seconds, is_full=is_full)

    @rule()
    def replica_catches_up(self) -> None:
        self.note("replica_catches_up()")
        self._catch_up()

    @rule(source=st.sampled_from(["nothing", "old", "backup"]))
    def replica_begins_anew(self, source: str) -> None:
        """Its store is empty, or one that ends before the first segment that its master still has, or a backup of its
        master's."""
        self.note(f"replica_begins_anew({source!r})")
        self.other.kill()
        self._begin_anew(source)

    # --- The master

    @rule(seconds=st.sampled_from([0, 0, 0, 120, 400 * DAY, -3600]), orderly=st.booleans(), is_full=st.booleans())
    def master_restarts(self, seconds: int, orderly: bool, is_full: bool) -> None:
        self.note(f"master_restarts({seconds!r}, {orderly!r}, {is_full!r})")
        self.end(self.broker, "stop" if orderly else "kill")
        self.look_at_clock()  # at which it ended: it may have delivered until then
        self._serve(seconds, is_full=is_full)

    @rule(is_running=st.booleans())
    def master_restores_backup(self, is_running: bool) -> None:
        self.note(f"master_restores_backup({is_running!r})")
        self._restore_backup(is_running=is_running)

    # --- Fail-over

    @rule(
        how=st.sampled_from(_ENDS),
        kinds=st.lists(st.sampled_from(list(Kind)), max_size=5),
        wait=st.floats(0, 0.02),
        is_late=st.booleans(),
    )
    def fail_over(self, how: str, kinds: list[Kind], wait: float, is_late: bool) -> None:
        """The master ends while sends are in flight, and the replica takes its place if it may. `is_late`: it has
        received nothing of these sends."""
        if self.acks == "none" and how == "pause":
            how = "kill"  # without acks an operator has to end the old master first
        self.note(f"fail_over({how!r}, {[kind.value for kind in kinds]!r}, {wait!r}, {is_late!r})")
        self._take_over(how, kinds, wait, is_late=is_late)

    # --- What the rules of clients need

    @property
    def takes_changes(self) -> bool:
        return not self.is_full and self.is_known and self._counts

    def revive(self) -> None:
        self._serve(0, is_full=self.is_full)

    def heal(self) -> None:
        if self.is_full or not self.broker.running:
            self.broker.kill()
            self._serve(0, is_full=False)
        self._catch_up()

    # --- Their parts

    def _serve(self, seconds: float, *, is_full: bool) -> None:
        self.is_full = is_full
        self.broker.serve(settings={_FULL: 1e-9 if is_full else 1.0}, clock_moved_seconds=seconds)
        self.connect()

    def _follow(self, seconds: float = 0, *, is_full: bool = False) -> None:
        self.other_is_full = is_full
        self.is_known = False
        self.other.follow(self.broker.remoting, settings={_FULL: 1e-9 if is_full else 1.0}, clock_moved_seconds=seconds)

    def _catch_up(self) -> None:
        """The replica has all, and the model knows it."""
        self.other.resume()
        if not self.other.running or self.other_is_full:
            self.other.kill()
            self._follow()
        if self.is_full:
            self.end(self.broker, "kill")
            self._serve(0, is_full=False)
        try:
            self.other.has_all_of(self.broker)
        except DivergedError:
            self.other.kill()
            self._begin_anew("nothing")
            self.other.has_all_of(self.broker)
        self.look_at_clock()
        self.promises.copied()
        self.is_whole = self.is_known = True

    def _begin_anew(self, source: str) -> None:
        shutil.rmtree(self.other.store, ignore_errors=True)
        if source == "backup":
            backup(self.broker.store, self.other.store)
        elif source == "old":
            shutil.copytree(self.old_copy, self.other.store)
            self.end(self.broker, "stop")
            (self.broker.store / "commitlog" / f"{0:020}").unlink(missing_ok=True)
            self._serve(0, is_full=self.is_full)
        self.promises.replica_is_new()
        self.is_whole = False
        self._follow()

    def _keep_an_old_copy(self) -> None:
        """A replica's store that ends in the first segment, which has no message of a client."""
        self._fill(1000)
        self._follow()
        self.other.has_all_of(self.broker)
        assert self.other.stop() == 0, self.other.log_text()[-3000:]
        self.old_copy = self.path / "old"
        shutil.copytree(self.other.store, self.old_copy)
        self._fill(_SEGMENT_SIZE + 1000)

    def _fill(self, size: int) -> None:
        for left in range(size, 0, -200_000):
            body = bytes(min(left, 200_000))
            answer = self.calls.remoting(Request.SEND_MESSAGE_V2, send_fields("BenchmarkTest"), body)
            assert answer is not None
            assert answer.code in (Answer.SUCCESS, Answer.SLAVE_NOT_AVAILABLE), answer

    @property
    def _counts(self) -> bool:
        return self.other.running and not self.other.is_paused and bool(self.broker.status()["inSyncSlaveNums"])

    def _take_over(
        self,
        how: str,
        kinds: list[Kind] | None = None,
        wait: float = 0,
        *,
        is_late: bool = False,
        has_answered: bool = False,
    ) -> None:
        """`has_answered`: the replica has all, so it must be promoted without force."""
        master = self.broker
        in_flight = self.send_into_end(how, kinds or [], wait, is_late=is_late)
        self.other.resume()
        if knows_nothing := not self.other.running:
            self._follow()
        is_promoted = self._promote(
            must=has_answered or (self.is_known and self.is_whole and self.acks == "1"), may=not knows_nothing
        )
        master.resume()
        self.end_sends(in_flight)
        if how == "pause":
            self.calls.send(self.messages(Kind.NORMAL, 1, 0, 0))
        if not is_promoted:
            if not master.running:
                self._serve(0, is_full=self.is_full)
            return
        master.kill()
        self.is_full, self.other_is_full = self.other_is_full, self.is_full
        self.is_whole, self.is_known = True, False
        self.taken_over(has_answered=has_answered or self.acks == "1")

    def _promote(self, *, must: bool, may: bool) -> bool:
        """Promote the replica, by force if its store has always followed. `must`: it must not refuse. `may`: false for
        one that has not reached the master since its start, which must refuse."""
        refusal = self.other.promote()
        self.note(f"  promote: {refusal or 'OK'}")
        assert refusal if not may else not (must and refusal), "\n".join([refusal, *self.history])
        if refusal and self.is_whole and not self.other_is_full:
            refusal = self.other.promote(force=True)
        return not refusal


def test_promises_hold_through_fail_over() -> None:
    """What was answered as the setting of acks promises survives every fail-over, and nothing else contradicts."""
    explore(FailOver, examples=3, steps=20)
