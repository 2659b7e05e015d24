"""Charts of figures over time. Values may be NaN where nothing is known: there the line has a gap.

A script reads `data-times` and `data-values` to show the figures under the pointer; without it the picture and its
description remain.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

_WIDTH: Final = 600
_HEIGHT: Final = 160
_LEFT: Final = 52  # for the numbers of the axis
_TOP: Final = 8
_BOTTOM: Final = 20  # for the times
_LINES: Final = 4
_SMALL: Final = (120, 28)
_POINTS_MAX: Final = 240  # about as many as the picture has pixels; more are joined
_NOTHING_AFTER_POINT: Final = re.compile(r"\.0+(?= |$)")
_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Line:
    """One figure over time. `kind` chooses its colour: in, out, acknowledged, backlog, plain."""

    label: str
    values: Sequence[float]
    kind: str = "plain"


def sparkline(values: Sequence[float], label: str, kind: str = "plain") -> Markup:
    """A small line without axes."""
    width, height = _SMALL
    points = _joined(values, 60)
    known = [value for value in points if not math.isnan(value)]
    if len(known) < 2:
        return Markup("")
    top = max(known) or 1.0
    step = width / (len(points) - 1)
    places = [(index * step, height - 2 - value / top * (height - 5)) for index, value in enumerate(points)]
    return Markup(
        '<svg class="spark line-{kind}" viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img"'
        ' aria-label="{label}">'
        '<path class="area" d="{area}"/><path class="stroke" d="{line}"/></svg>'
    ).format(kind=kind, w=width, h=height, label=label, area=_area(places, height), line=_path(places))


def chart(
    title: str,
    times: Sequence[int],
    lines: Sequence[Line],
    text: Callable[[float], str],
    *,
    of_bytes: bool = False,
) -> Markup:
    """Lines over time with axes. `times` are Unix milliseconds, oldest first; `text` writes a value.

    `of_bytes`: the numbers of the axis are round in KiB and MiB.
    """
    known = [value for line in lines for value in line.values if not math.isnan(value)]
    if len(times) < 2 or not known:
        return Markup(
            '<figure class="chart"><figcaption><span class="title">{}</span></figcaption>'
            '<p class="empty">Nothing is recorded yet.</p></figure>'
        ).format(title)
    top = nice_top(max(known), of_bytes=of_bytes)
    width, height = _WIDTH - _LEFT - 4, _HEIGHT - _TOP - _BOTTOM
    parts = _axes(times, text, top, width, height)
    for line in lines:
        values = _joined(line.values, _POINTS_MAX)
        step = width / max(len(values) - 1, 1)
        places = [(_LEFT + index * step, _TOP + height - (value / top) * height) for index, value in enumerate(values)]
        parts.append(Markup('<path class="stroke line-{}" d="{}"/>').format(line.kind, _path(places)))
    newest = ", ".join(f"{line.label} {text(_last(line.values))}" for line in lines)
    keys = Markup("").join(
        Markup('<span class="key line-{}">{} <b>{}</b></span>').format(line.kind, line.label, text(_last(line.values)))
        for line in lines
    )
    return Markup(
        '<figure class="chart" data-chart="{data}"><figcaption><span class="title">{title}</span>{keys}</figcaption>'
        '<svg viewBox="0 0 {w} {h}" role="img" aria-label="{about}">{parts}</svg></figure>'
    ).format(
        data=_data(times, lines, text, width, height),
        title=title,
        keys=keys,
        w=_WIDTH,
        h=_HEIGHT,
        about=f"{title}, newest: {newest}",
        parts=Markup("").join(parts),
    )


def _axes(times: Sequence[int], text: Callable[[float], str], top: float, width: float, height: float) -> list[Markup]:
    """The lines of round values with their names, and the names of three times."""
    parts: list[Markup] = []
    for number in range(_LINES + 1):
        y = _TOP + height * number / _LINES
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(_LEFT, _WIDTH - 4, y, y)
        )
        value = _NOTHING_AFTER_POINT.sub("", text(top * (_LINES - number) / _LINES))
        parts.append(Markup('<text class="axis" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
            _LEFT - 6, y + 4, value))  # fmt: skip
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        before = (times[-1] - times[0]) * (1 - share)
        label = "now" if share == 1.0 else f"\N{MINUS SIGN}{_short_span(before)}"
        parts.append(Markup('<text class="axis" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
            _LEFT + width * share, _HEIGHT - 5, anchor, label))  # fmt: skip
    return parts


def _data(
    times: Sequence[int], lines: Sequence[Line], text: Callable[[float], str], width: float, height: float
) -> str:
    """What the script of the page shows under the pointer."""
    return json.dumps(
        {
            "times": _joined_times(times, _POINTS_MAX),
            "lines": [
                {
                    "label": line.label,
                    "kind": line.kind,
                    "texts": [text(value) for value in _joined(line.values, _POINTS_MAX)],
                }
                for line in lines
            ],
            "left": _LEFT,
            "width": width,
            "top": _TOP,
            "height": height,
        }
    )


def share(part: float, whole: float, label: str, kind: str = "") -> Markup:
    """A bar that is filled as far as `part` is of `whole`."""
    filled = 0.0 if whole <= 0 else min(max(part / whole, 0.0), 1.0)
    return Markup(
        '<svg class="share {}" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<rect class="rest" width="100" height="6" rx="1"/><rect class="part" width="{:.1f}" height="6" rx="1"/></svg>'
    ).format(kind, label, 100 * filled)


def nice_top(value: float, *, of_bytes: bool = False) -> float:
    """The least round number that is not below `value`, for the top of an axis."""
    if value <= 0:
        return 1.0
    if of_bytes and value >= 1024:
        unit = 1024.0 ** math.floor(math.log(value, 1024))
        return unit * nice_top(value / unit)
    size = 10.0 ** math.floor(math.log10(value))
    return next(size * step for step in _STEPS if size * step >= value * (1 - 1e-9))


def _joined(values: Sequence[float], count_max: int) -> list[float]:
    """At most `count_max` values: the largest of each run, so that a short peak remains."""
    run = -(-len(values) // count_max)
    return [_largest(values[begin : begin + run]) for begin in range(0, len(values), run)] if run else []


def _joined_times(times: Sequence[int], count_max: int) -> list[int]:
    run = -(-len(times) // count_max)
    return [times[min(begin + run, len(times)) - 1] for begin in range(0, len(times), run)]


def _largest(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return max(known) if known else math.nan


def _last(values: Sequence[float]) -> float:
    return next((value for value in reversed(values) if not math.isnan(value)), math.nan)


def _path(places: Sequence[tuple[float, float]]) -> str:
    """Straight lines between the places that are known."""
    words = []
    for run in _runs(places):
        words += [f"{'M' if index == 0 else 'L'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(run)]
    return "".join(words)


def _area(places: Sequence[tuple[float, float]], bottom: int) -> str:
    return "".join(
        f"M{run[0][0]:.1f} {bottom}" + "".join(f"L{x:.1f} {y:.1f}" for x, y in run) + f"L{run[-1][0]:.1f} {bottom}Z"
        for run in _runs(places)
    )


def _runs(places: Sequence[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    run: list[tuple[float, float]] = []
    for place in places:
        if math.isnan(place[1]):
            if run:
                yield run
            run = []
        else:
            run.append(place)
    if run:
        yield run


def _short_span(milliseconds: float) -> str:
    minutes = milliseconds / 60_000
    if minutes < 1:
        return f"{milliseconds / 1000:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"
