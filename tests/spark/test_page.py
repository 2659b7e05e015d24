"""The first example of docs/pipeline.md gives the output that the page shows."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import Message, connect
from aerobee_client.testing import run_broker

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"


def test_the_first_example(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The messages are those that the page's commands send."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = {kind: body for kind, body in reversed(re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL))}
    found = re.search(r"for city in ([\w ]+); do", blocks["console"])
    assert found is not None
    with run_broker(tmp_path) as broker:

        async def send() -> None:
            async with connect(broker.endpoint) as client:
                bodies = [f'{{"city": "{city}"}}'.encode() for city in found[1].split()]
                await client.producer().send_many([Message(topic="orders", body=body, tag="paid") for body in bodies])

        asyncio.run(send())
        assert "127.0.0.1:8081" in blocks["python"]
        capsys.readouterr()
        exec(blocks["python"].replace("127.0.0.1:8081", broker.endpoint), {})
    assert capsys.readouterr().out.strip() == blocks["text"].strip()
