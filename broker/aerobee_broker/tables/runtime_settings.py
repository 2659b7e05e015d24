"""Settings that are changed while the broker runs, and kept over restarts.

Configurations are frozen: a change publishes another snapshot as `Settings.current`. Only settings in CHANGEABLE can
change; each of them is read at every use. A change is in `config/aerobeeSettings.json` of the store before it takes
effect. At a start, saved settings override the files; the environment and flags override saved settings.

    {"settings": {"store.retention_hours": "24"}}
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol, Self

from msgspec import Struct

from aerobee_broker.config import (
    ENVIRONMENT_PREFIX,
    BrokerConfig,
    Settings,
    Source,
    setting_names,
    setting_of_text,
    setting_text,
)
from aerobee_broker.tables.json_fields import JsonFields
from aerobee_store.config import StoreConfig
from aerobee_store.errors import ConfigError
from aerobee_store.stats import StoreStats
from aerobee_store.tables import java_json
from aerobee_store.tables.json_table import JsonTable, TableFiles

_log = logging.getLogger(__name__)

FILE_NAME: Final = "aerobeeSettings.json"
CHANGEABLE: Final = frozenset(
    {
        *("topics.auto_create", "topics.queue_count", "groups.auto_create"),
        *("limits.user_property_count_max", "limits.properties_size_max", "limits.delay_seconds_max"),
        "limits.table_bytes_max",
        *("listen.advertise", "listen.leave_seconds", "listen.drain_seconds"),
        *("delivery.initial_position", "delivery.receive_count_max", "delivery.poll_seconds_max"),
        *("delivery.poll_reserve_seconds", "delivery.invisible_seconds_min", "delivery.invisible_seconds_max"),
        *("delivery.auto_renew_seconds_max", "delivery.in_flight_per_group_max", "delivery.fifo_waiting_max"),
        *("delivery.client_gone_seconds", "delivery.snapshot_event_count", "delivery.priority_waiting_max"),
        "delivery.lite_subscriptions_max",
        *("transactions.timeout_seconds", "transactions.check_interval_seconds", "transactions.check_max"),
        "transactions.age_hours_max",
        *("store.retention_hours", "store.delete_when_hours", "store.retention_batch_max", "store.clean_forcibly"),
        *("store.disk_clean_ratio", "store.disk_force_clean_ratio", "store.disk_full_ratio"),
    }
)
_DECIDED_AT_START: Final = ("environment", "flag")


class Setting(Struct, frozen=True):
    """One setting as shown to users; values as text."""

    name: str
    value: str
    default: str
    source: Source
    changeable: bool


class ConfiguredStore(Protocol):
    """The store as needed by run-time settings."""

    @property
    def file_system(self) -> TableFiles:
        """Where settings are saved."""

    @property
    def stats(self) -> StoreStats:
        """Statistics that count unreadable tables."""

    def in_disk_thread(self, function: Callable[[object], None], content: object, /) -> Awaitable[None]:
        """Run a blocking function."""

    def reconfigure(self, config: StoreConfig) -> None:
        """Use these settings from now on."""


class RuntimeSettings:
    """Changes the settings of a running broker, and saves them in its store."""

    def __init__(self, settings: Settings, store: ConfiguredStore, file: JsonTable) -> None:
        self._settings = settings
        self._store = store
        self._file = file
        self._at_start = settings.current
        self._saved: dict[str, str] = {}
        self._changing = asyncio.Lock()
        self._defaults = BrokerConfig.load()

    @classmethod
    def load(cls, settings: Settings, store: ConfiguredStore) -> Self:
        """Publish the saved settings. Raises ConfigError, TableFormatError, UnreadableTableError or OSError."""
        config = settings.current
        path = config.store.directory / "config" / FILE_NAME
        runtime = cls(settings, store, JsonTable(store.file_system, path, stats=store.stats))
        content = runtime._file.load()
        if content is not None:
            saved = JsonFields(FILE_NAME, content).texts("settings")
            try:
                changed = runtime._with_saved(saved)
            except ConfigError as error:
                raise ConfigError(f"{path}: {error}; correct the file, or remove the entry from it") from None
            runtime._publish(changed, saved)
            for name in saved:
                if config.sources.get(name) in _DECIDED_AT_START:
                    _log.warning("saved setting has no effect name=%s overridden_by=%s", name, config.sources[name])
        return runtime

    def all(self, prefix: str = "") -> list[Setting]:
        """All settings in order of names, or those whose names begin with `prefix`."""
        return [self._setting(name) for name in setting_names() if name.startswith(prefix)]

    async def change(self, values: Mapping[str, str], unset: Iterable[str] = ()) -> list[Setting]:
        """Set settings, and restore others to their values without saved changes; all or none. Returns all settings.

        Durable on return. Raises ConfigError for an invalid change, and OSError; nothing has changed then.
        """
        unset = set(unset)
        if both := sorted(values.keys() & unset):
            raise ConfigError(f"{both[0]}: both set and unset; choose one")
        for name in (*values, *sorted(unset)):
            self._check_changeable(name)
        async with self._changing:
            saved = {name: value for name, value in self._saved.items() if name not in unset} | dict(values)
            changed = self._with_saved(saved)
            if saved != self._saved:
                content = java_json.Bean(settings={name: saved[name] for name in sorted(saved)})
                await self._store.in_disk_thread(self._file.save, content)
            self._publish(changed, saved)
        return [self._setting(name) for name in sorted({*values, *unset})]

    def _check_changeable(self, name: str) -> None:
        if name not in setting_names():
            setting_of_text(name, "")  # raises an error that lists the known names
        if name not in CHANGEABLE:
            raise ConfigError(
                f"{name}: cannot change while the broker runs; change it in the configuration file and restart"
            )
        source = self._at_start.sources.get(name)
        if source in _DECIDED_AT_START:
            variable = ENVIRONMENT_PREFIX + name.replace(".", "_").upper()
            where = f"the environment ({variable})" if source == "environment" else "a flag of `aerobee serve`"
            raise ConfigError(f"{name}: {where} overrides it; change it there and restart the broker")

    def _with_saved(self, saved: Mapping[str, str]) -> BrokerConfig:
        """The configuration of the start with these settings, checked as a whole."""
        values = {}
        for name, text in saved.items():
            if name not in CHANGEABLE:
                raise ConfigError(f"{name}: cannot change while the broker runs; edit the configuration and restart")
            value = setting_of_text(name, text)
            if self._at_start.sources.get(name) not in _DECIDED_AT_START:
                values[name] = value
        return self._at_start.with_settings(values)

    def _publish(self, config: BrokerConfig, saved: Mapping[str, str]) -> None:
        before, self._settings.current = self._settings.current, config
        self._saved = dict(saved)
        self._store.reconfigure(config.store)
        for name in sorted(CHANGEABLE):
            old, new = before.setting(name), config.setting(name)
            if old != new:
                _log.info("setting changed name=%s value=%s before=%s", name, setting_text(new), setting_text(old))

    def _setting(self, name: str) -> Setting:
        source = self._at_start.sources.get(name, "default")
        if name in self._saved and source not in _DECIDED_AT_START:
            source = "saved"
        changeable = name in CHANGEABLE and source not in _DECIDED_AT_START
        value, default = self._settings.current.setting(name), self._defaults.setting(name)
        return Setting(name, setting_text(value), setting_text(default), source, changeable)
