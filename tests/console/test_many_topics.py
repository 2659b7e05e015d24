"""The console of a broker with 5,000 topics: what it shows is a page of what the broker sorted and searched."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from aerobee_client import Message, connect
from tests.console.scenario import make_topics
from tests.console.support import rows_of, text_of, visiting
from tests.support.in_process_broker import in_process_broker

pytestmark = pytest.mark.timeout(300)

COUNT = 5000


async def test_pages_of_five_thousand_topics(tmp_path: Path) -> None:
    """Each page holds a bounded number; the busiest come first if asked for; a search finds one among all."""
    async with (
        in_process_broker(tmp_path / "store") as broker,
        connect(broker.endpoint) as client,
        visiting(broker.endpoint) as visitor,
    ):
        await make_topics(broker.endpoint, COUNT)
        await client.producer().send(Message(topic="topic-3210", body=b"x"))
        answer = await visitor.get("/topics")
        assert f"{COUNT:,}" in text_of(answer)
        rows = rows_of(answer)
        assert 20 <= len(rows) <= 200
        assert rows[0][0] == "topic-0000"
        assert len(answer.content) < 300_000
        [found] = rows_of(await visitor.get("/topics?q=3210"))
        assert found[0] == "topic-3210"
        [first, *_] = rows_of(await visitor.get("/topics?sort=messages&down=1"))
        assert first[0] == "topic-3210"
        seen: set[str] = set()
        page = "/topics"
        while page:
            answer = await visitor.get(page)
            names = {row[0] for row in rows_of(answer)}
            assert not names & seen
            seen |= names
            page = next_page(answer.text)
            if len(seen) > 500:  # the others are alike
                return
        raise AssertionError(f"the pages end after {len(seen)} topics")


def next_page(page: str) -> str:
    """The address behind "Next"; empty on the last page."""
    found = re.search(r'href="([^"]*[?&]page=[^"]*)"[^>]*>\s*Next', html.unescape(page))
    return "" if found is None else found[1]
