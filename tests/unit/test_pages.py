"""Links between the pages lead somewhere, and plain questions are answered within two clicks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support import reference_pages
from tests.support.page_blocks import ROOT, pages
from tests.support.site import Page, broken_links, prepared

DOCS = ROOT / "docs"
HOME = DOCS / "README.md"
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)

# A question of a user, the heading under which the answer is, and words of the answer.
QUESTIONS = {
    "How do I start a broker?": ("start.md#a-broker", "aerobee serve --dev"),
    "How do I send from Java?": ("sdks.md#a-first-message-with-each-sdk", "newProducerBuilder"),
    "Can an answered message be lost?": ("concepts.md#what-is-safe-when", "survives a power cut"),
    "What happens to a message that fails?": ("concepts.md#retries-and-dead-letters", "17"),
    "How do I keep messages in order?": ("concepts.md#order", "--type FIFO"),
    "How do I send a message for later?": ("concepts.md#delay", "delivery_timestamp"),
    "Can a message arrive twice?": ("concepts.md#duplicates", "idempotent"),
    "Why does my consumer get nothing?": ("troubleshooting.md#my-consumer-gets-nothing", "aerobee group lag"),
    "What do I do when the disk is full?": ("disk-full.md#what-to-do-now", "store.retention_hours"),
    "Why are sends slow?": ("troubleshooting.md#sends-are-slow", "aerobee_store_sync_seconds"),
    "How do I resend dead letters?": ("commands.md#dead-letters", "resend"),
    "How do I add accounts and TLS?": ("operating.md#security", "TLS"),
    "How do I make a backup?": ("operating.md#backup", "aerobee store"),
    "How do I run two brokers with fail-over?": ("replication.md#automatic-fail-over", "etcd"),
    "Does Celery run on it?": ("frameworks.md#celery", "aerobee://"),
}


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")


def headings(page: Path) -> dict[str, str]:
    """The text below each heading, by anchor."""
    text = re.sub(r"(?ms)^```.*?^```$", lambda found: found[0].replace("\n#", "\n #"), page.read_text(encoding="utf-8"))
    parts = re.split(r"(?m)^(#+) (.*)$", text)
    found: dict[str, str] = {}
    for index in range(1, len(parts), 3):
        depth, below = len(parts[index]), [parts[index + 2]]
        for later in range(index + 3, len(parts), 3):
            if len(parts[later]) <= depth:
                break
            below += parts[later + 1 : later + 3]
        found.setdefault(slug(parts[index + 1]), "\n".join(below))
    return found


def links(page: Path) -> list[tuple[Path, str]]:
    """The files that a page links to, with anchors."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    targets = [urlsplit(link) for link in _LINK.findall(text)]
    return [
        ((page.parent / each.path).resolve() if each.path else page, each.fragment)
        for each in targets
        if not each.scheme
    ]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    """Each relative link names a file of this repository, and a heading of it."""
    broken = [
        f"{target.relative_to(ROOT)}#{anchor}"
        for target, anchor in links(page)
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in headings(target))
    ]
    assert broken == []


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_within_two_clicks(question: str) -> None:
    """From the first page, two links lead to the heading with the answer, or to its page."""
    place, answer = QUESTIONS[question]
    name, _, anchor = place.partition("#")
    assert answer in headings(DOCS / name)[anchor]
    first = links(HOME)
    second = [link for target, _ in first if target.suffix == ".md" and target.exists() for link in links(target)]
    assert DOCS / name in [target for target, _ in (*first, *second)]
    assert len(QUESTIONS) == 15


def test_every_page_is_reached_from_the_first_one() -> None:
    """No page of docs/ is without a way to it."""
    reached, waiting = {HOME}, [HOME]
    while waiting:
        for target, _ in links(waiting.pop()):
            if target.suffix == ".md" and target.is_relative_to(DOCS) and target not in reached:
                reached.add(target)
                waiting.append(target)
    assert sorted(page.relative_to(DOCS).as_posix() for page in set(DOCS.rglob("*.md")) - reached) == []


def test_the_sites_link_check_finds_broken_links(tmp_path: Path) -> None:
    """A missing page, a missing heading and a missing picture are reported; what exists is not."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text('<h1 id="top">A</h1>')
    (tmp_path / "index.html").write_text(
        '<a href="a/">1</a><a href="a/#top">2</a><a href="https://example.org/x">3</a>'
        '<a href="b/">4</a><a href="a/#gone">5</a><img src="c.svg">'
    )
    assert broken_links(tmp_path) == ["index.html -> b/", "index.html -> a/#gone", "index.html -> c.svg"]
    assert Page('<p id="x">').anchors == {"x"}


def test_links_out_of_the_pages_become_texts() -> None:
    """The site has the pages only; a link to a program is its text there."""
    text = "[code](../store/x.py), [page](client.md), [web](https://example.org), ![picture](images/order.svg)"
    assert prepared(text, HOME) == "code, [page](client.md), [web](https://example.org), ![picture](images/order.svg)"


@pytest.mark.parametrize("name", reference_pages.PAGES)
def test_pages_made_from_the_code_do_not_tell_where_they_were_made(name: str) -> None:
    """No value of the environment, such as a default that is read from it, and no folder."""
    text = reference_pages.PAGES[name]()
    assert str(reference_pages.ROOT) not in text
    assert os.environ["PATH"] not in text


def test_expectations_name_commands_that_exist() -> None:
    """The column "Now" says `aerobee COMMAND` and `COMMAND --option` of the real command line."""
    rows = re.findall(r"(?m)^\| .* \| .* \| .* \| (.*) \|$", (DOCS / "expectations.md").read_text(encoding="utf-8"))
    reference = (DOCS / "command-reference.md").read_text(encoding="utf-8")
    named = [name for row in rows for name in re.findall(r"`aerobee ([a-z]+(?: [a-z]+)?)", row)]
    assert len(named) >= 4
    assert [name for name in named if not re.search(rf"(?m)^## aerobee {name}\b", reference)] == []
    options = [option for row in rows for option in re.findall(r"`[a-z ]*(--[a-z-]+)", row)]
    assert [option for option in options if f"`{option}" not in reference] == []
