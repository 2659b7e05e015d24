"""The lease in etcd 3.4 or later, through its JSON gateway, with the standard library only.

    PREFIX/CLUSTER/NAME/claim     {"epoch": 3, "master": 1, "inSync": [1, 2]}
    PREFIX/CLUSTER/NAME/holder    {"brokerId": 1, "remoting": "a:10911", "replication": "a:10912"}, bound to a lease

Reads are linearizable, as is etcd's default. The version of a claim is the revision of its last change.

With a user, requests carry a token, which etcd issues for the password. A request with a token that etcd no longer
knows is refused without being executed, and is repeated with a new token.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

from aerobee_broker.config.replication import ReplicationConfig
from aerobee_broker.replication.json_http import RequestError, answer_to
from aerobee_broker.replication.lease import (
    Claim,
    Holder,
    LeaseConflictError,
    LeaseLostError,
    LeaseUnavailableError,
    LeaseView,
)
from aerobee_store.errors import ConfigError

_TOKEN_REFUSED: Final = (b"invalid auth token", b"revision of auth store is old")


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """The credentials for etcd. `security` is for https endpoints; None: the system's certificate authorities."""

    user: str = ""
    password: str = field(default="", repr=False)
    security: ssl.SSLContext | None = None

    @classmethod
    def load(cls, config: ReplicationConfig) -> EtcdAccess:
        """Read the files of the settings. Blocking. ConfigError."""
        password, security = "", None
        if config.etcd_password_file is not None:
            try:
                password = config.etcd_password_file.read_text("utf-8").removesuffix("\n")
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"replication.etcd_password_file: {config.etcd_password_file} cannot be read: {error}"
                ) from None
        if any(endpoint.startswith("https:") for endpoint in config.etcd):
            try:
                security = ssl.create_default_context(cafile=config.etcd_ca)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    f"replication.etcd_ca: {config.etcd_ca} has no certificates of authorities, PEM: {error}"
                ) from None
        return cls(config.etcd_user, password, security)


