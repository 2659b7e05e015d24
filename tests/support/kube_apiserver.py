"""A real kube-apiserver with a real etcd, for tests of the lease."""

from __future__ import annotations

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.etcd import running_etcd
from tests.support.kubernetes import NAMESPACE, ApiServer, server_certificate
from tests.support.ports import free_ports
from tests.support.programs import kube_apiserver, without

_SECONDS: Final = 300.0
ADMINISTRATOR_TOKEN: Final = "token-of-the-administrator"
_LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_PLURALS: Final = {"NetworkPolicy": "networkpolicies"}
"""Of the kinds that do not only get an "s"."""
_RULE: Final = {
    "apiGroups": ["coordination.k8s.io"],
    "resources": ["leases"],
    "verbs": ["get", "create", "update"],
}
_REFERENCE: Final = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "broker"}
_ACCOUNT: Final[list[dict[str, Any]]] = [
    {"apiVersion": "v1", "kind": "ServiceAccount"},
    {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": [_RULE]},
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "subjects": [{"kind": "ServiceAccount", "name": "broker"}],
        "roleRef": _REFERENCE,
    },
]
"""A service account that may get, create and update every Lease of its namespace."""


@dataclass(frozen=True, slots=True)
class Administrator:
    """Calls of an administrator."""

    url: str
    authority: Path

    def call(self, method: str, path: str, sent: dict[str, Any] | None = None) -> Any:
        """The answer as JSON or text. Raises HTTPError."""
        body = None if sent is None else json.dumps(sent).encode()
        headers = {"Authorization": f"Bearer {ADMINISTRATOR_TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        context = ssl.create_default_context(cafile=self.authority)
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            found = answer.read()
        return json.loads(found) if found.startswith(b"{") else found.decode()

    def apply(self, document: dict[str, Any], namespace: str = "") -> None:
        """Create an object of a manifest."""
        self.call("POST", _place(document, namespace), document)

    def refusal(self, document: dict[str, Any], namespace: str) -> str:
        """Why the server would not create an object, unknown fields included; empty if it would. It keeps nothing.

        A StatefulSet is tried out with its pod, which the server otherwise looks at when a controller makes it.
        """
        documents = [document] if document["kind"] != "StatefulSet" else [document, _first_pod(document)]
        for each in documents:
            try:
                self.call("POST", f"{_place(each, namespace)}?dryRun=All&fieldValidation=Strict", each)
            except urllib.error.HTTPError as error:
                with error:
                    return str(json.loads(error.read())["message"])
        return ""

    def token(self, namespace: str, account: str) -> str:
        """A new token of a service account, which the API server issues."""
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self.call("POST", path, request)["status"]["token"])


def _place(document: dict[str, Any], namespace: str) -> str:
    """The path of the objects of a document's kind."""
    group, _, version = document["apiVersion"].rpartition("/")
    kind = document["kind"]
    place = f"/apis/{group}/{version}" if group else f"/api/{version}"
    if namespace:
        place += f"/namespaces/{namespace}"
    return f"{place}/{_PLURALS.get(kind, kind.lower() + 's')}"


def _first_pod(document: dict[str, Any]) -> dict[str, Any]:
    """The pod that the controller of StatefulSets makes, in which claims are volumes."""
    specification = document["spec"]
    template = specification["template"]
    claims = [
        {"name": each["metadata"]["name"], "persistentVolumeClaim": {"claimName": each["metadata"]["name"]}}
        for each in specification.get("volumeClaimTemplates", ())
    ]
    pod = {**template["spec"], "volumes": [*template["spec"].get("volumes", ()), *claims]}
    name = document["metadata"]["name"] + "-0"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": name}, "spec": pod}


@contextmanager
def running_kube_apiserver(directory: Path) -> Iterator[ApiServer]:
    """With RBAC, and a service account that may get, create and update Leases of NAMESPACE."""
    with administered_kube_apiserver(directory) as (server, _):
        yield server


@contextmanager
def administered_kube_apiserver(directory: Path) -> Iterator[tuple[ApiServer, Administrator]]:
    """The same, and its administrator."""
    program = kube_apiserver()
    if program is None:
        without("needs kube-apiserver (`make kube-apiserver` builds it; or name one in AEROBEE_KUBE_APISERVER)")
    certificate, key, authority = server_certificate(directory)
    accounts_key = directory / "accounts.key"
    accounts_key.write_bytes(
        rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    (directory / "tokens.csv").write_text(f"{ADMINISTRATOR_TOKEN},admin,admin,system:masters\n")
    port = free_ports(1)[0]
    with running_etcd(directory) as etcd, (directory / "kube-apiserver.log").open("wb") as log:
        command = [
            *(str(program), "--etcd-servers", etcd, "--bind-address=127.0.0.1", f"--secure-port={port}"),
            *("--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"),
            *("--tls-cert-file", str(certificate), "--tls-private-key-file", str(key)),
            *("--cert-dir", str(directory), "--token-auth-file", str(directory / "tokens.csv")),
            *("--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24"),
            *("--service-account-issuer=https://kubernetes.default.svc",),
            *("--service-account-key-file", str(accounts_key), "--service-account-signing-key-file", str(accounts_key)),
        ]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            administrator = Administrator(f"https://127.0.0.1:{port}", authority)
            _wait_until_ready(administrator, process, directory / "kube-apiserver.log")
            administrator.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
            for document in _ACCOUNT:
                administrator.apply({**document, "metadata": {"name": "broker"}}, NAMESPACE)
            token_file = directory / "token"
            token_file.write_text(administrator.token(NAMESPACE, "broker"))

            def delete(name: str) -> None:
                administrator.call("DELETE", f"{_LEASES}/{name}")

            yield ApiServer(administrator.url, authority, token_file, delete), administrator
        finally:
            process.kill()
            process.wait()


def _wait_until_ready(administrator: Administrator, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if administrator.call("GET", "/readyz") == "ok":
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(f"kube-apiserver does not start: {log.read_text()[-3000:]}")
