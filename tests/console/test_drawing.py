"""Charts, lives of messages, bodies and words, without a broker."""

from __future__ import annotations

import math
import re

import pytest

from aerobee_broker.console import bodies, words
from aerobee_broker.console.drawing.charts import Line, chart, nice_top, sparkline
from aerobee_broker.console.drawing.life import EVENTS_MAX, life_of
from aerobee_broker.console.drawing.timeline import draw
from aerobee_broker.console.rendering import rate, size
from aerobee_proto import admin_v1

_Event = admin_v1.TimelineEvent
_State = admin_v1.GroupMessageState


def timeline(
    *events: tuple[str, int, str, int | None], states: dict[str, str] | None = None, until: int | None = None
) -> admin_v1.MessageTimeline:
    """Events as kind, time, group and until; `until` is that of the states."""
    found = admin_v1.MessageTimeline()
    for kind, time, group, end in events:
        event = found.events.add(kind=_Event.Kind.Value(kind), group=group, attempt=1)
        event.timestamp.FromMilliseconds(time)
        if end is not None:
            event.until.FromMilliseconds(end)
    for group, state in (states or {}).items():
        each = found.groups.add(group=group, state=_State.State.Value(state))
        if until is not None:
            each.invisible_until.FromMilliseconds(until)
    return found


@pytest.mark.parametrize(
    ("largest", "names"),
    [
        (90, ["100", "75", "50", "25", "0"]),
        (20, ["20", "15", "10", "5", "0"]),
        (21, ["25", "18.8", "12.5", "6.25", "0"]),
        (0.5, ["0.5", "0.38", "0.25", "0.12", "0"]),
    ],
)
def test_the_numbers_of_an_axis_have_no_decimals_that_are_zero(largest: float, names: list[str]) -> None:
    """Not 100 above 75.0."""
    drawn = str(chart("Rate", [0, 1000], [Line("in", [0.0, largest])], rate))
    assert re.findall(r'text-anchor="end">([\d.]+)<', drawn) == names


def test_sizes_on_an_axis_are_whole() -> None:
    """Not 20.0 KiB."""
    drawn = str(chart("Bytes", [0, 1000], [Line("in", [0.0, 20_000.0])], size, of_bytes=True))
    assert re.findall(r">([\d.]+ (?:KiB|bytes))</text>", drawn) == ["20 KiB", "15 KiB", "10 KiB", "5 KiB", "0 bytes"]


def test_a_delivery_that_is_acknowledged() -> None:
    """It waits, is delivered, and ends with a mark."""
    life = life_of(
        timeline(
            ("BORN", 0, "", None), ("STORED", 5, "", None), ("DELIVERED", 100, "g", 1100), ("FINISHED", 200, "g", None),
            states={"g": "FINISHED"},
        ),
        now=10_000,
    )  # fmt: skip
    broker, group = life.lanes
    assert [mark.kind for mark in broker.marks] == ["born", "stored"]
    assert [(bar.kind, bar.begin, bar.end) for bar in group.bars] == [("waiting", 5, 100), ("delivered", 100, 200)]
    assert [(mark.kind, mark.time) for mark in group.marks] == [("good", 200)]
    assert life.now is None


def test_a_delivery_whose_time_is_over_comes_again() -> None:
    """It is visible again between the two; the second is renewed, and still in flight."""
    life = life_of(
        timeline(
            ("STORED", 0, "", None), ("DELIVERED", 10, "g", 110), ("DELIVERED", 500, "g", 600),
            ("CHANGED", 550, "g", 5000), states={"g": "IN_FLIGHT"}, until=5000,
        ),
        now=1000,
    )  # fmt: skip
    group = life.lanes[1]
    assert [(bar.kind, bar.begin, bar.end) for bar in group.bars] == [
        ("waiting", 0, 10), ("expired", 10, 110), ("again", 110, 500), ("delivered", 500, 1000),
    ]  # fmt: skip
    assert [(mark.kind, mark.time) for mark in group.marks] == [("renewed", 550)]
    assert life.now == 1000


