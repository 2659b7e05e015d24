"""The role of a broker: every configured role on the store of every earlier role."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.config import Address, BrokerConfig, ListenConfig
from aerobee_broker.config.replication import ReplicationConfig, Role
from aerobee_broker.replication import roles
from aerobee_store.disk.file_system import DiskFileSystem
from aerobee_store.log_follower import ROLE_FILE_NAME

_DISK = DiskFileSystem()


def _config(directory: Path, role: Role) -> BrokerConfig:
    address = Address("127.0.0.1", 0)
    return BrokerConfig.tiny(
        directory,
        listen=ListenConfig(grpc=address, metrics=address, remoting=address),
        replication=ReplicationConfig(role=role, listen="127.0.0.1:0", master="127.0.0.1:1"),
    )


@pytest.mark.parametrize(
    ("saved", "configured", "found", "later"),
    [
        (None, "none", "none", None),
        (None, "master", "master", None),
        (None, "replica", "replica", "replica"),
        ("master", "none", "none", "master"),
        ("master", "master", "master", "master"),
        ("master", "replica", "replica", "replica"),
        ("replica", "none", "refused", "replica"),
        ("replica", "master", "refused", "replica"),
        ("replica", "replica", "replica", "replica"),
        ("boss", "replica", "refused", "boss"),
    ],
)
def test_role_on_a_store_of_each_earlier_role(
    tmp_path: Path, saved: str | None, configured: Role, found: str, later: str | None
) -> None:
    """A broker becomes a replica whenever it is told to, and a replica's store has a master only after a promotion."""
    config, path = _config(tmp_path, configured), tmp_path / ROLE_FILE_NAME
    if saved is not None:
        path.write_text(f"{saved}\n")
    if found == "refused":
        with pytest.raises(roles.RoleFileError, match=r"aerobee promote|is not a role"):
            roles.check(config, _DISK)
    else:
        assert roles.check(config, _DISK) == found
    assert (path.read_text().strip() if path.exists() else None) == later


def test_promoted_store_may_have_either_role(tmp_path: Path) -> None:
    """After a promotion, the store is started as the master, and as a replica again."""
    assert roles.check(_config(tmp_path, "replica"), _DISK) == "replica"
    roles.save(_config(tmp_path, "replica"), _DISK, "master")
    assert roles.check(_config(tmp_path, "master"), _DISK) == "master"
    assert roles.check(_config(tmp_path, "replica"), _DISK) == "replica"


def test_lease_forgets_the_role(tmp_path: Path) -> None:
    """A group that had a lease for a while may name its master again."""
    roles.save(_config(tmp_path, "replica"), _DISK, "replica")
    roles.forget(_config(tmp_path, "replica"), _DISK)
    assert roles.check(_config(tmp_path, "master"), _DISK) == "master"
