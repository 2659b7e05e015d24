"""What became of a message, from its events, as lanes with bars and marks. Times are Unix milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from aerobee_proto import admin_v1

EVENTS_MAX: Final = 200
"""Drawn; the table beside the picture has all."""

_Event = admin_v1.TimelineEvent
_State = admin_v1.GroupMessageState
BarKind = Literal["waiting", "again", "delayed", "prepared", "delivered", "expired", "held"]
MarkKind = Literal["born", "stored", "good", "bad", "moved", "renewed", "resent"]


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that lasted."""

    kind: BarKind
    begin: int
    end: int
    about: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened."""

    kind: MarkKind
    time: int
    about: str


@dataclass(slots=True)
class Lane:
    """The broker, or one group."""

    name: str
    state: str = ""
    state_kind: str = ""
    bars: list[Bar] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Life:
    """All that is drawn."""

    lanes: Sequence[Lane]
    times: Sequence[int]
    """Where something is, ascending."""
    now: int | None
    """Unset if nothing is open."""
    description: str


_STATES: Final = {
    _State.STATE_UNSPECIFIED: ("not known", "plain"),
    _State.WAITING: ("not delivered yet", "waiting"),
    _State.IN_FLIGHT: ("in flight", "flight"),
    _State.READY: ("waits for redelivery", "waiting"),
    _State.FINISHED: ("finished", "good"),
    _State.DEAD_LETTER: ("dead letter", "bad"),
    _State.NOT_YET: ("not to be delivered yet", "plain"),
}
_OF_BROKER: Final[dict[int, tuple[MarkKind, str]]] = {
    _Event.BORN: ("born", "made by the client"),
    _Event.STORED: ("stored", "stored"),
    _Event.DELAYED: ("stored", "stored, with a delivery time"),
    _Event.PREPARED: ("stored", "stored as part of a transaction"),
    _Event.RECALLED: ("bad", "taken back by its producer"),
    _Event.COMMITTED: ("good", "transaction committed"),
    _Event.ROLLED_BACK: ("bad", "transaction rolled back"),
    _Event.GIVEN_UP: ("bad", "transaction not decided in time"),
}
_ENDS: Final[dict[int, tuple[MarkKind, str]]] = {
    _Event.FINISHED: ("good", "finished"),
    _Event.DEAD_LETTER: ("bad", "became a dead letter"),
    _Event.RESET: ("moved", "the group was moved to another offset"),
    _Event.RESENT: ("resent", "its dead letter was sent again"),
}


def state_words(state: admin_v1.GroupMessageState.State.ValueType) -> tuple[str, str]:
    """Where a message is for a group, in words, and the kind of that for colours."""
    return _STATES.get(state, _STATES[_State.STATE_UNSPECIFIED])


def life_of(timeline: admin_v1.MessageTimeline, now: int) -> Life:
    """The lanes of one stored message."""
    events = [event for event in timeline.events if event.HasField("timestamp")][:EVENTS_MAX]
    broker = Lane("broker")
    _draw_broker(broker, [event for event in events if event.kind in _OF_BROKER], now)
    names = dict.fromkeys([state.group for state in timeline.groups] + [event.group for event in events if event.group])
    states = {state.group: state for state in timeline.groups}
    begin = _deliverable_at(events)
    lanes, is_open = [broker], any(bar.end == now for bar in broker.bars)
    for name in sorted(names):
        state = states.get(name)
        lane = Lane(name)
        if state is not None:
            lane.state, lane.state_kind = state_words(state.state)
        _draw_group(lane, [event for event in events if event.group == name], state, begin, now)
        is_open = is_open or any(bar.end == now for bar in lane.bars)
        lanes.append(lane)
    times = {mark.time for lane in lanes for mark in lane.marks}
    times |= {time for lane in lanes for bar in lane.bars for time in (bar.begin, bar.end)}
    if is_open:
        times.add(now)
    words = "; ".join(f"{lane.name}: {lane.state or 'see the table of events'}" for lane in lanes[1:])
    return Life(
        lanes, sorted(times), now if is_open else None, f"What became of the message. {words or 'No group yet.'}"
    )


def _at(event: admin_v1.TimelineEvent) -> int:
    return int(event.timestamp.ToMilliseconds())


def _until(event: admin_v1.TimelineEvent) -> int | None:
    return int(event.until.ToMilliseconds()) if event.HasField("until") else None


def _deliverable_at(events: Iterable[admin_v1.TimelineEvent]) -> int | None:
    """Since when groups can get the message; None: not yet."""
    kinds = {event.kind: event for event in events}
    found = kinds.get(_Event.STORED) or kinds.get(_Event.COMMITTED)
    return None if found is None else _at(found)


def _draw_broker(lane: Lane, events: Sequence[admin_v1.TimelineEvent], now: int) -> None:
    for index, event in enumerate(events):
        kind, about = _OF_BROKER[event.kind]
        lane.marks.append(Mark(kind, _at(event), f"{about}{f': {event.detail}' if event.detail else ''}"))
        if event.kind in (_Event.DELAYED, _Event.PREPARED):
            due = _until(event)
            after = [_at(other) for other in events[index + 1 :]]
            end = min(after[0], due) if after and due is not None else (after[0] if after else now)
            if event.kind == _Event.DELAYED:
                end = due if due is not None and not after else end
                lane.bars.append(Bar("delayed", _at(event), max(end, _at(event)), "waits for its time", "delayed"))
            else:
                lane.bars.append(Bar("prepared", _at(event), end, "waits for the decision", "undecided"))


def _draw_group(
    lane: Lane,
    events: Sequence[admin_v1.TimelineEvent],
    state: admin_v1.GroupMessageState | None,
    begin: int | None,
    now: int,
) -> None:
    """Waits, deliveries and their ends, in order of time."""
    since = begin
    delivery: admin_v1.TimelineEvent | None = None
    until: int | None = None
    for event in events:
        at = _at(event)
        if event.kind == _Event.CHANGED and delivery is not None:
            until = _until(event)
            lane.marks.append(Mark("renewed", at, f"invisible time changed{_by(event)}"))
            continue
        if event.kind != _Event.DELIVERED and event.kind not in _ENDS:
            continue
        if delivery is not None:
            _end_delivery(lane, delivery, until, at, is_over=event.kind in _ENDS)
        elif since is not None and since < at and event.kind == _Event.DELIVERED:
            lane.bars.append(Bar("waiting", since, at, "waits for a receive"))
        if event.kind == _Event.DELIVERED:
            delivery, until = event, _until(event)
        else:
            kind, about = _ENDS[event.kind]
            lane.marks.append(Mark(kind, at, f"{about}{_by(event)}"))
            delivery, until = None, None
            since = at if event.kind == _Event.RESENT else None
    is_closed = state is not None and state.state in (_State.FINISHED, _State.DEAD_LETTER)
    if delivery is not None and not is_closed:
        if state is not None and state.HasField("invisible_until"):
            until = int(state.invisible_until.ToMilliseconds())
        _end_delivery(lane, delivery, until, now, is_over=False)
    elif delivery is None and since is not None and state is not None and state.state in (_State.WAITING, _State.READY):
        lane.bars.append(
            Bar("waiting" if state.state == _State.WAITING else "again", since, now, "waits for a receive")
        )


def _end_delivery(lane: Lane, delivery: admin_v1.TimelineEvent, until: int | None, end: int, *, is_over: bool) -> None:
    """A delivery that lasted until `end`, or whose invisible time was over before."""
    begin = _at(delivery)
    about = f"delivery {delivery.attempt}{_by(delivery)}"
    label = f"#{delivery.attempt}"
    if until is not None and begin <= until < end and not is_over:
        lane.bars.append(Bar("expired", begin, until, f"{about}, not acknowledged in time", label))
        lane.bars.append(Bar("again", until, end, "visible again, waits for a receive"))
    else:
        lane.bars.append(Bar("delivered", begin, max(end, begin), about, label))


def _by(event: admin_v1.TimelineEvent) -> str:
    parts = [f"to {event.client_id}" if event.client_id else "", event.detail]
    return "".join(f", {part}" for part in parts if part)
