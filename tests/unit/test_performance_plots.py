"""The plots of docs/performance.md are drawn from its tables."""

from __future__ import annotations

import re

import pytest

from tests.support.performance_plots import PAGE, Panel, plots, values


def test_a_bar_has_the_number_of_its_cell() -> None:
    """Cells have several numbers, with separators of thousands and units; an empty cell has no bar."""
    rows = [["1", "8,738, 59 us", "1,841.5 / 349 us"], ["1, async", "", "10 us"]]
    panel = Panel("", {"one": ("1", 0), "async": ("1, async", 0)}, {"a": (1, 0), "b": (1, 1), "c": (2, 1)})
    assert list(values(panel, rows)) == [("one", "a", "8,738"), ("one", "b", "59"), ("one", "c", "349")]


def test_another_figure_is_another_plot() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, after = plots(page), plots(page.replace("| Kafka | 212,147 |", "| Kafka | 412,147 |"))
    assert {name for name in before if before[name] != after[name]} == {"beside-kafka.svg"}
    assert "412,147" in after["beside-kafka.svg"]


@pytest.mark.parametrize(
    ("pattern", "text", "error"),
    [
        ("## Replication", "## Copies", "Copies: say in PLOTS what is drawn"),
        (r"!\[.*replication\.svg\)", "", "Replication: the section does not show"),
        (r"\| single sends, gRPC", "| gRPC", "no row of the table starts with 'single sends, gRPC'"),
    ],
)
def test_a_section_without_its_plot_is_an_error(pattern: str, text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        plots(re.sub(pattern, text, PAGE.read_text(encoding="utf-8")))
