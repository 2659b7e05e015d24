"""The result of a job: a small table, facts, and the exit status of its command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class JobResult:
    """`rows` have the `columns`. `exit_status`: 0: no findings, 1: findings."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    exit_status: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """One JSON object: the facts, and the rows by column."""
        return {**self.facts, "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows]}