def test_a_renewed_delivery_is_over_at_its_new_time() -> None:
    """And not at the one that it began with."""
    life = life_of(
        timeline(
            ("STORED", 0, "", None), ("DELIVERED", 10, "g", 110), ("CHANGED", 50, "g", 300),
            ("DELIVERED", 500, "g", 600), states={"g": "FINISHED"},
        ),
        now=1000,
    )  # fmt: skip
    bars = [(bar.kind, bar.begin, bar.end) for bar in life.lanes[1].bars]
    assert bars == [("waiting", 0, 10), ("expired", 10, 300), ("again", 300, 500)]


def test_a_dead_letter_that_was_sent_again() -> None:
    """Both are marks of its group."""
    life = life_of(
        timeline(
            ("STORED", 0, "", None), ("DELIVERED", 10, "g", 20), ("DEAD_LETTER", 20, "g", None),
            ("RESENT", 90, "g", None), states={"g": "DEAD_LETTER"},
        ),
        now=1000,
    )  # fmt: skip
    assert [mark.kind for mark in life.lanes[1].marks] == ["bad", "resent"]


def test_a_delayed_message_waits_until_its_time() -> None:
    """As a bar of the broker; nothing is drawn for a group that cannot get it yet."""
    life = life_of(timeline(("DELAYED", 0, "", 5000), states={"g": "NOT_YET"}), now=1000)
    broker, group = life.lanes
    assert [(bar.kind, bar.begin, bar.end) for bar in broker.bars] == [("delayed", 0, 5000)]
    assert group.bars == []


def test_a_transaction_waits_for_its_decision() -> None:
    """Until now, or until it is committed."""
    life = life_of(timeline(("PREPARED", 0, "", None)), now=1000)
    assert [(bar.kind, bar.begin, bar.end) for bar in life.lanes[0].bars] == [("prepared", 0, 1000)]
    life = life_of(timeline(("PREPARED", 0, "", None), ("COMMITTED", 300, "", None)), now=1000)
    assert [(bar.kind, bar.begin, bar.end) for bar in life.lanes[0].bars] == [("prepared", 0, 300)]


def test_the_picture_escapes_names_and_is_bounded() -> None:
    """Whatever a group is called, and however often it got the message."""
    events = [("DELIVERED", 10 * number, "<script>", 10 * number + 5) for number in range(1, 2 * EVENTS_MAX)]
    life = life_of(timeline(("STORED", 0, "", None), *events, states={"<script>": "READY"}), now=10**6)
    picture = str(draw(life))
    assert "<script>" not in picture
    assert "&lt;script&gt;" in picture
    assert picture.count('<rect class="bar') <= EVENTS_MAX
    assert "now" in picture


def test_longer_gaps_take_more_room() -> None:
    """Each has its length written."""
    picture = str(
        draw(
            life_of(timeline(("BORN", 0, "", None), ("STORED", 3, "", None), ("DELIVERED", 60_003, "g", None)), 60_003)
        )
    )
    assert "+3 ms" in picture
    assert "+1 min" in picture


def test_a_message_of_which_nothing_is_known() -> None:
    """An empty picture, and no error."""
    assert "<svg" in str(draw(life_of(admin_v1.MessageTimeline(), now=0)))


def test_a_chart_keeps_gaps_and_peaks() -> None:
    """What is not known is no line; a peak of one second is seen among a thousand."""
    values = [1.0] * 500 + [math.nan] * 500 + [1.0] * 499 + [900.0]
    picture = str(chart("Rates", list(range(0, 1_500_000, 1000)), [Line("in", values, "in")], rate))
    assert picture.count("M") >= 2
    assert "1,000" in picture
    assert "newest: in 900" in picture
    assert "&#34;900&#34;" in picture  # among the joined points, for the pointer
    assert "nan" not in picture
    assert "Nothing is recorded yet" in str(chart("Rates", [], [], rate))
    assert str(sparkline([], "none")) == ""
    assert "<path" in str(sparkline([0.0, 0.0], "none"))


