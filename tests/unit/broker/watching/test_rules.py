"""The rules that a broker judges itself, against the alerts of Prometheus."""

from __future__ import annotations

import math
import re
from math import nan
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from aerobee_broker.watching import rules
from aerobee_broker.watching.backlog import Backlog
from aerobee_broker.watching.rules import RULES, Facts, Finding, Judge
from aerobee_broker.watching.trend import seconds_until
from aerobee_broker.watching.watch import percentile_99

ROOT = Path(__file__).parents[4]
WELL = Facts(
    now_ms=10_000_000,
    sync_failures=0,
    damage=0,
    disk_ratio=0.5,
    disk_full_ratio=0.9,
    disk_full_in_seconds=None,
    tables_changed=0,
    unsynced_bytes=0,
    undispatched_bytes=0,
    descriptors_ratio=0.1,
    tables_ratio=0.9,
    recent_calls={"SendMessage": (1000, 10)},
    recent_sync_seconds=0.1,
    backlogs={"billing": {"orders": Backlog(1, 2, 0, 10_000_000 - 600_000)}},
    connected_groups=frozenset({"billing"}),
    new_dead_letters={"billing": 0},
    replica_lags={"2": 1000},
)
LATE = {"billing": {"orders": Backlog(1, 2, 0, 1)}}
ILL: dict[str, dict[str, Any]] = {
    "AerobeeSyncFailed": {"sync_failures": 1},
    "AerobeeDamagedRecords": {"damage": 1},
    "AerobeeDiskFull": {"disk_ratio": 0.91},
    "AerobeeDiskFilling": {"disk_ratio": 0.81},
    "AerobeeRequestsFail": {"recent_calls": {"SendMessage": (1000, 11)}},
    "AerobeeSyncSlow": {"recent_sync_seconds": 0.21},
    "AerobeeFlushBehind": {"unsynced_bytes": (256 << 20) + 1},
    "AerobeeDispatchBehind": {"undispatched_bytes": (256 << 20) + 1},
    "AerobeeConsumersLate": {"backlogs": LATE},
    "AerobeeConsumersGone": {"connected_groups": frozenset()},
    "AerobeeDeadLetters": {"new_dead_letters": {"billing": 1}},
    "AerobeeFileDescriptors": {"descriptors_ratio": 0.96},
    "AerobeeTablesFull": {"tables_ratio": 0.91},
    "AerobeeConfigurationChanged": {"tables_changed": 1},
    "AerobeeReplicasMissing": {"replica_lags": {}},
    "AerobeeReplicaBehind": {"replica_lags": {"2": (256 << 20) + 1}},
}
NOT_JUDGED = {
    "AerobeeDown",
    "AerobeeNotReady",
    "AerobeeRestarting",
    "AerobeeReplicaNotFollowing",
    "AerobeeReplicaDiverged",
    "AerobeeReplicaReseeding",
}


def alerts() -> dict[str, tuple[str, float]]:
    """Severity and seconds of each alert in the file for Prometheus."""
    text = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    found = {}
    for block in text.split("- alert: ")[1:]:
        hold = re.search(r"for: (\d+)m", block)
        severity = re.search(r"severity: (\w+)", block)
        assert severity is not None
        found[block.split()[0]] = severity[1], float(hold[1]) * 60 if hold else 0.0
    return found


def test_the_rules_are_the_alerts() -> None:
    """Same names, severities and times; those that are left out are known."""
    judged = {rule.name: (rule.severity, rule.hold_seconds) for rule in RULES}
    assert judged == {name: alert for name, alert in alerts().items() if name not in NOT_JUDGED}


LIMITS: dict[str, tuple[float, ...]] = {
    "AerobeeDiskFilling": (rules._FILLING_RATIO, rules._FILLING_SECONDS),
    "AerobeeRequestsFail": (rules._FAILED_RATIO,),
    "AerobeeSyncSlow": (rules._SLOW_SYNC_SECONDS,),
    "AerobeeFlushBehind": (rules._BEHIND_BYTES,),
    "AerobeeDispatchBehind": (rules._BEHIND_BYTES,),
    "AerobeeConsumersLate": (rules._LATE_MS,),
    "AerobeeFileDescriptors": (rules._DESCRIPTORS_RATIO,),
    "AerobeeTablesFull": (rules._TABLES_RATIO,),
    "AerobeeReplicaBehind": (rules._BEHIND_BYTES,),
}
"""The limits of the others are none or one of something, and `disk_full_ratio`, which is a metric."""


def test_the_limits_are_those_of_the_alerts() -> None:
    """Each number of a rule stands in the expression of its alert, and each other number there is known."""
    text = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    for block in text.split("- alert: ")[1:]:
        name, expression = block.split()[0], block.partition("expr:")[2].partition("labels:")[0]
        expression = re.sub(r'\[\w+\]|".*?"|for: \w+|offset \w+|histogram_quantile\(0\.99|#.*', "", expression)
        numbers = {
            math.prod(map(float, product.split("*")))
            for product in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?: \* \d+)*", expression)
        }
        if name not in NOT_JUDGED:
            assert numbers - {0.0, 1.0} == set(LIMITS.get(name, ())), name


