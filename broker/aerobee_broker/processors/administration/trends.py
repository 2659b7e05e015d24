"""GetHistory and GetProblems: what the broker has watched in itself."""

from __future__ import annotations

from typing import Final

from aerobee_broker.clients.registry import Client
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.processors.administration.wire import OK, timestamp
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.watching.history import BROKER, SECONDS_PER_MINUTE, Subject
from aerobee_broker.watching.rules import RULES
from aerobee_broker.watching.watch import SAMPLE_SECONDS, Watch
from aerobee_proto import admin_v1, v2

_PROBLEMS_MAX: Final = 1000
_Step = admin_v1.HistoryStep
_SEVERITIES: Final = {
    "warning": admin_v1.Severity.SEVERITY_WARNING,
    "critical": admin_v1.Severity.SEVERITY_CRITICAL,
}


class Trends:
    """One method per RPC."""

    def __init__(self, watch: Watch, tables: Tables) -> None:
        self._watch = watch
        self._tables = tables

    async def history(self, request: admin_v1.GetHistoryRequest, _: Client) -> admin_v1.GetHistoryResponse:
        if request.count < 0:
            raise InvalidRequestError(v2.Code.BAD_REQUEST, f"count is {request.count}; give 0 or more")
        subject = self._subject(request)
        match request.step:
            case _Step.HISTORY_STEP_UNSPECIFIED | _Step.HISTORY_STEP_SECOND:
                times, figures = self._watch.history.seconds(subject, request.count)
                seconds = SAMPLE_SECONDS
            case _Step.HISTORY_STEP_MINUTE:
                times, figures = self._watch.history.minutes(subject, request.count)
                seconds = SAMPLE_SECONDS * SECONDS_PER_MINUTE
            case _:
                raise InvalidRequestError(v2.Code.BAD_REQUEST, f"step {request.step} is unknown; give SECOND or MINUTE")
        response = admin_v1.GetHistoryResponse(
            status=OK,
            times=times,
            series=[admin_v1.GetHistoryResponse.Series(name=name, values=values) for name, values in figures.items()],
        )
        response.step.FromMilliseconds(int(seconds * 1000))
        return response

    def _subject(self, request: admin_v1.GetHistoryRequest) -> Subject:
        if request.topic and request.group:
            raise InvalidRequestError(v2.Code.BAD_REQUEST, "give topic or group, or neither for the broker")
        if request.topic:
            return "topic", self._tables.topics.require(request.topic).name
        if request.group:
            return "group", self._tables.groups.require(request.group).name
        return BROKER

    async def problems(self, _request: admin_v1.GetProblemsRequest, _: Client) -> admin_v1.GetProblemsResponse:
        return admin_v1.GetProblemsResponse(
            status=OK,
            problems=[
                admin_v1.Problem(
                    name=problem.rule.name,
                    severity=_SEVERITIES[problem.rule.severity],
                    summary=problem.finding.summary,
                    next_step=problem.rule.next_step_for(problem.finding),
                    runbook=problem.rule.runbook,
                    since_timestamp=timestamp(problem.since_ms),
                    topic=problem.finding.topic,
                    group=problem.finding.group,
                )
                for problem in self._watch.judge.problems[:_PROBLEMS_MAX]
            ],
            judged=[rule.name for rule in RULES],
        )