@pytest.mark.parametrize(
    ("value", "of_bytes", "top"),
    [(0, False, 1.0), (0.3, False, 0.5), (1, False, 1.0), (11, False, 20.0), (99, False, 100.0), (1500, True, 2048.0)],
)
def test_the_top_of_an_axis_is_round(value: float, of_bytes: bool, top: float) -> None:
    """And not below the value."""
    assert nice_top(value, of_bytes=of_bytes) == pytest.approx(top)


def test_json_is_indented_and_otherwise_unchanged() -> None:
    """Large numbers and repeated names stay as they are written."""
    body = b'{"a":1.10,"a":123456789012345678901234567890,"b":[],"c":{"d":["<x>",null]}}'
    text = bodies.shown(body).text.striptags()
    assert "".join(text.split()) == body.decode()
    assert "<x>" not in str(bodies.shown(body).text)


@pytest.mark.parametrize(
    ("body", "form", "forms"),
    [
        (b'{"a": 1}', "json", ("json", "text", "hex")),
        (b"[" * 100_000, "text", ("text", "hex")),
        (b"[" + b",".join([b"1"] * (bodies.WORDS_MAX // 2)) + b"]", "text", ("text", "hex")),  # one word too many
        (b"[" * 500 + b"0" + b"]" * 500, "json", ("json", "text", "hex")),
        (b"[" + b",".join([b"[" * 500 + b"]" * 500] * 5) + b"]", "text", ("text", "hex")),  # 2.5 million blanks
        (b"{broken", "text", ("text", "hex")),
        ("gr\u00fc\u00df".encode(), "text", ("text", "hex")),
        (b"\x00\x01\xff", "hex", ("hex",)),
        (bytes(300), "hex", ("hex",)),
        (b"", "text", ("text", "hex")),
    ],
)
def test_a_body_has_the_forms_that_are_possible(body: bytes, form: str, forms: tuple[str, ...]) -> None:
    """The best comes first."""
    shown = bodies.shown(body)
    assert (shown.form, shown.forms) == (form, forms)


def test_a_page_with_json_is_not_much_larger_than_the_json() -> None:
    """However deeply it is nested: 256 KiB became 225 MiB."""
    for depth in (1, 10, 50, 100, 900):
        nested = b"[" * depth + b"]" * depth
        for length in (19_000, bodies.TEXT_MAX - 2):
            body = b"[" + b",".join([nested] * (length // (len(nested) + 1))) + b"]"
            assert len(bodies.shown(body).text) <= 2 * bodies.INDENTED_MAX


def test_a_long_text_is_cut_between_characters() -> None:
    """Its beginning is shown."""
    body = b"x" + "\u00fc".encode() * bodies.TEXT_MAX
    shown = bodies.shown(body)
    assert (shown.form, shown.is_cut) == ("text", True)
    assert bodies.shown(bytes(range(256)) * 100).is_cut


def test_a_body_in_a_list_is_one_line() -> None:
    """Without control characters, and not too long."""
    assert bodies.one_line(b"a\n\tb\x1b[31m") == "a b [31m"
    assert len(bodies.one_line(b"x" * 1000)) == bodies.LINE_MAX + 1
    assert bodies.one_line(b"\xff\xfe") == "2 bytes: ff fe"


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("store.retention_hours", "h"), ("delivery.receive_bytes_max", "bytes"), ("store.segment_size", "bytes"),
        ("front.idle_seconds", "s"), ("store.disk_full_ratio", "of 1"), ("topics.queue_count", ""),
        ("store.scrub_bytes_per_second", "bytes per s"), ("broker.name", ""), ("limits.delay_seconds_max", "s"),
    ],
)  # fmt: skip
def test_the_name_of_a_setting_says_its_unit(name: str, unit: str) -> None:
    """Sizes and times always have one."""
    assert words.unit(name) == unit
