"""Settings from a TOML file and from the environment."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aerobee_broker.config.conversion import Sections, known_names
from aerobee_store.errors import ConfigError

ENVIRONMENT_PREFIX: Final = "AEROBEE_"


def from_toml(path: Path, sections: Sections) -> dict[str, object]:
    """The settings in a TOML file, by full name. Raises ConfigError."""
    try:
        document = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}; check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: not valid TOML: {error}") from None
    values: dict[str, object] = {}
    for section, content in document.items():
        if not isinstance(content, dict):
            raise ConfigError(f"{section}: a setting must be in a section; sections are [{'], ['.join(sections)}]")
        if section not in sections:
            raise ConfigError(f"[{section}]: unknown section; sections are [{'], ['.join(sections)}]")
        values.update((f"{section}.{key}", value) for key, value in content.items())
    return values


def from_environment(environment: Mapping[str, str], sections: Sections) -> dict[str, object]:
    """The settings in variables of the environment, by full name. Raises ConfigError."""
    values: dict[str, object] = {}
    for variable, value in environment.items():
        section, _, key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("_")
        # Other AEROBEE_ variables belong to other programs of the project.
        if variable.startswith(ENVIRONMENT_PREFIX) and section in sections:
            if key not in sections[section]:
                raise ConfigError(f"{variable}: unknown setting{known_names(sections, f'{section}.{key}')}")
            values[f"{section}.{key}"] = value
    return values
