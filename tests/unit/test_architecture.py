"""What docs/ARCHITECTURE.md says about the modules is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAP = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_a_broker_without_replication_loads_nothing_of_it() -> None:
    """Nothing of it is loaded: its settings are elsewhere."""
    code = (
        "import asyncio, sys, tempfile, pathlib\n"
        "from aerobee_broker import server\n"
        "from aerobee_broker.config import BrokerConfig\n"
        "async def main():\n"
        "    stop = asyncio.Event()\n"
        "    with tempfile.TemporaryDirectory() as directory:\n"
        "        config = BrokerConfig.tiny(pathlib.Path(directory) / 'store')\n"
        "        await server.run(config, stop, lambda listening, metrics: stop.set())\n"
        "asyncio.run(main())\n"
        "print(*sorted(name for name in sys.modules if name.startswith('aerobee_broker.replication')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == []


def test_every_file_in_where_to_look_exists() -> None:
    """The files in the table for newcomers exist."""
    answers = re.findall(r"`((?:store|broker)/[a-z_/]+\.py)`", MAP.partition("## Where to look")[2])
    assert len(answers) >= 10
    assert [answer for answer in answers if not (ROOT / answer).is_file()] == []
