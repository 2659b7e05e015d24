"""The settings of the running broker: shows them with their sources, and changes them where that is safe."""

from __future__ import annotations

from typing import Final

from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Source
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.processors.administration.wire import OK
from aerobee_broker.tables.runtime_settings import RuntimeSettings, Setting
from aerobee_proto import admin_v1, v2
from aerobee_store.errors import ConfigError

_SOURCES: Final[dict[Source, admin_v1.SettingSource.ValueType]] = {
    "default": admin_v1.SettingSource.SETTING_SOURCE_DEFAULT,
    "rocketmq-conf": admin_v1.SettingSource.SETTING_SOURCE_ROCKETMQ_CONF,
    "file": admin_v1.SettingSource.SETTING_SOURCE_FILE,
    "saved": admin_v1.SettingSource.SETTING_SOURCE_SAVED,
    "environment": admin_v1.SettingSource.SETTING_SOURCE_ENVIRONMENT,
    "flag": admin_v1.SettingSource.SETTING_SOURCE_FLAG,
}


class ConfigurationAdministration:
    """One method per RPC."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings

    async def get(self, request: admin_v1.GetConfigurationRequest, _: Client) -> admin_v1.GetConfigurationResponse:
        found = [_to_wire(setting) for setting in self._settings.all(request.prefix)]
        if not found:
            raise InvalidRequestError(
                v2.Code.NOT_FOUND,
                f"no setting begins with {request.prefix[:80]!r}; `aerobee config show` lists all of them",
            )
        return admin_v1.GetConfigurationResponse(status=OK, settings=found)

    async def update(
        self, request: admin_v1.UpdateConfigurationRequest, _: Client
    ) -> admin_v1.UpdateConfigurationResponse:
        if not request.set and not request.unset:
            raise InvalidRequestError(v2.Code.BAD_REQUEST, "nothing to set or unset; name a setting")
        try:
            changed = await self._settings.change(request.set, request.unset)
        except ConfigError as error:
            raise InvalidRequestError(v2.Code.BAD_REQUEST, str(error)) from None
        return admin_v1.UpdateConfigurationResponse(status=OK, settings=[_to_wire(setting) for setting in changed])


def _to_wire(setting: Setting) -> admin_v1.Setting:
    return admin_v1.Setting(
        name=setting.name,
        value=setting.value,
        default_value=setting.default,
        source=_SOURCES[setting.source],
        changeable=setting.changeable,
    )
