"""The rules of deploy/prometheus/alerts.yml that a broker can judge alone, each with its next step.

Names, severities and times are those of the alerts; a test compares them. Rules about a broker that does not answer,
restarts, or is a replica cannot be judged by a master that runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

from msgspec import Struct

from aerobee_broker.units import span_text
from aerobee_broker.watching.backlog import Backlog

Severity = Literal["warning", "critical"]
_LATE_MS: Final = 600_000
_BEHIND_BYTES: Final = 256 << 20
_FILLING_RATIO: Final = 0.8
_FILLING_SECONDS: Final = 24 * 3600
_FAILED_RATIO: Final = 0.01
_SLOW_SYNC_SECONDS: Final = 0.2
_DESCRIPTORS_RATIO: Final = 0.95
_TABLES_RATIO: Final = 0.9


class Facts(Struct, frozen=True, kw_only=True):
    """What the rules judge, at one moment. `recent`: of the last five minutes."""

    now_ms: int
    sync_failures: int
    damage: int
    """Failed checksums and damaged ranges."""
    disk_ratio: float
    """Used, of the emptiest disk that the log may use."""
    disk_full_ratio: float
    disk_full_in_seconds: float | None
    """At the rate of the last hours; None: never, or not known."""
    tables_changed: int
    unsynced_bytes: int
    undispatched_bytes: int
    descriptors_ratio: float
    tables_ratio: float
    """Used, of what topics, groups and positions may take."""
    recent_calls: Mapping[str, tuple[int, int]]
    """By method: answers, and those of them that say that the broker could not."""
    recent_sync_seconds: float
    """One recent sync in a hundred took this long or longer; 0 without syncs."""
    backlogs: Mapping[str, Mapping[str, Backlog]]
    """By group and topic, without the broker's own."""
    connected_groups: frozenset[str]
    new_dead_letters: Mapping[str, int]
    """By group, of the last 15 minutes."""
    replica_lags: Mapping[str, int] | None
    """Bytes that each connected replica is behind; None: not a master of replicas."""


class Finding(Struct, frozen=True):
    """One place where a rule holds at this moment."""

    summary: str
    topic: str = ""
    group: str = ""
    subject: str = ""
    """What else tells it from other findings of the rule."""


class Rule(Struct, frozen=True):
    """A rule, and how long it must hold before it is a problem."""

    name: str
    severity: Severity
    hold_seconds: float
    next_step: str
    """For commands of the finding's group, GROUP stands for its name."""
    look: Callable[[Facts], Iterator[Finding]]

    def next_step_for(self, finding: Finding) -> str:
        """What to do next, with commands that can be typed as they are."""
        return self.next_step.replace("GROUP", shlex.quote(finding.group)) if finding.group else self.next_step

    @property
    def runbook(self) -> str:
        return f"operating.md#{self.name.lower()}"


def _when(holds: Callable[[Facts], bool], summary: Callable[[Facts], str]) -> Callable[[Facts], Iterator[Finding]]:
    def look(facts: Facts) -> Iterator[Finding]:
        if holds(facts):
            yield Finding(summary(facts))

    return look


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"


def _filling(facts: Facts) -> Iterator[Finding]:
    seconds = facts.disk_full_in_seconds
    is_soon = seconds is not None and seconds < _FILLING_SECONDS
    if facts.disk_ratio > _FILLING_RATIO or is_soon:
        when = "" if seconds is None else f", and takes no message in {span_text(round(seconds * 1000))} at this rate"
        yield Finding(f"the disk is {facts.disk_ratio:.0%} full{when}")


def _failing(facts: Facts) -> Iterator[Finding]:
    for method, (answers, failed) in facts.recent_calls.items():
        if answers and failed / answers > _FAILED_RATIO:
            yield Finding(f"{failed / answers:.1%} of the calls of {method} fail", subject=method)


def _late(facts: Facts) -> Iterator[Finding]:
    for group, topics in facts.backlogs.items():
        for topic, backlog in topics.items():
            if backlog.oldest_ms is not None and facts.now_ms - backlog.oldest_ms > _LATE_MS:
                minutes = (facts.now_ms - backlog.oldest_ms) // 60_000
                yield Finding(f"{group} is {minutes:,} minutes behind in {topic}", topic, group)


def _gone(facts: Facts) -> Iterator[Finding]:
    for group, topics in facts.backlogs.items():
        waiting = sum(backlog.lag for backlog in topics.values())
        if waiting and group not in facts.connected_groups:
            yield Finding(f"{group} has {waiting:,} messages waiting and nobody connected", group=group)


def _dead(facts: Facts) -> Iterator[Finding]:
    for group, count in facts.new_dead_letters.items():
        if count:
            yield Finding(f"{group} gave up {count:,} messages in the last 15 minutes", group=group)


def _replicas_behind(facts: Facts) -> Iterator[Finding]:
    for replica, lag in (facts.replica_lags or {}).items():
        if lag > _BEHIND_BYTES:
            yield Finding(f"replica {replica} is {_mib(lag)} behind", subject=replica)


