"""`aerobee config`: the settings of a running broker."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import options, output
from aerobee_broker.commands.terminal.options import new_command, with_client

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands
    from aerobee_proto import admin_v1

_EXAMPLES = """\
  aerobee config show
  aerobee config show store. --changed
  aerobee config set store.retention_hours=24 store.delete_when_hours=2,3,4
  aerobee config unset store.retention_hours
  aerobee config log-level DEBUG
"""
_DETAILS = "Sources of a value: default, rocketmq-conf, file, saved (`config set`), environment, flag."
_SET_DETAILS = (
    "Changes take effect at once and are saved in the store, where they override the configuration file. "
    "Settings given by a flag or the environment, or fixed while the broker runs, are refused."
)
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR")


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "config", "show and change the settings of a running broker", examples=_EXAMPLES)
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = new_command(
        actions,
        "show",
        "show settings and their sources",
        _show,
        details=_DETAILS,
        examples="  aerobee config show delivery. --json",
    )
    show.add_argument(
        "prefix", metavar="PREFIX", nargs="?", default="", help="only settings whose names begin with this"
    )
    show.add_argument("--changed", action="store_true", help="only settings that differ from their defaults")
    for action in (show, *_add_changes(actions)):
        options.add_endpoint(action)
        options.add_json(action)


def _add_changes(actions: Commands) -> tuple[argparse.ArgumentParser, ...]:
    change = new_command(
        actions,
        "set",
        "change settings, now and after restarts",
        _set,
        details=_SET_DETAILS,
        examples="  aerobee config set limits.delay_seconds_max=86400",
    )
    change.add_argument("settings", metavar="NAME=VALUE", nargs="+", type=options.pair)
    unset = new_command(
        actions,
        "unset",
        "undo `config set`",
        _unset,
        examples="  aerobee config unset limits.delay_seconds_max",
    )
    unset.add_argument("names", metavar="NAME", nargs="+")
    level = new_command(
        actions,
        "log-level",
        "change the log level until the next start",
        _log_level,
        examples="  aerobee config log-level DEBUG",
    )
    level.add_argument("level", choices=_LEVELS, type=str.upper)
    return change, unset, level


def _show(arguments: argparse.Namespace) -> int:
    settings = with_client(arguments, lambda client: client.admin.configuration(arguments.prefix))
    if arguments.changed:
        settings = [setting for setting in settings if _source(setting) != "default"]
    return _print(arguments, settings)


def _set(arguments: argparse.Namespace) -> int:
    values = dict(arguments.settings)
    return _print(arguments, with_client(arguments, lambda client: client.admin.update_configuration(values)))


def _unset(arguments: argparse.Namespace) -> int:
    return _print(
        arguments, with_client(arguments, lambda client: client.admin.update_configuration(unset=arguments.names))
    )


def _log_level(arguments: argparse.Namespace) -> int:
    remark = with_client(arguments, lambda client: client.admin.change_log_level(arguments.level))
    return output.print_result({"level": arguments.level, "remark": remark}, remark, as_json=arguments.json)


def _print(arguments: argparse.Namespace, settings: list[admin_v1.Setting]) -> int:
    if arguments.json:
        output.print_json(
            [
                {
                    "name": setting.name,
                    "value": setting.value,
                    "default": setting.default_value,
                    "unit": _unit(setting.name),
                    "source": _source(setting),
                    "changeable": setting.changeable,
                }
                for setting in settings
            ]
        )
        return 0
    output.print_table(
        ("setting", "value", "unit", "source", "default", "at run time"),
        (
            (
                setting.name,
                setting.value or "-",
                _unit(setting.name),
                _source(setting),
                setting.default_value or "-",
                "changeable" if setting.changeable else "",
            )
            for setting in settings
        ),
        empty="all settings are at their defaults",
        cut=("default", "value"),
        least=("at run time", "default", "unit"),
    )
    return 0


def _source(setting: admin_v1.Setting) -> str:
    from aerobee_proto import admin_v1

    return admin_v1.SettingSource.Name(setting.source).removeprefix("SETTING_SOURCE_").lower().replace("_", "-")


_UNITS = {
    **{"seconds": "s", "ms": "ms", "hours": "h", "bytes": "bytes", "size": "bytes", "ratio": "of 1"},
    **dict.fromkeys(("max", "min", "per", "client", "group"), ""),  # the unit comes before these words
}


def _unit(name: str) -> str:
    """The unit of a setting, which is in its name: `..._seconds`, `..._bytes_max`."""
    for word in reversed(name.partition(".")[2].split("_")):
        unit = _UNITS.get(word)
        if unit is None:
            return ""
        if unit:
            return unit
    return ""
