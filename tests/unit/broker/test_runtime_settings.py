"""Settings changed at run time: precedence of sources, and failed saves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config import BrokerConfig, Settings, setting_names, setting_of_text, setting_text
from aerobee_broker.tables.runtime_settings import CHANGEABLE, FILE_NAME, RuntimeSettings
from aerobee_store import ConfigError, StoreConfig
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.stats import StoreStats

NAME = "store.retention_hours"


class Store:
    """A store for saving settings and publishing them."""

    def __init__(self, failure: OSError | None = None) -> None:
        self.file_system = DiskFileSystem()
        self.stats = StoreStats()
        self.config: StoreConfig | None = None
        self._failure = failure

    async def in_disk_thread(self, function: Callable[[object], None], content: object, /) -> None:
        """Run the function, instead of the disk thread."""
        await asyncio.sleep(0)
        if self._failure is not None:
            raise self._failure
        function(content)

    def reconfigure(self, config: StoreConfig) -> None:
        """Keep the published configuration."""
        self.config = config


def load(directory: Path, **sources: Any) -> tuple[Settings, RuntimeSettings]:
    """The settings of a broker that starts on this directory, and its runtime settings."""
    (directory / "config").mkdir(exist_ok=True)
    flags = {"store.directory": str(directory), **sources.pop("flags", {})}
    settings = Settings(BrokerConfig.load(flags=flags, **sources))
    return settings, RuntimeSettings.load(settings, Store())


def saved(directory: Path) -> dict[str, str]:
    """The settings in the file."""
    found: dict[str, str] = json.loads((directory / "config" / FILE_NAME).read_text())["settings"]
    return found


async def test_saved_settings_rank_between_files_and_environment(tmp_path: Path) -> None:
    """Saved settings rank between files and the environment, and each setting names its source."""
    toml = tmp_path / "aerobee.toml"
    toml.write_text("[store]\nretention_hours = 48\nretention_batch_max = 3\n")
    current, settings = load(tmp_path, config_file=toml)
    assert (current.current.store.retention_hours, settings.all(NAME)[0].source) == (48.0, "file")
    await settings.change({NAME: "24"})
    assert (current.current.store.retention_hours, settings.all(NAME)[0].source) == (24.0, "saved")
    current, settings = load(tmp_path, config_file=toml)
    assert (current.current.store.retention_hours, settings.all(NAME)[0].default) == (24.0, "72")
    for source, where in (
        ({"environment": {"AEROBEE_STORE_RETENTION_HOURS": "12"}}, "environment"),
        ({"flags": {NAME: 12}}, "flag"),
    ):
        current, settings = load(tmp_path, config_file=toml, **source)
        (setting,) = settings.all(NAME)
        assert (current.current.store.retention_hours, setting.source, setting.changeable) == (12.0, where, False)
        with pytest.raises(ConfigError, match=where):
            await settings.change({NAME: "6"})
    current, settings = load(tmp_path, config_file=toml)
    await settings.change({}, [NAME])
    assert (current.current.store.retention_hours, saved(tmp_path)) == (48.0, {})


async def test_a_save_that_fails_changes_nothing(tmp_path: Path) -> None:
    """Neither the running settings nor those of the next start change."""
    current, _ = load(tmp_path)
    settings = RuntimeSettings.load(current, Store(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        await settings.change({NAME: "24"})
    assert current.current.store.retention_hours == 72.0
    assert settings.all(NAME)[0].source == "default"
    assert load(tmp_path)[0].current.store.retention_hours == 72.0


async def test_changes_at_the_same_time(tmp_path: Path) -> None:
    """Concurrent changes are all saved."""
    current, settings = load(tmp_path)
    names = ("limits.properties_size_max", "limits.user_property_count_max", "topics.queue_count")
    await asyncio.gather(*(settings.change({name: "7"}) for name in names))
    assert saved(tmp_path) == dict.fromkeys(names, "7")
    assert [current.current.setting(name) for name in names] == [7, 7, 7]


@pytest.mark.parametrize(
    "content",
    [
        '{"settings":{"store.nonsense":"1"}}',
        '{"settings":{"store.directory":"/"}}',
        '{"settings":{"store.retention_hours":"-1"}}',
    ],
)
async def test_an_invalid_file(tmp_path: Path, content: str) -> None:
    """An invalid file stops the start with an error that names it."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / FILE_NAME).write_text(content)
    with pytest.raises(ConfigError, match=FILE_NAME):
        load(tmp_path)


async def test_a_change_publishes_a_snapshot(tmp_path: Path) -> None:
    """A change replaces the whole configuration at once, and the store gets its part."""
    (tmp_path / "config").mkdir()
    before = BrokerConfig.load(flags={"store.directory": str(tmp_path)})
    settings, store = Settings(before), Store()
    await RuntimeSettings.load(settings, store).change({NAME: "1", "topics.queue_count": "3"})
    assert (before.store.retention_hours, before.topics.queue_count) == (72.0, 8)
    assert (settings.current.store.retention_hours, settings.current.topics.queue_count) == (1.0, 3)
    assert store.config is settings.current.store


async def test_each_setting_accepts_its_own_text(tmp_path: Path) -> None:
    """Each setting accepts the text that it is shown as."""
    current, settings = load(tmp_path)
    texts = {name: setting_text(current.current.setting(name)) for name in CHANGEABLE}
    texts |= {"listen.advertise": "a:1", "topics.auto_create": "true", "groups.auto_create": "false"}
    await settings.change(texts)
    assert {name: setting_text(current.current.setting(name)) for name in CHANGEABLE} == texts
    assert {setting.name for setting in settings.all() if setting.source == "saved"} == CHANGEABLE


def test_every_setting_has_a_text() -> None:
    """The text of every setting parses to its value."""
    config = BrokerConfig.load()
    for name in setting_names():
        if text := setting_text(config.setting(name)):
            assert setting_of_text(name, text) == config.setting(name)
