"""Settings of replication: the section `replication` of BrokerConfig."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from aerobee_store.config import Positive, Section
from aerobee_store.errors import ConfigError

ROLES = ("none", "master", "replica")
Role = Literal["none", "master", "replica"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig(Section):
    """Sizes in bytes, durations in seconds. Docstrings begin with RocketMQ's name of a setting, if it has one."""

    section: ClassVar[str] = "replication"

    role: Role = "none"
    """brokerRole: "none" turns replication off. A role saved by `aerobee promote` overrides this setting."""
    listen: str = ""
    """haListenPort: the address for replicas, such as 0.0.0.0:10912. A replica needs it for its promotion."""
    advertise: str = ""
    """brokerIP2: the address for replicas that is told to name servers; empty: the listening address."""
    broker_id: Annotated[int, Meta(ge=1, lt=1 << 31)] = 1
    """brokerId of a replica in routes and to its master; the master is 0."""
    master: str = ""
    """The master's remoting address; empty: ask the name servers."""
    master_ha: str = ""
    """haMasterAddress: the master's address for replicas; empty: ask the master or the name servers."""
    acks: str = "none"
    """How many replicas must have a message on disk before its send is answered: "none", a number, or "all" for every
    replica in sync."""
    min_in_sync: Annotated[int, Meta(ge=1, le=1000)] = 1
    """minInSyncReplicas: with fewer brokers in sync, the master included, messages are refused."""
    ack_timeout_seconds: Annotated[float, Meta(gt=0, le=3600)] = 2.5
    """syncFlushTimeout for replicas: less than the 3 s for which clients wait, so that they receive the reason."""
    lag_bytes_max: Positive = 256 << 20
    """haMaxGapNotInSync: a replica that is further behind is not in sync."""
    rocketmq_acks: bool = False
    """Whether replicas of RocketMQ count. They confirm received messages before these are on disk."""
    etcd: tuple[str, ...] = ()
    """The etcd that keeps the lease, such as http://10.0.0.5:2379; empty: operators choose the master."""
    etcd_user: str = ""
    """The user of an etcd with authentication; it needs to read and write the keys of etcd_prefix."""
    etcd_password_file: Path | None = None
    """A file with the password of etcd_user. A line feed at its end is left out."""
    etcd_ca: Path | None = None
    """The authorities that sign the certificate of an https:// etcd, PEM; None: those of the system."""
    etcd_prefix: str = "/aerobee"
    """The prefix of the keys in etcd; the names of cluster and broker follow."""
    lease_seconds: Annotated[int, Meta(ge=2, le=600)] = 10
    """After this time without a renewal another broker may take the lease."""
    in_sync_seconds: Annotated[float, Meta(gt=0, le=600)] = 5.0
    """haMaxTimeSlaveNotCatchup, with a lease: a replica that has not reached the end of the log for this time is no
    longer in sync. Until then messages wait for it."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.acks not in ("none", "all") and not (
            self.acks.isascii() and self.acks.isdigit() and int(self.acks) <= 1000
        ):
            raise ConfigError(f"replication.acks: {self.acks!r} is invalid; give none, all or a number up to 1000")
        self._check_lease()
        if self.role == "master" and not self.listen:
            raise ConfigError(
                "replication.listen: missing; give the address that replicas connect to, such as 0.0.0.0:10912"
            )

    def _check_lease(self) -> None:
        if not self.etcd:
            return
        for endpoint in self.etcd:
            if not re.fullmatch(r"https?://[^/\s@]+", endpoint):
                raise ConfigError(
                    f"replication.etcd: {endpoint.rpartition('@')[2]!r} is not a URL such as http://10.0.0.5:2379; "
                    "a user goes into replication.etcd_user"
                )
        if bool(self.etcd_user) != (self.etcd_password_file is not None):
            raise ConfigError("replication.etcd_user: needs replication.etcd_password_file, and the reverse")
        if self.etcd_ca is not None and not any(endpoint.startswith("https:") for endpoint in self.etcd):
            raise ConfigError("replication.etcd_ca: is for an etcd at https://; correct replication.etcd")
        if self.role == "none" or not self.listen:
            raise ConfigError(
                "replication.etcd: every broker with a lease can become the master; set replication.role (master for "
                "the first one, replica for the others) and replication.listen"
            )
        if self.acks == "none":
            raise ConfigError(
                "replication.acks: with a lease another broker can become the master at any time, and would not have "
                "the newest messages; set a number of replicas, or all"
            )

    @property
    def acks_wanted(self) -> int | None:
        """How many replicas a send waits for; None: all that are in sync."""
        return None if self.acks == "all" else 0 if self.acks == "none" else int(self.acks)