class EtcdLease:
    """The lease of one group of brokers. `lease_seconds`: at least 2, because etcd rounds to whole seconds."""

    def __init__(
        self,
        endpoints: Sequence[str],
        prefix: str,
        broker_id: int,
        lease_seconds: int,
        *,
        timeout_seconds: float,
        access: EtcdAccess | None = None,
    ) -> None:
        self._access = access or EtcdAccess()
        self._token = ""
        self._endpoints = [urlsplit(endpoint) for endpoint in endpoints]
        self._claim_key = _encoded(f"{prefix}/claim")
        self._holder_key = _encoded(f"{prefix}/holder")
        self._broker_id = broker_id
        self._lease_seconds = lease_seconds
        self._timeout_seconds = timeout_seconds
        self._lease_id = "0"

    async def read(self) -> LeaseView:
        answered = await self._txn([], [_get(self._claim_key), _get(self._holder_key)], [])
        claim, holder = (_value(response) for response in answered["responses"])
        return LeaseView(
            version=0 if claim is None else int(claim["mod_revision"]),
            claim=None if claim is None else _claim(claim),
            holder=None if holder is None else _holder(holder),
        )

    async def take(self, seen: LeaseView, claim: Claim) -> int:
        if seen.holder is not None and seen.holder.broker_id == self._broker_id:
            await self._end_earlier_process()
        granted = await self._post("lease/grant", {"TTL": str(self._lease_seconds)})
        lease_id = str(granted["ID"])
        try:
            answered = await self._txn(
                [
                    {"key": self._holder_key, "target": "CREATE", "create_revision": "0"},
                    {"key": self._claim_key, "target": "MOD", "mod_revision": str(seen.version)},
                ],
                [self._put_claim(claim), self._put_holder(Holder(self._broker_id), lease_id)],
                [],
            )
        except LeaseUnavailableError:
            await self._revoke(lease_id)  # the transaction may nevertheless have succeeded
            raise
        if not answered.get("succeeded"):
            await self._revoke(lease_id)
            raise LeaseConflictError("another broker took the lease")
        self._lease_id = lease_id
        return _revision(answered)

    async def renew(self) -> None:
        answered = await self._post("lease/keepalive", {"ID": self._lease_id})
        if int(answered.get("result", {}).get("TTL", "0")) <= 0:
            raise LeaseLostError("the lease has expired in etcd")

    async def announce(self, holder: Holder) -> None:
        mine = {"key": self._holder_key, "target": "LEASE", "lease": self._lease_id}
        answered = await self._txn([mine], [self._put_holder(holder, self._lease_id)], [])
        if not answered.get("succeeded"):
            raise LeaseLostError("the lease belongs to another broker")

    async def change(self, version: int, claim: Claim) -> int:
        same = {"key": self._claim_key, "target": "MOD", "mod_revision": str(version)}
        answered = await self._txn([same], [self._put_claim(claim)], [])
        if not answered.get("succeeded"):
            raise LeaseConflictError("another broker changed the claim")
        return _revision(answered)

    async def release(self) -> None:
        lease_id, self._lease_id = self._lease_id, "0"
        if lease_id != "0":
            await self._revoke(lease_id)

    # --- Requests ---------------------------------------------------------------------------------------------

    async def _end_earlier_process(self) -> None:
        """Revoke the lease with which an earlier process of this broker is the holder."""
        answered = await self._txn([], [_get(self._holder_key)], [])
        found = _value(answered["responses"][0])
        if found is not None and _holder(found).broker_id == self._broker_id:
            await self._revoke(str(found["lease"]))

    async def _revoke(self, lease_id: str) -> None:
        with suppress(LeaseUnavailableError):  # the lease expires without it
            await self._post("lease/revoke", {"ID": lease_id})

    def _put_claim(self, claim: Claim) -> dict[str, Any]:
        value = {"epoch": claim.epoch, "master": claim.master, "inSync": sorted(claim.in_sync)}
        return {"request_put": {"key": self._claim_key, "value": _encoded(json.dumps(value))}}

    def _put_holder(self, holder: Holder, lease_id: str) -> dict[str, Any]:
        value = {"brokerId": holder.broker_id, "remoting": holder.remoting, "replication": holder.replication}
        return {"request_put": {"key": self._holder_key, "value": _encoded(json.dumps(value)), "lease": lease_id}}

    async def _txn(self, compare: list[Any], success: list[Any], failure: list[Any]) -> dict[str, Any]:
        return await self._post("kv/txn", {"compare": compare, "success": success, "failure": failure})

    async def _post(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request to the first reachable endpoint. After an error the next request starts with another one."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                status, body = await self._answer_authenticated(path, json.dumps(request).encode())
            found = json.loads(body)
        except RequestError as error:
            place = self._endpoints[0].netloc
            self._endpoints.append(self._endpoints.pop(0))
            raise LeaseUnavailableError(f"etcd at {place}: {str(error) or 'timeout'}") from None
        if status != 200 or not isinstance(found, dict):
            raise LeaseUnavailableError(f"etcd at {self._endpoints[0].netloc}: status {status}: {body[:200]!r}")
        return found

    async def _answer_authenticated(self, path: str, body: bytes) -> tuple[int, bytes]:
        if not self._access.user:
            return await self._answer(path, body)
        for _ in range(2):
            if not self._token:
                credentials = {"name": self._access.user, "password": self._access.password}
                status, answer = await self._answer("auth/authenticate", json.dumps(credentials).encode())
                if status != 200:
                    return status, answer
                self._token = str(json.loads(answer).get("token", ""))
            status, answer = await self._answer(path, body)
            if status == 200 or not any(sign in answer for sign in _TOKEN_REFUSED):
                break
            self._token = ""
        return status, answer

    async def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        headers = {"Authorization": self._token} if self._token else {}
        return await answer_to(
            "POST",
            self._endpoints[0],
            f"/v3/{path}",
            body,
            headers=headers,
            security=self._access.security,
            default_port=2379,
        )


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _get(key: str) -> dict[str, Any]:
    return {"request_range": {"key": key}}


def _value(response: dict[str, Any]) -> dict[str, Any] | None:
    found = response["response_range"].get("kvs") or []
    return None if not found else {**found[0], "value": json.loads(base64.b64decode(found[0]["value"]))}


def _revision(answered: dict[str, Any]) -> int:
    return int(answered["header"]["revision"])


def _claim(found: dict[str, Any]) -> Claim:
    value = found["value"]
    return Claim(int(value["epoch"]), int(value["master"]), frozenset(map(int, value["inSync"])))


def _holder(found: dict[str, Any]) -> Holder:
    value = found["value"]
    return replace(Holder(int(value["brokerId"])), remoting=value["remoting"], replication=value["replication"])
