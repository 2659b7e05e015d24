"""Source archives of installed packages, with their own tests, from the index once."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def source_of(package: str) -> Path:
    """The unpacked source of the installed release of a package. Skips the test if it cannot be had."""
    version = importlib.metadata.version(package)
    folder = ROOT / "build" / f"{package}-{version}"
    unpacked = folder / f"{package}-{version}"
    if not unpacked.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        done = subprocess.run(
            [*command, "--dest", str(folder), f"{package}=={version}"], capture_output=True, text=True
        )
        if done.returncode != 0:
            pytest.skip(f"the source archive of {package} {version} cannot be had: {done.stderr.strip()[-200:]}")
        (archive,) = folder.glob(f"{package}-*.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
    return unpacked
