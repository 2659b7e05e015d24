"""Brokers by name, in `contexts.json` of the user's configuration: what commands use if nothing else is said.

{"current": "production", "contexts": {"production": {"endpoint": "broker.example:8081", "tls_ca": "/etc/ca.crt"}}}
"""

from __future__ import annotations

import json
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from aerobee_broker.commands.terminal.options import CommandError

VARIABLES: Final = {
    "endpoint": "AEROBEE_ENDPOINT",
    "tls_ca": "AEROBEE_CA_FILE",
    "tls_cert": "AEROBEE_CERT_FILE",
    "tls_key": "AEROBEE_KEY_FILE",
    "credentials": "AEROBEE_CREDENTIALS",
}
"""The settings of a context, each with the variable that it stands in for."""
_CREDENTIALS: Final = ("AEROBEE_CREDENTIALS", "AEROBEE_ACCESS_KEY", "AEROBEE_SECRET_KEY")


class Contexts(Struct):
    """What the file has. `current` is empty if no context is in use."""

    current: str
    contexts: dict[str, dict[str, str]]


def file_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "aerobee" / "contexts.json"


def load() -> Contexts:
    """CommandError if the file cannot be understood."""
    path = file_path()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        contexts = {
            str(name): {key: str(value) for key, value in values.items() if key in VARIABLES}
            for name, values in content["contexts"].items()
            if "endpoint" in values
        }
        return Contexts(str(content.get("current", "")), contexts)
    except FileNotFoundError:
        return Contexts("", {})
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CommandError(f"{path}: cannot be read ({error!r}); mend it, or remove it") from None


def save(kept: Contexts) -> None:
    """OSError."""
    path = file_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".tmp")
    new.write_text(json.dumps({"current": kept.current, "contexts": kept.contexts}, indent=2) + "\n", encoding="utf-8")
    new.replace(path)


def apply(environment: MutableMapping[str, str]) -> None:
    """Put the options of the context into the variables that are not set. CommandError for an unknown name."""
    wanted = environment.get("AEROBEE_CONTEXT", "")
    if not wanted and not file_path().exists():
        return
    kept = load()
    name = wanted or kept.current
    if not name:
        return
    if name not in kept.contexts:
        raise CommandError(f"there is no context {name!r}; list them with: aerobee context list", exit_code=3)
    if not wanted and environment.get("AEROBEE_ENDPOINT"):
        return  # another broker: the context's files belong to its own
    has_credentials = any(environment.get(each) for each in _CREDENTIALS)
    for setting, value in kept.contexts[name].items():
        variable = VARIABLES[setting]
        if setting == "credentials" and has_credentials:
            continue
        if wanted or not environment.get(variable):
            environment[variable] = value
