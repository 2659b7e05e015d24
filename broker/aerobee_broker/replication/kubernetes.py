"""The lease in a Lease object of Kubernetes (coordination.k8s.io/v1), which its API server stores.

    metadata.resourceVersion          changes with every write; a write with an old one is refused
    metadata.annotations
      aerobee/claim                   {"version": 81, "epoch": 3, "master": 1, "inSync": [1, 2]}
      aerobee/holder                  {"brokerId": 1, "remoting": "a:1", "replication": "a:2", "renewal": 17}
    spec.holderIdentity               "broker-1-" and a random number of this taking; absent if nobody holds the lease
    spec.leaseDurationSeconds         the setting of the holder
    spec.acquireTime, renewTime, leaseTransitions    for people; no broker reads them

The API server ends no lease. Each broker judges for itself, as client-go's leader election does: the lease is free when
this broker has seen the same resourceVersion for the whole duration, by its own clock since boot. The holder counts
from the request of its renewal, so it stops earlier. Taking the lease replaces the resourceVersion that was watched, so
a renewal in between refuses it. `renewal` makes every renewal a change: the API server gives an unchanged object no new
resourceVersion.

A renewal changes the resourceVersion too, so the claim has a version of its own. It begins at a random number: an
object that was deleted and created again has no version of the deleted one.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from aerobee_broker.config.replication import ReplicationConfig
from aerobee_broker.errors import BrokerError
from aerobee_broker.replication.json_http import RequestError, answer_to
from aerobee_broker.replication.lease import (
    Claim,
    Holder,
    LeaseConflictError,
    LeaseLostError,
    LeaseUnavailableError,
    LeaseView,
    suspended_too,
)
from aerobee_store.errors import ConfigError

_CLAIM: Final = "aerobee/claim"
_HOLDER: Final = "aerobee/holder"
_POD: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_FIRST_VERSION_BITS: Final = 48


@dataclass(frozen=True, slots=True)
class KubernetesAccess:
    """The API server and this broker's account. `token_file`: None for an http:// server, which gets no token.

    `security` is for an https server; None: the system's certificate authorities.
    """

    api: str
    namespace: str
    token_file: Path | None = None
    security: ssl.SSLContext | None = None

    @classmethod
    def load(
        cls, config: ReplicationConfig, environment: Mapping[str, str] = os.environ, pod: Path = _POD
    ) -> KubernetesAccess:
        """Fill in what a pod has, and read the files of the settings. Blocking. ConfigError.

        `pod`: the directory in which Kubernetes mounts token, namespace and certificate authorities.
        """
        api = config.kubernetes_api or _api_of_pod(environment)
        namespace = config.kubernetes_namespace or _text("kubernetes_namespace", pod / "namespace")
        if not api.startswith("https:"):
            return cls(api, namespace)
        token_file = config.kubernetes_token_file or pod / "token"
        _text("kubernetes_token_file", token_file)
        authorities = config.kubernetes_ca or (None if config.kubernetes_api else pod / "ca.crt")
        try:
            security = ssl.create_default_context(cafile=authorities)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"replication.kubernetes_ca: {authorities} has no certificates of authorities, PEM: {error}"
            ) from None
        return cls(api, namespace, token_file, security)


def _api_of_pod(environment: Mapping[str, str]) -> str:
    host, port = (environment.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    if not host or not port:
        raise ConfigError(
            "replication.kubernetes_api: missing, and this process is in no pod (KUBERNETES_SERVICE_HOST is not set); "
            "give the URL of the API server, such as https://10.0.0.1:6443"
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _text(setting: str, path: Path) -> str:
    try:
        found = path.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        found, cause = "", str(error)
    else:
        cause = f"{path} is empty"
    if not found:
        raise ConfigError(
            f"replication.{setting}: {cause}. In a pod Kubernetes mounts it, unless automountServiceAccountToken is "
            f"false; elsewhere give this setting"
        )
    return found


class _ChangedError(BrokerError):
    """The object has changed since it was read, so the write was refused."""


@dataclass(frozen=True, slots=True)
class _Record:
    """The Lease object as read. `raw` is empty if there is none; `identity` is empty if nobody holds the lease."""

    raw: dict[str, Any]
    resource_version: str = ""
    version: int = 0
    claim: Claim | None = None
    holder: Holder | None = None
    renewal: int = 0
    identity: str = ""
    seconds: int = 0

    @classmethod
    def parse(cls, raw: dict[str, Any], name: str) -> _Record:
        """Raises LeaseUnavailableError if this is not a lease of brokers."""
        metadata, spec = raw.get("metadata"), raw.get("spec") or {}
        annotations = (metadata.get("annotations") or {}) if isinstance(metadata, dict) else None
        if not isinstance(metadata, dict) or not isinstance(annotations, dict) or not isinstance(spec, dict):
            raise LeaseUnavailableError(f"the answer for the Lease {name} is not a Lease: {str(raw)[:200]}")
        identity = str(spec.get("holderIdentity") or "")
        if identity and _HOLDER not in annotations:
            raise LeaseUnavailableError(
                f"the Lease {name} belongs to another program, {identity!r}; choose another "
                f"replication.kubernetes_lease"
            )
        version, renewal, claim, holder = 0, 0, None, None
        try:
            resource_version = str(metadata["resourceVersion"])
            if _CLAIM in annotations:
                found = json.loads(annotations[_CLAIM])
                version = int(found["version"])
                claim = Claim(int(found["epoch"]), int(found["master"]), frozenset(map(int, found["inSync"])))
            if identity:
                found = json.loads(annotations[_HOLDER])
                renewal = int(found["renewal"])
                holder = Holder(int(found["brokerId"]), str(found["remoting"]), str(found["replication"]))
            seconds = int(spec.get("leaseDurationSeconds") or 0)
        except (ValueError, KeyError, TypeError) as error:
            raise LeaseUnavailableError(
                f"the Lease {name} is damaged ({error!r}): its annotation {_CLAIM} is {annotations.get(_CLAIM)!r}, "
                f"{_HOLDER} is {annotations.get(_HOLDER)!r}; correct them"
            ) from None
        return cls(raw, resource_version, version, claim, holder, renewal, identity, seconds)

    def with_claim(self, version: int, claim: Claim) -> dict[str, Any]:
        raw = self._copy()
        value = {"version": version, "epoch": claim.epoch, "master": claim.master, "inSync": sorted(claim.in_sync)}
        raw["metadata"]["annotations"][_CLAIM] = json.dumps(value)
        return raw

    def with_holder(self, holder: Holder) -> dict[str, Any]:
        """Also renews the lease."""
        raw = self._copy()
        value = {"brokerId": holder.broker_id, "remoting": holder.remoting, "replication": holder.replication}
        raw["metadata"]["annotations"][_HOLDER] = json.dumps({**value, "renewal": self.renewal + 1})
        raw["spec"]["renewTime"] = _now()
        return raw

    def without_holder(self) -> dict[str, Any]:
        raw = self._copy()
        raw["metadata"]["annotations"].pop(_HOLDER, None)
        raw["spec"].pop("holderIdentity", None)
        return raw

    def _copy(self) -> dict[str, Any]:
        raw = deepcopy(self.raw)
        for parent, key in ((raw, "spec"), (raw["metadata"], "annotations")):
            parent[key] = parent.get(key) or {}
        return raw


class KubernetesLease:
    """The lease of one group of brokers. `now`: seconds of a clock that cannot be set."""

    def __init__(
        self,
        access: KubernetesAccess,
        name: str,
        broker_id: int,
        lease_seconds: int,
        *,
        timeout_seconds: float,
        now: Callable[[], float] = suspended_too,
    ) -> None:
        self._access = access
        self._endpoint = urlsplit(access.api)
        self._name = name
        self._broker_id = broker_id
        self._lease_seconds = lease_seconds
        self._timeout_seconds = timeout_seconds
        self._now = now
        self._identity = ""
        self._last: _Record | None = None
        self._watched = ""
        self._watched_since = 0.0

    async def read(self) -> LeaseView:
        async with self._time_limit():
            record = await self._get()
        return LeaseView(record.version, record.claim, None if self._is_free(record) else record.holder)

    async def take(self, seen: LeaseView, claim: Claim) -> int:
        identity = f"broker-{self._broker_id}-{secrets.token_hex(8)}"

        def taken(record: _Record) -> dict[str, Any]:
            is_own = (
                seen.holder is not None and seen.holder == record.holder and seen.holder.broker_id == self._broker_id
            )
            if record.version != seen.version or not (is_own or self._is_free(record)):
                raise LeaseConflictError("another broker took the lease")
            claimed = _Record(record.with_claim(_next_version(record), claim))
            raw = claimed.with_holder(Holder(self._broker_id))
            transitions = int(raw["spec"].get("leaseTransitions") or 0) + 1
            raw["spec"].update(
                holderIdentity=identity,
                leaseDurationSeconds=self._lease_seconds,
                acquireTime=raw["spec"]["renewTime"],
                leaseTransitions=transitions,
            )
            return raw

        try:
            version = await self._replace(taken)
        except LeaseUnavailableError:
            await self._release(identity)  # the request may nevertheless have succeeded
            raise
        self._identity = identity
        return version

    async def renew(self) -> None:
        def renewed(record: _Record) -> dict[str, Any]:
            holder = self._mine(record).holder
            assert holder is not None, "it has an identity"
            return record.with_holder(holder)

        await self._replace(renewed)

    async def announce(self, holder: Holder) -> None:
        await self._replace(lambda record: self._mine(record).with_holder(holder))

    async def change(self, version: int, claim: Claim) -> int:
        def changed(record: _Record) -> dict[str, Any]:
            if record.version != version:
                raise LeaseConflictError("another broker changed the claim")
            return record.with_claim(_next_version(record), claim)

        return await self._replace(changed)

    async def release(self) -> None:
        identity, self._identity = self._identity, ""
        if identity:
            await self._release(identity)

    async def _release(self, identity: str) -> None:
        def released(record: _Record) -> dict[str, Any]:
            if record.identity != identity:
                raise LeaseLostError("the lease belongs to another broker")
            return record.without_holder()

        with suppress(LeaseUnavailableError, LeaseLostError):  # the lease expires without it
            await self._replace(released)

    def _mine(self, record: _Record) -> _Record:
        if not self._identity or record.identity != self._identity:
            raise LeaseLostError(f"the lease is held by {record.identity or 'no broker'}")
        return record

    def _is_free(self, record: _Record) -> bool:
        """Whether nobody holds the lease, or its holder has not renewed it for the whole duration."""
        if not record.identity:
            return True
        # the longer one, if the brokers' settings differ
        duration = max(self._lease_seconds, record.seconds)
        return record.resource_version == self._watched and self._now() - self._watched_since >= duration

    # --- Requests ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _time_limit(self) -> AsyncIterator[None]:
        """Limits the time of requests; one without an answer becomes LeaseUnavailableError."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                yield
        except RequestError as error:
            raise LeaseUnavailableError(f"Kubernetes at {self._endpoint.netloc}: {str(error) or 'timeout'}") from None

    async def _replace(self, change: Callable[[_Record], dict[str, Any]]) -> int:
        """Replace the object by compare-and-swap, and return the claim's version.

        `change` is called again with the new object if it has changed meanwhile, and raises what ends the attempts. The
        first attempt is with the object that this broker read or wrote last, which saves a request.
        """
        async with self._time_limit():
            if self._last is not None:
                with suppress(_ChangedError, LeaseConflictError, LeaseLostError):
                    return await self._write(change(self._last))
            while True:
                record = await self._get()
                with suppress(_ChangedError):
                    return await self._write(change(record))

    async def _write(self, raw: dict[str, Any]) -> int:
        # The uid that was read is sent back: without it the API server would create a deleted Lease anew.
        found = await self._call("PUT" if raw["metadata"].get("uid") else "POST", raw)
        self._last = _Record.parse(found, self._name)
        return self._last.version

    async def _get(self) -> _Record:
        found = await self._call("GET")
        if not found:
            empty = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}}
            self._last = _Record(empty)
            return self._last
        record = self._last = _Record.parse(found, self._name)
        if record.resource_version != self._watched:
            # The answer has arrived, so the last renewal is older than this moment.
            self._watched, self._watched_since = record.resource_version, self._now()
        return record

    async def _call(self, method: str, sent: dict[str, Any] | None = None) -> dict[str, Any]:
        """The Lease of the answer; empty if there is none to read. Raises _ChangedError, LeaseUnavailableError and
        RequestError."""
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{self._access.namespace}/leases"
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._access.token_file is not None:
            # Read each time, because Kubernetes replaces it before it expires.
            headers["Authorization"] = f"Bearer {self._access.token_file.read_text('ascii').strip()}"
        status, body = await answer_to(
            method,
            self._endpoint,
            leases if method == "POST" else f"{leases}/{self._name}",
            b"" if sent is None else json.dumps(sent).encode(),
            headers=headers,
            security=self._access.security,
            default_port=443 if self._endpoint.scheme == "https" else 80,
        )
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        is_object = isinstance(found, dict)
        if status in (200, 201) and is_object and found.get("kind") == "Lease":
            return dict(found)
        if is_object and found.get("kind") == "Status":
            if status == 404 and method == "GET":
                return {}
            if status == 409:
                raise _ChangedError(str(found.get("message")))
        raise LeaseUnavailableError(self._refusal(status, found.get("message") if is_object else body[:200]))

    def _refusal(self, status: int, cause: object) -> str:
        namespace = self._access.namespace
        step = {
            401: f"the token in {self._access.token_file} is not valid here; in a pod Kubernetes renews it, elsewhere "
            "replace the file (replication.kubernetes_token_file)",
            403: f"allow the broker's service account get and update, and create if the Lease does not exist yet, of "
            f"leases.coordination.k8s.io in namespace {namespace}: deploy/kubernetes/replicated.yaml has the Role",
            404: f"create the namespace {namespace}, or correct replication.kubernetes_namespace",
        }.get(status)
        return f"Kubernetes at {self._endpoint.netloc}: status {status}: {cause}" + (f"; {step}" if step else "")


def _next_version(record: _Record) -> int:
    return record.version + 1 if record.version else 1 + secrets.randbits(_FIRST_VERSION_BITS)


def _now() -> str:
    """The wall clock as a MicroTime, for people."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