RULES: Final = (
    Rule(
        "AerobeeSyncFailed",
        "critical",
        0,
        "The disk failed: copy the store, replace the disk, and start the broker on the copy.",
        _when(lambda facts: facts.sync_failures > 0, lambda _: "the disk failed to make data durable"),
    ),
    Rule(
        "AerobeeDamagedRecords",
        "critical",
        0,
        "Stop the broker, keep a copy of the store, and run `aerobee store verify DIR`, which names each damage.",
        _when(lambda facts: facts.damage > 0, lambda _: "the broker found damage in its store"),
    ),
    Rule(
        "AerobeeDiskFull",
        "critical",
        0,
        "Add space, or lower store.retention_hours with `aerobee config set`; until then no message is taken.",
        _when(
            lambda facts: facts.disk_ratio > facts.disk_full_ratio,
            lambda facts: f"the disk is {facts.disk_ratio:.0%} full, so no message is taken",
        ),
    ),
    Rule(
        "AerobeeDiskFilling",
        "warning",
        1800,
        "Add space or lower store.retention_hours; `aerobee segments` shows what the log holds and how fast it grows.",
        _filling,
    ),
    Rule(
        "AerobeeRequestsFail",
        "critical",
        300,
        "Look at the broker's log, which has the cause of each failure.",
        _failing,
    ),
    Rule(
        "AerobeeSyncSlow",
        "warning",
        600,
        "Look at the disk with `iostat -x 1`: other writers, or a cloud volume without burst credits.",
        _when(
            lambda facts: facts.recent_sync_seconds > _SLOW_SYNC_SECONDS,
            lambda facts: f"one sync in a hundred takes {facts.recent_sync_seconds:.2g} s",
        ),
    ),
    Rule(
        "AerobeeFlushBehind",
        "warning",
        120,
        "The disk is slower than the producers: slow them down, or use a faster disk.",
        _when(
            lambda facts: facts.unsynced_bytes > _BEHIND_BYTES,
            lambda facts: f"{_mib(facts.unsynced_bytes)} are not on disk yet",
        ),
    ),
    Rule(
        "AerobeeDispatchBehind",
        "warning",
        120,
        "The processor is too busy to make messages available: look at `aerobee top`, and send less at a time.",
        _when(
            lambda facts: facts.undispatched_bytes > _BEHIND_BYTES,
            lambda facts: f"{_mib(facts.undispatched_bytes)} are stored but cannot be received yet",
        ),
    ),
    Rule(
        "AerobeeConsumersLate",
        "warning",
        300,
        "See with `aerobee group describe GROUP` whether consumers are connected and acknowledge; then add consumers.",
        _late,
    ),
    Rule(
        "AerobeeConsumersGone",
        "warning",
        600,
        "Start the consumers of the group, or delete the group if nobody needs it.",
        _gone,
    ),
    Rule(
        "AerobeeDeadLetters",
        "warning",
        0,
        "See with `aerobee dlq list GROUP` what failed; mend the consumer, then `aerobee dlq resend GROUP`.",
        _dead,
    ),
    Rule(
        "AerobeeFileDescriptors",
        "warning",
        300,
        "Raise the limit of open files (LimitNOFILE of the unit, ulimit -n), or connect fewer clients.",
        _when(
            lambda facts: facts.descriptors_ratio > _DESCRIPTORS_RATIO,
            lambda facts: f"{facts.descriptors_ratio:.0%} of the file descriptors are in use",
        ),
    ),
    Rule(
        "AerobeeTablesFull",
        "warning",
        0,
        "Raise limits.table_bytes_max with `aerobee config set`, or delete topics and groups that nobody needs.",
        _when(
            lambda facts: facts.tables_ratio > _TABLES_RATIO,
            lambda facts: f"topics and groups take {facts.tables_ratio:.0%} of their memory; then none can be made",
        ),
    ),
    Rule(
        "AerobeeConfigurationChanged",
        "warning",
        0,
        "Compare topics, groups and offsets with what you expect; the log of the last start names the files.",
        _when(lambda facts: facts.tables_changed > 0, lambda _: "configuration files are not what the broker saved"),
    ),
    Rule(
        "AerobeeReplicasMissing",
        "critical",
        300,
        "Start the replicas, and see in their logs why they do not connect.",
        _when(
            lambda facts: facts.replica_lags is not None and not facts.replica_lags,
            lambda _: "no replica is connected to this master",
        ),
    ),
    Rule(
        "AerobeeReplicaBehind",
        "warning",
        300,
        "Look at the disk of the replica and the network between the two.",
        _replicas_behind,
    ),
)


class Problem(Struct, frozen=True):
    """A rule that has held long enough."""

    rule: Rule
    finding: Finding
    since_ms: int


class Judge:
    """Which rules hold, and since when. Event loop only."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str, str, str], int] = {}
        self.problems: list[Problem] = []

    def judge(self, facts: Facts) -> None:
        """Look at everything again: critical problems come first, then in order of names."""
        since: dict[tuple[str, str, str, str], int] = {}
        problems = []
        for rule in RULES:
            for finding in rule.look(facts):
                key = rule.name, finding.topic, finding.group, finding.subject
                since[key] = began = self._since.get(key, facts.now_ms)
                if facts.now_ms - began >= rule.hold_seconds * 1000:
                    problems.append(Problem(rule, finding, began))
        self._since = since
        problems.sort(key=lambda each: (each.rule.severity != "critical", each.rule.name, each.finding.summary))
        self.problems = problems
