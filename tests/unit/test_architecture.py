"""The module map in docs/ARCHITECTURE.md names every module and no other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAP = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
PACKAGES = ("store/aerobee_store", "broker/aerobee_broker")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_is_on_the_map(package: str) -> None:
    """The map names every module and folder of the package."""
    modules = {path.name for path in (ROOT / package).glob("*.py")} - {"__init__.py", "__main__.py"}
    modules |= {f"{path.name}/" for path in (ROOT / package).iterdir() if (path / "__init__.py").exists()}
    assert [module for module in sorted(modules) if module not in MAP] == []


def test_every_module_on_the_map_exists() -> None:
    """Every module that the map names exists."""
    named = set(re.findall(r"\b[a-z_]+\.py\b", MAP))
    there = {path.name for folder in ("store", "broker", "client", "proto") for path in (ROOT / folder).rglob("*.py")}
    assert len(named) > 40
    assert named - there == set()


def test_a_broker_without_replication_loads_nothing_of_it() -> None:
    """Only the replication settings are loaded."""
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
    assert done.stdout.split() == ["aerobee_broker.replication", "aerobee_broker.replication.config"]


def test_every_file_in_where_to_look_exists() -> None:
    """The files in the table for newcomers exist."""
    answers = re.findall(r"`((?:store|broker)/[a-z_/]+\.py)`", MAP.partition("## Where to look")[2])
    assert len(answers) >= 10
    assert [answer for answer in answers if not (ROOT / answer).is_file()] == []
