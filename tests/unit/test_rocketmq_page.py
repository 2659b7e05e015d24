"""The page that compares with RocketMQ says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from aerobee_broker.config import BrokerConfig
from aerobee_broker.config.rocketmq_conf import INSTEAD, PROMISES, ROCKETMQ_KEYS, WRITE_MODE_KEYS
from aerobee_store.errors import ConfigError
from tests.support import rocketmq_page

_VALUES: Final = (
    *("true", "false", "7", "50", "32", "100000", "4096", "ASYNC_FLUSH", "1s 2s", "05", "other", "/other/place"),
    *("1048576", "6000000", "200", "460", "1024"),
)
"""Each key that has an effect changes its setting with one of these."""


def test_the_page_is_made_from_the_code() -> None:
    assert rocketmq_page.PAGE.read_text(encoding="utf-8") == rocketmq_page.page(), "run: make map"


def test_every_refused_key_stops_the_start() -> None:
    """With the words of the page."""
    rocketmq_page.check_refusals()


@pytest.mark.parametrize("name", sorted(PROMISES))
def test_a_key_is_either_taken_or_refused(name: str) -> None:
    assert name not in ROCKETMQ_KEYS


def _loaded(file: Path, name: str, value: str) -> BrokerConfig | None:
    """The configuration with this line of broker.conf; None if it is refused."""
    needed = "enableConsumeQueueExt = true\n" if name == "enableCalcFilterBitMap" else ""
    file.write_text(f"{needed}{name} = {value}\n")
    try:
        return BrokerConfig.load(rocketmq_conf=file)
    except ConfigError:
        return None


def test_no_key_is_ignored_in_silence(tmp_path: Path) -> None:
    """Every key of RocketMQ's broker changes a setting, or stops the start, or is named by it, as the page says."""
    file, defaults = tmp_path / "broker.conf", BrokerConfig.load()
    names = {"equal": 0, "refused": 0, "differs": 0}
    for row in rocketmq_page.of_keys():
        match = re.match(r"\| `([\w.]+)` \| (equal|refused|differs)", row)
        assert match is not None, row
        name, verdict = match.groups()
        names[verdict] += 1
        values = _VALUES if verdict == "equal" else ("true", "other")
        found = {value: _loaded(file, name, value) for value in values}
        taken = {value: config for value, config in found.items() if config is not None}
        ignored = {value for value, config in taken.items() if name in config.ignored_rocketmq_keys}
        if name in WRITE_MODE_KEYS:
            assert not ignored
        elif verdict == "equal":
            setting, _ = ROCKETMQ_KEYS[name]
            assert not ignored, name
            assert any(config.setting(setting) != defaults.setting(setting) for config in taken.values()), name
        elif verdict == "refused":
            accepted, _ = PROMISES[name]
            assert {value.lower() for value in taken} <= {value.lower() for value in accepted}, name
        else:
            assert ignored == set(values), name
    known = len((Path(rocketmq_page.__file__).parent / "rocketmq_keys.txt").read_text().splitlines())
    assert sum(names.values()) >= known == 499
    assert INSTEAD.keys() <= {line.split("`")[1] for line in rocketmq_page.of_keys() if " differs: " in line}
