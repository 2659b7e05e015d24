"""A broker that dies and returns, and a defect of a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_client.testing import BrokerProcess
from tests.console.support import text_of, visiting
from tests.support.in_process_broker import in_process_broker

pytestmark = pytest.mark.timeout(300)


async def test_a_broker_that_dies_and_returns(aerobee_broker: BrokerProcess) -> None:
    """The page says so and asks again by itself, also without a script; then it is back, and the session too."""
    async with visiting(aerobee_broker.endpoint) as visitor:
        assert (await visitor.get("/topics")).status_code == 200
        aerobee_broker.kill()
        page = await visitor.get("/topics")
        assert page.status_code == 503
        assert "The broker does not answer" in text_of(page)
        assert 'http-equiv="refresh"' in page.text
        assert "data-retry" in page.text
        aerobee_broker.restart()
        for _ in range(200):
            page = await visitor.get("/topics")
            if page.status_code == 200:
                break
        assert page.status_code == 200


async def test_a_defect_becomes_a_page_and_a_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a traceback for the visitor."""
    async with in_process_broker(tmp_path) as broker, visiting(broker.endpoint) as visitor:
        monkeypatch.setattr("aerobee_client.admin.Admin.describe_topic", None)
        page = await visitor.get("/topics/orders")
        assert page.status_code == 500
        assert "This is a defect." in text_of(page)
        assert "NoneType" not in page.text
        assert "content-security-policy" in page.headers
    assert "TypeError" in caplog.text
