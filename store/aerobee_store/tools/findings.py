"""Findings of the tools."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Severity = Literal["error", "warning"]

FINDINGS_MAX: Final = 1000
"""Findings kept by default: enough to understand the damage, few enough to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem (`error`), or an anomaly that concerns no message (`warning`).

    `path` is relative to the store's directory. `size` counts bytes, `count` the similar problems that it stands for.
    """

    kind: str
    severity: Severity = "error"
    detail: str
    path: str | None = None
    physical_offset: int | None = None
    size: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    count: int = 1

    def to_json(self) -> dict[str, object]:
        """The known fields, under the names of the golden manifests."""
        return known_fields(self)

    def __str__(self) -> str:
        places = []
        if self.path is not None:
            places.append(self.path)
        if self.topic is not None:
            queue = f"{self.topic}/{self.queue_id}"
            places.append(queue if self.queue_offset is None else f"{queue} offset {self.queue_offset}")
        if self.physical_offset is not None:
            places.append(f"physical offset {self.physical_offset}")
        where = f" ({', '.join(places)})" if places else ""
        return f"{self.severity}: {self.kind}{where}: {self.detail}"


class Findings:
    """Collects findings: the first ones in full, the others as a number."""

    def __init__(self, maximum: int = FINDINGS_MAX) -> None:
        self.kept: list[Finding] = []
        self.left_out = 0
        self.errors = 0
        self._maximum = maximum

    def add(self, finding: Finding) -> None:
        if finding.severity == "error":
            self.errors += 1
        if len(self.kept) < self._maximum:
            self.kept.append(finding)
        else:
            self.left_out += 1

    @property
    def capacity(self) -> int:
        """How many more findings can be kept in full."""
        return self._maximum - len(self.kept)

    def extend(self, others: Findings) -> None:
        """Add the findings of another collection."""
        for finding in others.kept:
            self.add(finding)
        self.errors += others.errors - sum(finding.severity == "error" for finding in others.kept)
        self.left_out += others.left_out


def known_fields(item: DataclassInstance) -> dict[str, object]:
    """The fields of a dataclass that are not None, as in JSON."""
    return {json_name(field.name): value for field in fields(item) if (value := getattr(item, field.name)) is not None}


def json_name(name: str) -> str:
    """`physical_offset` as `physicalOffset`."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
