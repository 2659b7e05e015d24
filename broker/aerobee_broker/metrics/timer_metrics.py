"""Metrics of delayed messages: RocketMQ's names, and `aerobee_timer_` for lateness and reliability.

Messages with a delay level have `aerobee_level_delay_`.
"""

from __future__ import annotations

from typing import Final

from aerobee_broker.config import BrokerConfig
from aerobee_broker.counters.families import CounterFamily, GaugeFamily, HistogramFamily, Pieces
from aerobee_broker.timer.level_delay import LevelDelay
from aerobee_broker.timer.wheel_timer import Timer

_LABELS: Final = ("cluster", "node_type", "node_id", "storage_type", "storage_medium")
_BOUNDS_SECONDS: Final = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)  # RocketMQ's


class TimerCollector:
    """Reads the numbers of a Timer on request."""

    def __init__(self, config: BrokerConfig, timer: Timer) -> None:
        self._base = (config.cluster, "broker", config.name, "local", "disk")
        self._timer = timer

    def collect(self) -> Pieces:
        yield from self._waiting()
        yield from self._delivered()

    def _waiting(self) -> Pieces:
        timer, stats = self._timer, self._timer.stats
        pending = GaugeFamily(
            "rocketmq_timing_messages", "Delayed messages that wait for their time.", labels=(*_LABELS, "topic")
        )
        for topic, count in list(stats.pending.items()):
            pending.add_metric((*self._base, topic), max(0, count))
            yield None
        yield pending
        for name, text, counts in (
            ("rocketmq_timer_enqueue", "Delayed messages that were put on the timer's wheel.", stats.enqueued),
            ("rocketmq_timer_dequeue", "Delayed messages that were delivered to their topic.", stats.dequeued),
        ):
            family = CounterFamily(name, text, labels=(*_LABELS, "topic"))
            for topic, count in list(counts.items()):
                family.add_metric((*self._base, topic), count)
                yield None
            yield family
        for name, text, value in (
            ("rocketmq_timer_enqueue_lag", "Delayed messages that are not on the wheel yet.", timer.enqueue_lag),
            (
                "rocketmq_timer_enqueue_latency",
                "Milliseconds for which the oldest of them has waited.",
                timer.enqueue_latency_ms,
            ),
            ("rocketmq_timer_dequeue_lag", "Messages of the running step that are late.", timer.dequeue_lag),
            ("rocketmq_timer_dequeue_latency", "Milliseconds by which the next one is late.", timer.dequeue_latency_ms),
        ):
            gauge = GaugeFamily(name, text, labels=_LABELS)
            gauge.add_metric(self._base, value)
            yield gauge
        snapshot = GaugeFamily(
            "rocketmq_timer_message_snapshot",
            "Delayed messages that fall due between the bound before this one and this one, in seconds from now.",
            labels=(*_LABELS, "timer_bound_s"),
        )
        for bound, pending_count in zip(_BOUNDS_SECONDS, timer.pending_within(_BOUNDS_SECONDS), strict=True):
            snapshot.add_metric((*self._base, str(bound)), pending_count)
        yield snapshot

    def _delivered(self) -> Pieces:
        stats = self._timer.stats
        delays = HistogramFamily(
            "rocketmq_delay_message_latency", "Seconds of delay that were asked for.", labels=(*_LABELS, "topic")
        )
        for topic, histogram in list(stats.delay_seconds.items()):
            delays.add_histogram((*self._base, topic), histogram.bounds, histogram.counts, histogram.sum)
            yield None
        yield delays
        lateness = HistogramFamily(
            "aerobee_timer_lateness_seconds", "How long after its time a message was delivered.", labels=_LABELS
        )
        late = stats.lateness_seconds
        lateness.add_histogram(self._base, late.bounds, late.counts, late.sum)
        yield lateness
        for name, text, value in (
            ("aerobee_timer_recalled", "Delayed messages that were taken back.", stats.recalled),
            ("aerobee_timer_rolled", "Delayed messages that were stored again, being far ahead.", stats.rolled),
            ("aerobee_timer_lost", "Delayed messages that cannot be read or stored any more.", stats.lost),
        ):
            counter = CounterFamily(name, text, labels=_LABELS)
            counter.add_metric(self._base, value)
            yield counter


class LevelDelayCollector:
    """Reads the numbers of a LevelDelay on request."""

    def __init__(self, config: BrokerConfig, level_delay: LevelDelay) -> None:
        self._base = (config.cluster, "broker", config.name, "local", "disk")
        self._level_delay = level_delay

    def collect(self) -> Pieces:
        waiting = GaugeFamily(
            "aerobee_level_delay_waiting_messages",
            "Messages with a delay level that wait for their time.",
            labels=(*_LABELS, "level"),
        )
        for level, count in self._level_delay.waiting_by_level().items():
            waiting.add_metric((*self._base, str(level)), count)
        yield waiting
        for name, text, value in (
            (
                "aerobee_level_delay_delivered",
                "Messages with a delay level that were delivered to their topic.",
                self._level_delay.delivered,
            ),
            (
                "aerobee_level_delay_lost",
                "Messages with a delay level that cannot be read or stored any more.",
                self._level_delay.lost,
            ),
        ):
            counter = CounterFamily(name, text, labels=_LABELS)
            counter.add_metric(self._base, value)
            yield counter