def test_every_rule_has_a_runbook() -> None:
    """The section that a rule names exists, and its next step is a sentence."""
    page = (ROOT / "docs/operating.md").read_text()
    for rule in RULES:
        assert f"#### {rule.name}\n" in page
        assert rule.runbook == f"operating.md#{rule.name.lower()}"
        assert rule.next_step.endswith(".")


def test_a_next_step_can_be_typed_as_it_is() -> None:
    """The commands have the name of the group that is meant, quoted where a shell needs it."""
    (dead,) = (rule for rule in RULES if rule.name == "AerobeeDeadLetters")
    (late,) = (rule for rule in RULES if rule.name == "AerobeeConsumersLate")
    assert "`aerobee dlq list billing`" in dead.next_step_for(Finding("", group="billing"))
    assert "`aerobee dlq resend 'a|b'`" in dead.next_step_for(Finding("", group="a|b"))
    assert "`aerobee group describe billing`" in late.next_step_for(Finding("", topic="orders", group="billing"))


def test_nothing_is_wrong_with_a_well_broker() -> None:
    """At its threshold, no rule holds yet."""
    judge = Judge()
    for minutes in range(60):
        judge.judge(replace(WELL, now_ms=WELL.now_ms + minutes * 60_000, backlogs={}))
    assert judge.problems == []
    judge.judge(WELL)
    assert judge.problems == []


@pytest.mark.parametrize("name", ILL)
def test_each_rule_holds_after_its_time(name: str) -> None:
    """Just beyond its threshold a rule holds, and it is a problem after its time, with when it began."""
    judge = Judge()
    [rule] = [rule for rule in RULES if rule.name == name]
    facts = replace(WELL, **ILL[name])
    if name != "AerobeeConsumersLate" and name != "AerobeeConsumersGone":
        facts = replace(facts, backlogs={})
    judge.judge(facts)
    named = [problem for problem in judge.problems if problem.rule.name == name]
    assert len(named) == (1 if rule.hold_seconds == 0 else 0)
    judge.judge(replace(facts, now_ms=facts.now_ms + round(rule.hold_seconds * 1000)))
    [problem] = [problem for problem in judge.problems if problem.rule.name == name]
    assert problem.since_ms == facts.now_ms
    assert problem.finding.summary
    judge.judge(replace(WELL, now_ms=facts.now_ms + 10_000_000, backlogs={}))
    assert judge.problems == []


def test_critical_problems_come_first() -> None:
    """Then in order of names."""
    judge = Judge()
    judge.judge(
        replace(WELL, sync_failures=1, tables_changed=1, damage=1, new_dead_letters={"b": 2, "a": 1}, backlogs={})
    )
    assert [(problem.rule.name, problem.finding.group) for problem in judge.problems] == [
        ("AerobeeDamagedRecords", ""),
        ("AerobeeSyncFailed", ""),
        ("AerobeeConfigurationChanged", ""),
        ("AerobeeDeadLetters", "a"),
        ("AerobeeDeadLetters", "b"),
    ]


def test_one_sync_in_a_hundred() -> None:
    """The bound that the slowest hundredth exceeds, since the earlier counts."""
    bounds = (0.1, 0.2, 0.5)
    assert percentile_99(bounds, [0, 0, 0, 0], [0, 0, 0, 0]) == 0.0
    assert percentile_99(bounds, [990, 0, 10, 0], [0, 0, 0, 0]) == pytest.approx(0.1)
    assert percentile_99(bounds, [989, 0, 11, 0], [0, 0, 0, 0]) == pytest.approx(0.2 + 0.3 / 11)
    assert percentile_99(bounds, [989, 0, 11, 1000], [989, 0, 11, 0]) == 0.5


@pytest.mark.parametrize(
    ("ratio", "seconds", "summary"),
    [
        (0.81, None, "the disk is 81% full"),
        (0.81, 190_000.0, "the disk is 81% full, and takes no message in 2 d 4 h at this rate"),
        (0.3, 86_399.0, "the disk is 30% full, and takes no message in 23 h 59 min at this rate"),
        (0.3, 86_400.0, None),
        (0.8, None, None),
    ],
)
def test_a_disk_fills_by_its_share_or_its_trend(ratio: float, seconds: float | None, summary: str | None) -> None:
    """Above 80 %, or full within a day; how long it takes is said where it is known."""
    (rule,) = (rule for rule in RULES if rule.name == "AerobeeDiskFilling")
    found = [each.summary for each in rule.look(replace(WELL, disk_ratio=ratio, disk_full_in_seconds=seconds))]
    assert found == ([] if summary is None else [summary])


MINUTE = 60_000


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ([float(minute) for minute in range(181)], 60 * 820.0),
        ([float(minute) for minute in range(180)], None),  # less than three hours
        ([5.0] * 300, None),
        ([float(-minute) for minute in range(300)], None),
        ([nan] * 20 + [float(minute) for minute in range(181)], 60 * 820.0),
        ([2000.0] * 100 + [float(minute) for minute in range(360)], 60 * 641.0),  # only the last six hours count
        ([float(10 * minute) for minute in range(200)], 0.0),  # reached already
        ([], None),
    ],
)
def test_when_a_trend_reaches_a_limit(values: list[float], seconds: float | None) -> None:
    """A straight line through the last six hours, of which at least three must be known."""
    found = seconds_until(1000.0, [MINUTE * (7 + number) for number in range(len(values))], values)
    assert found == (None if seconds is None else pytest.approx(seconds))
