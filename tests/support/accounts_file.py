"""A file of accounts, as `aerobee serve --accounts` takes it."""

from __future__ import annotations

import os
from pathlib import Path


def write_accounts(file: Path, text: str) -> Path:
    """Write the file, readable by its owner only, with a later time than it had. Returns it."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(text)
    file.chmod(0o600)
    os.utime(file, ns=(0, max(before + 1, file.stat().st_mtime_ns)))  # some file systems have coarse times
    return file
