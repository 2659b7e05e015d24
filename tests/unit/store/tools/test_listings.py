"""Directories are read again only after a change."""

from __future__ import annotations

import os
from pathlib import Path

from aerobee_store.tools.listings import Listing, Listings

SECOND = 1_000_000_000


def test_a_directory_is_read_again_after_a_change(tmp_path: Path) -> None:
    """The modification time decides, unless it is too recent to be reliable."""
    now = 1_000 * SECOND
    listings = Listings(clock=lambda: now)

    def names() -> Listing[list[str]]:
        return Listing(sorted(path.name for path in tmp_path.iterdir()))

    (tmp_path / "a").touch()
    os.utime(tmp_path, ns=(0, 999 * SECOND))
    assert listings.get(tmp_path, names) == (["a"], True)
    (tmp_path / "b").touch()
    os.utime(tmp_path, ns=(0, 999 * SECOND))  # a change within the resolution of the file system's clock
    assert listings.get(tmp_path, names) == (["a", "b"], True)
    now += 10 * SECOND
    assert listings.get(tmp_path, names) == (["a", "b"], True)
    assert listings.get(tmp_path, names) == (["a", "b"], False)
    (tmp_path / "a").unlink()
    os.utime(tmp_path, ns=(0, 1_001 * SECOND))
    assert listings.get(tmp_path, names) == (["b"], True)


def test_results_that_may_change_are_not_cached(tmp_path: Path) -> None:
    """An empty file gets its size without a change of its directory, and a missing directory may appear."""
    os.utime(tmp_path, ns=(0, SECOND))
    listings = Listings(clock=lambda: 1_000 * SECOND)
    assert listings.get(tmp_path, lambda: Listing("half", complete=False)) == ("half", True)
    assert listings.get(tmp_path, lambda: Listing("whole")) == ("whole", True)
    assert listings.get(tmp_path, lambda: Listing("other")) == ("whole", False)
    for _ in range(2):
        assert listings.get(tmp_path / "none", lambda: Listing("none")) == ("none", True)
