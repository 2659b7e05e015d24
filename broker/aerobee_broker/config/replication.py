"""Settings of replication: the section `replication` of BrokerConfig."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from aerobee_store.config import Positive, Section
from aerobee_store.errors import ConfigError
from aerobee_store.records.decimals import decimal

ROLES = ("none", "master", "replica")
Role = Literal["none", "master", "replica"]
_URL = r"https?://[^/\s@]+"
_KUBERNETES_NAME = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig(Section):
    """Sizes in bytes, durations in seconds. Docstrings begin with RocketMQ's name of a setting, if it has one."""

    section: ClassVar[str] = "replication"

    role: Role = "none"
    """brokerRole: "none" turns replication off. A store that was a replica's is served as
    a master only after `aerobee promote`."""
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
    kubernetes_lease: str = ""
    """The Lease object of Kubernetes that keeps the lease of this group, in place of etcd; empty: none."""
    kubernetes_namespace: str = ""
    """The namespace of the Lease; empty: that of the pod."""
    kubernetes_api: str = ""
    """The API server, such as https://10.0.0.1:6443; empty: that of the pod."""
    kubernetes_token_file: Path | None = None
    """A file with the token of the service account, read for every request; None: that of the pod."""
    kubernetes_ca: Path | None = None
    """The authorities that sign the API server's certificate, PEM; None: those of the pod, or with kubernetes_api those
    of the system."""
    lease_seconds: Annotated[int, Meta(ge=2, le=600)] = 10
    """After this time without a renewal another broker may take the lease."""
    in_sync_seconds: Annotated[float, Meta(gt=0, le=600)] = 5.0
    """haMaxTimeSlaveNotCatchup, with a lease: a replica that has not reached the end of the log for this time is no
    longer in sync. Until then messages wait for it."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.acks not in ("none", "all") and decimal(self.acks, 1000) is None:
            raise ConfigError(f"replication.acks: {self.acks!r} is invalid; give none, all or a number up to 1000")
        self._check_lease()
        if self.role == "master" and not self.listen:
            raise ConfigError(
                "replication.listen: missing; give the address that replicas connect to, such as 0.0.0.0:10912"
            )

    def _check_lease(self) -> None:
        self._check_etcd()
        self._check_kubernetes()
        if not self.has_lease:
            return
        setting = "etcd" if self.etcd else "kubernetes_lease"
        if self.role == "none" or not self.listen:
            raise ConfigError(
                f"replication.{setting}: every broker with a lease can become the master; set replication.role (master "
                f"for the first one, replica for the others) and replication.listen"
            )
        if self.acks == "none":
            raise ConfigError(
                "replication.acks: with a lease another broker can become the master at any time, and would not have "
                "the newest messages; set a number of replicas, or all"
            )

    def _check_etcd(self) -> None:
        if not self.etcd:
            return
        for endpoint in self.etcd:
            if not re.fullmatch(_URL, endpoint):
                raise ConfigError(
                    f"replication.etcd: {endpoint.rpartition('@')[2]!r} is not a URL such as http://10.0.0.5:2379; "
                    "a user goes into replication.etcd_user"
                )
        if bool(self.etcd_user) != (self.etcd_password_file is not None):
            raise ConfigError("replication.etcd_user: needs replication.etcd_password_file, and the reverse")
        if self.etcd_ca is not None and not any(endpoint.startswith("https:") for endpoint in self.etcd):
            raise ConfigError("replication.etcd_ca: is for an etcd at https://; correct replication.etcd")

    def _check_kubernetes(self) -> None:
        if not self.kubernetes_lease:
            return
        if self.etcd:
            raise ConfigError("replication.kubernetes_lease: is in place of replication.etcd; remove one of the two")
        for name, value in (("lease", self.kubernetes_lease), ("namespace", self.kubernetes_namespace)):
            if value and not re.fullmatch(_KUBERNETES_NAME, value):
                raise ConfigError(
                    f"replication.kubernetes_{name}: {value!r} is not a name of Kubernetes: lower-case letters, digits "
                    f"and '-', at most 63"
                )
        if self.kubernetes_api and not re.fullmatch(_URL, self.kubernetes_api):
            raise ConfigError(
                f"replication.kubernetes_api: {self.kubernetes_api.rpartition('@')[2]!r} is not a URL such as "
                f"https://10.0.0.1:6443"
            )
        if self.kubernetes_api.startswith("http:") and (self.kubernetes_token_file or self.kubernetes_ca):
            raise ConfigError(
                "replication.kubernetes_api: a token is not sent over http://, which is for `kubectl proxy`; give an "
                "https:// URL, or remove kubernetes_token_file and kubernetes_ca"
            )

    @property
    def has_lease(self) -> bool:
        """Whether a lease names the master, and not an operator."""
        return bool(self.etcd or self.kubernetes_lease)

    @property
    def lease_place(self) -> str:
        """Where the lease is, for messages."""
        return "the group's keys in etcd" if self.etcd else f"the Lease {self.kubernetes_lease} in Kubernetes"

    @property
    def acks_wanted(self) -> int | None:
        """How many replicas a send waits for; None: all that are in sync."""
        return None if self.acks == "all" else 0 if self.acks == "none" else int(self.acks)
