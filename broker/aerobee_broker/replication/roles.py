"""The role of a broker: as configured, or as saved by a promotion."""

from __future__ import annotations

from typing import Final, cast

from aerobee_broker.config import BrokerConfig
from aerobee_broker.config.replication import ROLES, Role
from aerobee_broker.errors import BrokerError
from aerobee_store.disk.file_system import FileSystem

FILE_NAME: Final = "replicationRole"


class RoleFileError(BrokerError):
    """The file contains no valid role."""


def load(config: BrokerConfig, file_system: FileSystem) -> Role:
    """The role of this broker. Blocking. RoleFileError, OSError."""
    path = config.store.directory / FILE_NAME
    if not file_system.exists(path):
        return config.replication.role
    text = file_system.read_bytes(path).decode("ascii", "replace").strip()
    if text in ROLES:
        return cast(Role, text)
    raise RoleFileError(f"{path}: {text[:40]!r} is not a role; write master or replica into the file")


def save(config: BrokerConfig, file_system: FileSystem, role: Role) -> None:
    """Save the role, also for later starts. Blocking; durable on return. Raises OSError."""
    path = config.store.directory / FILE_NAME
    temporary = path.with_suffix(".tmp")
    file_system.write_new(temporary, f"{role}\n".encode())
    file_system.rename(temporary, path)
    file_system.sync_directory(path.parent)
