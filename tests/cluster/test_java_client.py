"""The released Java client of RocketMQ 4.9, unmodified, with a broker that is its own name server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.conftest import MARKS
from tests.cluster.java_program import Release

pytestmark = MARKS


@pytest.mark.parametrize(
    "stories",
    [
        pytest.param(("send", "push", "query", "filter", "delay"), id="send-and-push"),
        pytest.param(("retry", "orderly", "broadcast", "litepull", "rebalance"), id="consumers"),
        pytest.param(("transaction",), id="transactions"),
    ],
)
def test_stories_of_the_java_client(
    release: Release, remoting_address: str, tmp_path: Path, stories: tuple[str, ...]
) -> None:
    """Every story ends well; src/RemotingStories.java tells them."""
    done = release.run(tmp_path / "home", "RemotingStories", remoting_address, *stories)
    told = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "failed "))]
    assert told == [f"ok {story}" for story in stories], done.stdout[-2000:] + done.stderr[-4000:]
    assert done.returncode == 0
