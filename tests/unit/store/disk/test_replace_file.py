"""A small file that is replaced as a whole: identity, role, epochs, orders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aerobee_store.disk.file_system import DiskFileSystem, replace_file

pytestmark = pytest.mark.on_disk


def test_what_a_failed_attempt_left_is_not_used_again(tmp_path: Path) -> None:
    """Its sync failed, so that another sync of the same file would prove nothing."""
    left, witness = tmp_path / "role.tmp", tmp_path / "witness"
    left.write_bytes(b"left")
    os.link(left, witness)
    replace_file(DiskFileSystem(), tmp_path / "role", b"master")
    assert (tmp_path / "role").read_bytes() == b"master"
    assert witness.read_bytes() == b"left"
    assert not left.exists()
