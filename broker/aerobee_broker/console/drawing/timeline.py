"""The life of a message as a picture: one lane for the broker, and one for each group that gets it.

    broker    o---[====== delayed ======]*
    billing                              ----[== #1 ==].....[=== #2 ===]v      waits, delivered twice, acknowledged
    audit                                --------[=#1=]v
              born +2 ms  +10 s  +1 ms ...

The axis is not to scale: milliseconds would vanish beside hours. Each gap takes some room, and more the longer it is;
its length is written below. Times are Unix milliseconds, widths and heights pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Final

from markupsafe import Markup

from aerobee_broker.console.drawing.life import Bar, Lane, Life, Mark
from aerobee_broker.units import span_text

_NAMES: Final = 150  # width of the names of the lanes
_RIGHT: Final = 30
_LANE: Final = 46
_TOP: Final = 10
_AXIS: Final = 40
_WIDTH_LEAST: Final = 1080
_GAP_LEAST: Final = 30.0
_LABEL_LEAST: Final = 40.0  # below it a gap has no length written
_NAME_MAX: Final = 20  # characters


@dataclass(frozen=True, slots=True)
class _Axis:
    """Where times are."""

    places: dict[int, float] = field(default_factory=dict)
    width: float = 0.0

    def __call__(self, time: int) -> float:
        return self.places[time]


def draw(life: Life) -> Markup:
    """The picture, with a description for those who do not see it."""
    axis = _axis(life.times)
    height = _TOP + _LANE * len(life.lanes) + _AXIS
    width = _NAMES + axis.width + _RIGHT
    parts = [Markup("").join(_lane(lane, number, axis, width) for number, lane in enumerate(life.lanes))]
    parts.append(_ticks(life.times, axis, height - _AXIS))
    if life.now is not None:
        parts.append(
            Markup(
                '<line class="now" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
                '<text class="axis" x="{x:.1f}" y="{text}" text-anchor="middle">now</text>'
            ).format(x=_NAMES + axis(life.now), top=_TOP, bottom=height - _AXIS + 6, text=height - 4)
        )
    return Markup('<svg class="life" viewBox="0 0 {w:.0f} {h}" role="img" aria-label="{about}">{parts}</svg>').format(
        w=width, h=height, about=life.description, parts=Markup("").join(parts)
    )


def _axis(times: Sequence[int]) -> _Axis:
    """Room for each gap: the more the longer, in steps of powers of ten."""
    gaps = [_GAP_LEAST + 22.0 * math.log10(1 + (after - before)) for before, after in pairwise(times)]
    room = _WIDTH_LEAST - _NAMES - _RIGHT
    stretched = max(1.0, room / sum(gaps)) if gaps else 1.0
    places, x = {}, 8.0
    for time, gap in zip_longest(times, gaps, fillvalue=0):
        places[time] = x
        x += gap * stretched
    return _Axis(places, max(x, room) if gaps else room)


def _ticks(times: Sequence[int], axis: _Axis, y: float) -> Markup:
    parts = [Markup('<line class="base" x1="{}" x2="{:.1f}" y1="{y}" y2="{y}"/>').format(
        _NAMES, _NAMES + axis.width, y=y)]  # fmt: skip
    for index, time in enumerate(times):
        x = _NAMES + axis(time)
        parts.append(Markup('<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{a}" y2="{b}"/>').format(
            x=x, a=_TOP, b=y + 5))  # fmt: skip
        if index and axis(time) - axis(times[index - 1]) >= _LABEL_LEAST:
            middle = (x + _NAMES + axis(times[index - 1])) / 2
            parts.append(Markup('<text class="axis" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                middle, y + 16, f"+{_gap_text(time - times[index - 1])}"))  # fmt: skip
    return Markup("").join(parts)


def _gap_text(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else span_text(milliseconds)


def _lane(lane: Lane, number: int, axis: _Axis, width: float) -> Markup:
    middle = _TOP + _LANE * number + _LANE / 2
    name = lane.name if len(lane.name) <= _NAME_MAX else f"{lane.name[: _NAME_MAX - 1]}\N{HORIZONTAL ELLIPSIS}"
    parts = [
        Markup('<rect class="lane{odd}" x="0" y="{y}" width="{w:.0f}" height="{h}"/>').format(
            odd=" odd" if number % 2 else "", y=middle - _LANE / 2, w=width, h=_LANE
        ),
        Markup('<text class="who" x="10" y="{y}"><title>{whole}</title>{name}</text>').format(
            y=middle - 2, whole=lane.name, name=name
        ),
        Markup('<text class="state state-{kind}" x="10" y="{y}">{text}</text>').format(
            kind=lane.state_kind, y=middle + 13, text=lane.state
        ),
    ]
    parts += [_DRAWN_BARS[bar.kind](bar, axis, middle) for bar in lane.bars]
    parts += [_mark(mark, axis, middle) for mark in lane.marks]
    return Markup("").join(parts)


def _thin(bar: Bar, axis: _Axis, middle: float) -> Markup:
    return Markup(
        '<line class="bar {kind}" x1="{a:.1f}" x2="{b:.1f}" y1="{y}" y2="{y}"><title>{about}</title></line>'
    ).format(kind=bar.kind, a=_NAMES + axis(bar.begin), b=_NAMES + axis(bar.end), y=middle, about=bar.about)


def _thick(bar: Bar, axis: _Axis, middle: float) -> Markup:
    begin, end = axis(bar.begin), axis(bar.end)
    return Markup(
        '<g><title>{about}</title><rect class="bar {kind}" x="{x:.1f}" y="{y}" width="{w:.1f}" height="14" rx="3"/>'
        '<text class="in-bar {kind}" x="{middle:.1f}" y="{text}" text-anchor="middle">{label}</text></g>'
    ).format(
        kind=bar.kind,
        x=_NAMES + begin,
        y=middle - 7,
        w=max(end - begin, 3.0),
        middle=_NAMES + (begin + end) / 2,
        text=middle + 4,
        label=bar.label if end - begin >= 9 * len(bar.label) else "",
        about=bar.about,
    )


_DRAWN_BARS: Final[dict[str, Callable[[Bar, _Axis, float], Markup]]] = {
    "waiting": _thin,
    "again": _thin,
    "delayed": _thick,
    "prepared": _thick,
    "delivered": _thick,
    "expired": _thick,
    "held": _thick,
}
_SHAPES: Final = {
    "born": Markup('<circle cx="0" cy="0" r="5"/>'),
    "stored": Markup('<circle cx="0" cy="0" r="5"/>'),
    "good": Markup('<circle cx="0" cy="0" r="8"/><path d="M-3.5 0l2.5 2.8 4.5-5.2"/>'),
    "bad": Markup('<circle cx="0" cy="0" r="8"/><path d="M-3 -3l6 6M3 -3l-6 6"/>'),
    "moved": Markup('<path d="M-6 -5l6 5-6 5zM1 -5l6 5-6 5z"/>'),
    "renewed": Markup('<path d="M0 -9v18"/>'),
    "resent": Markup('<circle cx="0" cy="0" r="8"/><path d="M-4 1a4 4 0 1 1 1.2 2.8M-4.5 4.5v-3.5h3.5"/>'),
}


def _mark(mark: Mark, axis: _Axis, middle: float) -> Markup:
    return Markup('<g class="mark {kind}" transform="translate({x:.1f} {y})"><title>{about}</title>{shape}</g>').format(
        kind=mark.kind, x=_NAMES + axis(mark.time), y=middle, about=mark.about, shape=_SHAPES[mark.kind]
    )
