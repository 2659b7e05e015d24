"""What both machines with two brokers share: which of them serves, time, and sends that are in flight."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.model.client_rules import GROUPS, ClientRules
from tests.model.promises import Kind
from tests.support import seeds
from tests.support.paired_broker import PairedBroker

DAY: Final = 86_400
_ANSWER_SECONDS: Final = 0.1  # in which a master answers that does not wait for its replica


class TwoBrokers(ClientRules):
    """`broker` is the master, `other` its replica, or a broker that does not run."""

    broker: PairedBroker
    other: PairedBroker
    calls_between = 5 if seeds.FRESH else 1  # many wait for a replica that stands still, until their time is over

    @rule(seconds=st.sampled_from([1, 15, 90, 7200, 2 * DAY]))
    def time_passes(self, seconds: int) -> None:
        self.note(f"time_passes({seconds!r})")
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self.other.advance(seconds)
        super().advance(seconds)

    def finish_out_of_order(self) -> None:
        """A group finishes messages after one that it keeps."""
        self.calls.send(self.messages(Kind.NORMAL, 4, 0, 0))
        received = self.receive_now("readers", 32, 600)
        self.calls.acknowledge("readers", "normal", received[1:])

    def begin_sends(self, kinds: list[Kind]) -> list[Any]:
        """Send one message of each kind without waiting; `end_sends` takes the answers."""
        batches = [self.messages(kind, 1, 60, number % 2) for number, kind in enumerate(kinds)]
        for batch in batches:
            batch[0].number = batches[0][0].number  # nobody promises an order of sends that are in flight together
        return [(self.calls.begin_send(batch), batch) for batch in batches]

    def send_into_end(self, how: str, kinds: list[Kind], wait: float, *, is_late: bool) -> list[Any]:
        """Begin sends, and end the master after `wait` seconds. `is_late`: the replica stands still meanwhile, and is
        killed with all that its connection has for it."""
        if is_late:
            self.end(self.other, "pause")
        in_flight = self.begin_sends(kinds)
        time.sleep(wait + (_ANSWER_SECONDS if is_late else 0))
        self.end(self.broker, how)
        if is_late:
            self.other.kill()
        return in_flight

    def end_sends(self, in_flight: list[Any]) -> None:
        for call, batch in in_flight:
            self.calls.end_send(call, batch)

    def end(self, broker: PairedBroker, how: str) -> None:
        """ "stop": in order; "kill": at once; "pause": it goes on with `resume`."""
        broker.resume()
        if how == "kill":
            broker.kill()
        elif broker.running:
            if how == "pause":
                broker.pause()
            else:
                assert broker.stop() == 0, broker.log_text()[-3000:]

    def taken_over(self, *, has_answered: bool) -> None:
        """`other` is the master now; `has_answered`: it must have all that was answered."""
        self.broker, self.other = self.other, self.broker
        self.promises.taken_over(has_answered=has_answered)
        for group in GROUPS:
            self._forget_held_of(group)
        self.connect()

    def close(self) -> None:
        """End everything."""
        with ExitStack() as stack:
            stack.callback(self.directory.cleanup)
            for each in (self.broker, self.other):
                stack.callback(each.close)
            stack.callback(self.calls.close)
