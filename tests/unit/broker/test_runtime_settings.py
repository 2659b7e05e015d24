"""Settings that change while the broker runs: what overrules what, and what a failed save leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config import BrokerConfig, setting_names, setting_of_text, setting_text
from aerobee_broker.runtime_settings import CHANGEABLE, FILE_NAME, RuntimeSettings
from aerobee_store import ConfigError
from aerobee_store.disk.file_system import DiskFileSystem

NAME = "store.retention_hours"


async def at_once(function: Callable[..., object], *arguments: Any) -> object:
    """In place of the disk thread."""
    await asyncio.sleep(0)
    return function(*arguments)


def load(directory: Path, **sources: Any) -> tuple[BrokerConfig, RuntimeSettings]:
    """The configuration and settings of a broker that starts on this directory."""
    (directory / "config").mkdir(exist_ok=True)
    flags = {"store.directory": str(directory), **sources.pop("flags", {})}
    config = BrokerConfig.load(flags=flags, **sources)
    return config, RuntimeSettings.load(config, DiskFileSystem(), at_once)


def saved(directory: Path) -> dict[str, str]:
    """What the file has."""
    found: dict[str, str] = json.loads((directory / "config" / FILE_NAME).read_text())["settings"]
    return found


async def test_saved_overrules_files_and_yields_to_environment_and_flags(tmp_path: Path) -> None:
    """Each source in its place, and each named."""
    toml = tmp_path / "aerobee.toml"
    toml.write_text("[store]\nretention_hours = 48\nretention_batch_max = 3\n")
    config, settings = load(tmp_path, config_file=toml)
    assert (config.store.retention_hours, settings.all(NAME)[0].source) == (48.0, "file")
    await settings.change({NAME: "24"})
    assert (config.store.retention_hours, settings.all(NAME)[0].source) == (24.0, "saved")
    config, settings = load(tmp_path, config_file=toml)
    assert (config.store.retention_hours, settings.all(NAME)[0].default) == (24.0, "72")
    for source, where in (
        ({"environment": {"AEROBEE_STORE_RETENTION_HOURS": "12"}}, "environment"),
        ({"flags": {NAME: 12}}, "flag"),
    ):
        config, settings = load(tmp_path, config_file=toml, **source)
        (setting,) = settings.all(NAME)
        assert (config.store.retention_hours, setting.source, setting.changeable) == (12.0, where, False)
        with pytest.raises(ConfigError, match=where):
            await settings.change({NAME: "6"})
    config, settings = load(tmp_path, config_file=toml)
    await settings.change({}, [NAME])
    assert (config.store.retention_hours, saved(tmp_path)) == (48.0, {})


async def test_a_save_that_fails_changes_nothing(tmp_path: Path) -> None:
    """Neither now nor after the next start."""
    config, _ = load(tmp_path)

    async def full(function: Callable[..., object], *arguments: Any) -> object:
        raise OSError(28, "No space left on device")

    settings = RuntimeSettings.load(config, DiskFileSystem(), full)
    with pytest.raises(OSError, match="No space"):
        await settings.change({NAME: "24"})
    assert config.store.retention_hours == 72.0
    assert settings.all(NAME)[0].source == "default"
    assert load(tmp_path)[0].store.retention_hours == 72.0


async def test_changes_at_the_same_time(tmp_path: Path) -> None:
    """None of them is lost."""
    config, settings = load(tmp_path)
    names = ("limits.properties_size_max", "limits.user_property_count_max", "topics.queue_count")
    await asyncio.gather(*(settings.change({name: "7"}) for name in names))
    assert saved(tmp_path) == dict.fromkeys(names, "7")
    assert [config.setting(name) for name in names] == [7, 7, 7]


@pytest.mark.parametrize(
    "content",
    [
        '{"settings":{"store.nonsense":"1"}}',
        '{"settings":{"store.directory":"/"}}',
        '{"settings":{"store.retention_hours":"-1"}}',
    ],
)
async def test_a_file_that_cannot_be(tmp_path: Path, content: str) -> None:
    """The start stops and names the file; nothing is guessed."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / FILE_NAME).write_text(content)
    with pytest.raises(ConfigError, match=FILE_NAME):
        load(tmp_path)


async def test_the_caller_keeps_its_configuration(tmp_path: Path) -> None:
    """A copy shares nothing that a change could reach."""
    original = BrokerConfig.load(flags={"store.directory": str(tmp_path)})
    (tmp_path / "config").mkdir()
    copy = original.copy()
    assert copy == original
    await RuntimeSettings.load(copy, DiskFileSystem(), at_once).change({NAME: "1"})
    assert (original.store.retention_hours, copy.store.retention_hours) == (72.0, 1.0)


async def test_each_can_be_set_as_it_is_shown(tmp_path: Path) -> None:
    """Text and value agree, for whatever type."""
    config, settings = load(tmp_path)
    texts = {name: setting_text(config.setting(name)) for name in CHANGEABLE}
    texts |= {"listen.advertise": "a:1", "topics.auto_create": "true", "groups.auto_create": "false"}
    await settings.change(texts)
    assert {name: setting_text(config.setting(name)) for name in CHANGEABLE} == texts
    assert {setting.name for setting in settings.all() if setting.source == "saved"} == CHANGEABLE


def test_every_setting_has_a_text() -> None:
    """What is shown could be written into a file."""
    config = BrokerConfig.load()
    for name in setting_names():
        if text := setting_text(config.setting(name)):
            assert setting_of_text(name, text) == config.setting(name)
