"""Two brokers and a lease that decides which of them is the master, against the model of what clients were promised.

The master is killed, stopped, paused beyond its lease, or cut off from the lease; the replica ends, pauses and returns.
What the old master stored without an answer is set aside when it follows. Every answered message survives, whatever
happens. The lease is in a stand-in for Kubernetes, in this process.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.model.calls import SETTINGS, Calls
from tests.model.client_rules import SEEDS, explore
from tests.model.promises import Kind
from tests.model.two_brokers import TwoBrokers
from tests.support import kubernetes, seeds
from tests.support.paired_broker import SECONDS, PairedBroker, RoleChangedError

_LEASE_SECONDS: Final = 6  # long enough that a busy machine alone does not lose the lease
_NAME: Final = "model"
pytestmark = pytest.mark.timeout(14_400 if seeds.FRESH else 900)  # a busy machine may need minutes


class LeaseFailOver(TwoBrokers):
    """Whoever holds the lease serves; `broker` is the one that did last."""

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        path = self.prepare(seed)
        self.stack = ExitStack()
        self.api = kubernetes.StandIn({kubernetes.TOKEN: {"get", "create", "update"}})
        access = self.stack.enter_context(kubernetes.serving(path, self.api)).settings(_NAME)
        settings = {
            **SETTINGS,
            "replication.acks": "all",
            "replication.lease_seconds": _LEASE_SECONDS,
            "replication.in_sync_seconds": 1.0,
            "replication.ack_timeout_seconds": 2.0,
            **{
                f"replication.{name}": str(value) if isinstance(value, Path) else value
                for name, value in access.items()
            },
        }
        self.broker, self.other = (
            PairedBroker(path, name, {**settings, "replication.broker_id": number})
            for number, name in enumerate(("a", "b"), 1)
        )
        self.epoch = 0
        self.calls = Calls(self.broker.endpoint, self.promises)
        self.broker.join("master")
        self._find_master()
        self.other.join("replica")
        self.make_tables()
        self._catch_up()

    def teardown(self) -> None:
        if not hasattr(self, "calls"):
            return
        try:
            self.everything_arrives()
            for how, kinds in (("kill", list(Kind)), ("stop", [])):
                self._catch_up()
                self.finish_out_of_order()
                self._fail_over(how, kinds, 0, is_late=bool(kinds))
                self.everything_arrives()
            for each in (self.other, self.broker):
                assert each.stop() == 0, each.log_text()[-3000:]
        finally:
            self.close()
            self.stack.close()

    # --- The replica

    @rule(how=st.sampled_from(["kill", "stop", "pause"]))
    def replica_ends(self, how: str) -> None:
        self.note(f"replica_ends({how!r})")
        self.end(self.other, how)

    @rule()
    def replica_returns(self) -> None:
        self.note("replica_returns()")
        self._return()

    @rule()
    def replica_catches_up(self) -> None:
        self.note("replica_catches_up()")
        self._catch_up()

    # --- The master

    @rule(
        how=st.sampled_from(["kill", "stop", "pause", "cut off"]),
        kinds=st.lists(st.sampled_from(list(Kind)), max_size=5),
        wait=st.floats(0, 0.02),
        is_late=st.booleans(),
    )
    def master_ends(self, how: str, kinds: list[Kind], wait: float, is_late: bool) -> None:
        """While sends are in flight. The other broker serves afterwards if it may, or this one again. `is_late`: the
        other one has received nothing of these sends."""
        self.note(f"master_ends({how!r}, {[kind.value for kind in kinds]!r}, {wait!r}, {is_late!r})")
        self._fail_over(how, kinds, wait, is_late=is_late)

    # --- What the rules of clients need

    @property
    def takes_changes(self) -> bool:
        return self.other.running and not self.other.is_paused

    def revive(self) -> None:
        """The killed master, or the replica if that was faster."""
        self.broker.join("replica")
        self._find_master()

    def heal(self) -> None:
        self._catch_up()

    # --- Their parts

    def _fail_over(self, how: str, kinds: list[Kind], wait: float, *, is_late: bool) -> None:
        if how == "cut off":
            in_flight = self.begin_sends(kinds)
            self._cut_off()
        else:
            in_flight = self.send_into_end(how, kinds, wait, is_late=is_late)
            if is_late:
                self.other.join("replica")
            self._succeed(how)
        self.end_sends(in_flight)

    def _succeed(self, how: str) -> None:
        """A broker serves again, after the end of the master."""
        master = self.broker
        if how == "kill":
            self._expire()
        if self._in_sync_elsewhere():
            self._find_master()
        master.resume()
        if not master.running and master is self.broker:  # nobody may take its place
            master.join("replica")
        self._find_master()

    def _cut_off(self) -> None:
        """Nobody reaches the lease, until nobody may serve; then everybody does again."""
        self.api.answer = lambda _method: (503, b"{}")
        deadline = time.monotonic() + SECONDS
        while self._leads(self.broker):
            assert time.monotonic() < deadline, self.broker.log_text()[-3000:]
            time.sleep(0.05)
        self.api.answer = None
        self._find_master()

    def _expire(self) -> None:
        """The lease of a killed master ends now: nothing of it can come any more."""
        with self.api.lock:
            lease = self.api.leases[_NAME]
            lease["spec"]["holderIdentity"] = ""
            self.api.revision += 1
            lease["metadata"]["resourceVersion"] = str(self.api.revision)

    def _in_sync_elsewhere(self) -> bool:
        """Whether `other` may become the master: by the lease, of which a broker's own view is older."""
        if not self.other.running or self.other.is_paused:
            return False
        with self.api.lock:
            claim = json.loads(self.api.leases[_NAME]["metadata"]["annotations"]["aerobee/claim"])
        return self._status(self.other).get("brokerId") in claim["inSync"]

    def _find_master(self) -> None:
        deadline = time.monotonic() + SECONDS
        while not any(self._leads(each) for each in (self.broker, self.other)):
            assert time.monotonic() < deadline, (self.broker.log_text()[-3000:], self.other.log_text()[-3000:])
            time.sleep(0.05)
        if not self._leads(self.broker):
            self.taken_over(has_answered=True)
        elif self.epoch != self._status(self.broker).get("leaseEpoch"):
            self.promises.taken_over(has_answered=True)
            self.connect()
        self.epoch = self._status(self.broker).get("leaseEpoch")
        self.note(f"  {self.broker.name} leads, epoch {self.epoch}")

    def _leads(self, broker: PairedBroker) -> bool:
        return bool(self._status(broker).get("leaseSecondsLeft")) and broker.serves()

    def _status(self, broker: PairedBroker) -> Any:
        if broker.running and not broker.is_paused:
            with suppress(OSError, EOFError):
                return broker.status()
        return {}

    def _return(self) -> None:
        self.other.resume()
        if not self.other.running:
            self.other.join("replica")
        self._find_master()

    def _catch_up(self) -> None:
        """Both are in sync, and the replica has the tables."""
        deadline = time.monotonic() + SECONDS
        self._return()
        while True:
            try:
                self.other.has_all_of(self.broker)
                break
            except RoleChangedError:
                self._return()
        while len(self._status(self.broker).get("leaseInSync", ())) < 2:
            assert time.monotonic() < deadline, (self.broker.log_text()[-3000:], self.other.log_text()[-3000:])
            time.sleep(0.05)
            self._return()
        self.look_at_clock()
        self.promises.copied()


def test_promises_hold_through_fail_over_by_a_lease() -> None:
    """Every answered message survives, whatever happens to the brokers and the lease; nothing else contradicts."""
    explore(LeaseFailOver, examples=2, steps=15)
