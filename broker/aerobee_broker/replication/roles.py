"""The role of a broker: as configured, and checked against the role in which its store was used last.

    configured   the store was    the broker is
    replica      a replica's      a replica
    replica      a master's       a replica, with a warning: it takes no messages, so none is stored on the wrong broker
    master       a master's       the master
    master       a replica's      not started: its log may lack messages that the master answered
    none         a replica's      not started, for the same reason

A promotion saves "master", so that the promoted store may be started with either role. With a lease the lease decides,
and the file is removed.
"""

from __future__ import annotations

import logging
from typing import Final

from aerobee_broker.config import BrokerConfig
from aerobee_broker.config.replication import Role
from aerobee_broker.errors import BrokerError
from aerobee_store.disk.file_system import FileSystem, replace_file
from aerobee_store.log_follower import ROLE_FILE_NAME

_log = logging.getLogger(__name__)

_SAVED: Final = ("master", "replica")


class RoleFileError(BrokerError):
    """The file contains no valid role, or a role that forbids the configured one."""


def check(config: BrokerConfig, file_system: FileSystem) -> Role:
    """The configured role, which a replica saves. Blocking; durable on return. RoleFileError, OSError."""
    role, saved = config.replication.role, _saved(config, file_system)
    if saved == "replica" and role != "replica":
        raise RoleFileError(
            f"replication.role: {role!r}, but {config.store.directory} is the store of a replica, which may lack "
            f"messages that its master has answered. Start it with role replica and make it the master with: aerobee "
            f"promote"
        )
    if saved == "master" and role == "replica":
        _log.warning(
            "this store was a master's, and follows %s now because replication.role is replica. To serve as the master "
            "again: aerobee promote, and then set replication.role = master",
            config.replication.master or "the master that the name servers report",
        )
    if role == "replica" and saved != "replica":
        save(config, file_system, "replica")
    return role


def _saved(config: BrokerConfig, file_system: FileSystem) -> str | None:
    path = config.store.directory / ROLE_FILE_NAME
    if not file_system.exists(path):
        return None
    text = file_system.read_bytes(path).decode("ascii", "replace").strip()
    if text not in _SAVED:
        raise RoleFileError(f"{path}: {text[:40]!r} is not a role; write master or replica into the file")
    return text


def save(config: BrokerConfig, file_system: FileSystem, role: Role) -> None:
    """Save the role in which the store is used. Blocking; durable on return. Raises OSError."""
    replace_file(file_system, config.store.directory / ROLE_FILE_NAME, f"{role}\n".encode())


def forget(config: BrokerConfig, file_system: FileSystem) -> None:
    """Remove the saved role. Blocking; durable on return. Raises OSError."""
    path = config.store.directory / ROLE_FILE_NAME
    if file_system.exists(path):
        file_system.unlink(path)
        file_system.sync_directory(path.parent)
