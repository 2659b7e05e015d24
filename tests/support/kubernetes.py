"""A stand-in for the API server of Kubernetes; `kube_apiserver.py` runs a real one.

The stand-in knows only Lease objects. It answers as the real one does, and the same tests apply to both. The
resourceVersion and the uid of a write are compared, and an unchanged object gets no new resourceVersion. Refused are a
wrong token (401), actions that the account may not do (403), missing objects and namespaces (404), and malformed
objects (400, 422).
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from aerobee_broker.config.replication import ReplicationConfig
from aerobee_broker.listening.certificates import development_certificate
from aerobee_broker.replication.kubernetes import KubernetesAccess

NAMESPACE: Final = "messages"
TOKEN: Final = "token-of-the-broker"
_PATH: Final = re.compile(r"/apis/coordination\.k8s\.io/v1/namespaces/([^/]+)/leases(?:/([^/]+))?")
_MICRO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_SPEC: Final = {
    "holderIdentity": str,
    "leaseDurationSeconds": int,
    "acquireTime": str,
    "renewTime": str,
    "leaseTransitions": int,
}
_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    422: "Invalid",
}


@dataclass(slots=True)
class ApiServer:
    """An API server, and a broker's account there, which may get, create and update Leases.

    `authority` and `token_file` are files, as in a pod.
    """

    url: str
    authority: Path
    token_file: Path
    delete: Callable[[str], None]
    """Deletes the Lease of this name, as an operator does."""
    namespace: str = NAMESPACE

    def settings(self, name: str, *, url: str | None = None) -> dict[str, Any]:
        """Settings of the section `replication` for the Lease `name`; `url` leads to the server another way."""
        return {
            "kubernetes_lease": name,
            "kubernetes_namespace": self.namespace,
            "kubernetes_api": url or self.url,
            "kubernetes_token_file": self.token_file,
            "kubernetes_ca": self.authority,
        }

    def access(self, **changes: Any) -> KubernetesAccess:
        """The access with these settings, `kubernetes_` left out of their names."""
        changed = {f"kubernetes_{name}": value for name, value in changes.items()}
        settings = {**self.settings("unused"), **changed}
        return KubernetesAccess.load(ReplicationConfig(role="master", listen="127.0.0.1:1", acks="all", **settings))


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class StandIn:
    """The state of the stand-in. `verbs`: what each token may do. `answer`: sent in place of its own, by the
    request's method. With `loses_answers` writes are executed and the connection ends without an answer."""

    verbs: dict[str, set[str]]
    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    revision: int = 1000
    answer: Callable[[str], tuple[int, bytes]] | None = None
    loses_answers: bool = False
    delay_seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def respond(self, method: str, path: str, authorization: str, body: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        time.sleep(self.delay_seconds)
        if self.answer is not None:
            return self.answer(method)
        with self.lock:
            try:
                status, found = self._respond(method, path, authorization, body)
            except _RefusedError as error:
                status, found = error.status, {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
                found |= {"message": str(error), "reason": _REASONS[error.status], "code": error.status}
        if self.loses_answers and method != "GET":
            return 0, b""
        return status, json.dumps(found).encode()

    def delete(self, name: str) -> None:
        """Delete a Lease."""
        with self.lock:
            del self.leases[name]

    def _respond(self, method: str, path: str, authorization: str, body: bytes) -> tuple[int, dict[str, Any]]:
        verbs = self.verbs.get(authorization.removeprefix("Bearer "))
        if verbs is None:
            raise _RefusedError(401, "Unauthorized")
        place = _PATH.fullmatch(path)
        verb = {"GET": "get", "POST": "create", "PUT": "update"}[method]
        if place is None or (place[2] is None) is not (verb == "create"):
            raise _RefusedError(404, "the server could not find the requested resource")
        namespace, name = place.groups()
        if verb not in verbs:
            raise _RefusedError(403, f'leases.coordination.k8s.io is forbidden: cannot {verb} resource "leases"')
        if verb == "create" and namespace != NAMESPACE:
            raise _RefusedError(404, f'namespaces "{namespace}" not found')
        old = self.leases.get(name or "") if namespace == NAMESPACE else None
        if verb == "get":
            if old is None:
                raise _RefusedError(404, f'leases.coordination.k8s.io "{name}" not found')
            return 200, old
        new = _checked(body, namespace, name)
        return (201, self._create(new)) if verb == "create" else (200, self._update(old, new))

    def _create(self, new: dict[str, Any]) -> dict[str, Any]:
        name = new["metadata"]["name"]
        if name in self.leases:
            raise _RefusedError(409, f'leases.coordination.k8s.io "{name}" already exists')
        if "resourceVersion" in new["metadata"]:
            raise _RefusedError(400, "resourceVersion should not be set on objects to be created")
        new["metadata"] |= {"namespace": NAMESPACE, "uid": str(uuid.uuid4())}
        return self._store(name, new)

    def _update(self, old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
        """A Lease may be created by an update, unless the update names its uid."""
        given = new["metadata"]
        if old is None:
            if "uid" in given:
                raise _RefusedError(409, f"Precondition failed: UID in precondition: {given['uid']}, UID in object: ")
            given.pop("resourceVersion", None)
            return self._create(new)
        if given.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            raise _RefusedError(409, f"Precondition failed: UID in precondition: {given['uid']}")
        if "resourceVersion" not in given:
            raise _RefusedError(422, "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update")
        if given["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise _RefusedError(409, "the object has been modified; please apply your changes to the latest version")
        if new == old:
            return old
        new["metadata"] |= {"uid": old["metadata"]["uid"], "namespace": NAMESPACE}
        return self._store(given["name"], new)

    def _store(self, name: str, new: dict[str, Any]) -> dict[str, Any]:
        self.revision += 1
        new["metadata"]["resourceVersion"] = str(self.revision)
        self.leases[name] = deepcopy(new)
        return new


def _checked(body: bytes, namespace: str, name: str | None) -> dict[str, Any]:
    """A written Lease, as strictly as the real server reads it."""
    found = json.loads(body)
    if (found.get("apiVersion"), found.get("kind")) != ("coordination.k8s.io/v1", "Lease"):
        raise _RefusedError(400, "the object provided is unrecognized")
    metadata, spec = found["metadata"], found.setdefault("spec", {})
    if metadata.get("namespace", namespace) != namespace or metadata["name"] != (name or metadata["name"]):
        raise _RefusedError(400, "the name of the object does not match the name on the URL")
    if not all(isinstance(value, str) for value in metadata.get("annotations", {}).values()):
        raise _RefusedError(400, "json: cannot unmarshal into Go struct field ObjectMeta.metadata.annotations")
    for key, value in spec.items():
        if type(value) is not _SPEC[key] or (key.endswith("Time") and not _MICRO_TIME.fullmatch(str(value))):
            raise _RefusedError(400, f"Lease in version v1 cannot be handled: {key} {value!r}")
    if spec.get("leaseDurationSeconds", 1) <= 0 or spec.get("leaseTransitions", 0) < 0:
        raise _RefusedError(422, "spec: Invalid value: must be greater than 0")
    assert isinstance(found, dict)
    return found


class _Handler(BaseHTTPRequestHandler):
    stand_in: StandIn

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        status, answer = self.stand_in.respond(self.command, self.path, self.headers.get("Authorization", ""), body)
        if not status:
            return
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: every renewal would be a line."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, security: ssl.SSLContext, handler: type[_Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._security = security

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the thread of the connection, so that a slow handshake delays no other."""
        with self._security.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)
            with suppress(OSError):
                secured.unwrap()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that was killed, or cut off, is what these tests do."""


@contextmanager
def running_stand_in(directory: Path) -> Iterator[ApiServer]:
    """The stand-in. Tests that need its state use `serving`."""
    stand_in = StandIn({TOKEN: {"get", "create", "update"}})
    with serving(directory, stand_in) as server:
        yield server


@contextmanager
def serving(directory: Path, stand_in: StandIn) -> Iterator[ApiServer]:
    """Serve this stand-in on a free port, with TLS; the file of the account has TOKEN."""
    certificate, key, authority = server_certificate(directory)
    token_file = directory / "token"
    token_file.write_text(TOKEN)
    security = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    security.load_cert_chain(certificate, key)
    server = _Server(security, type("_BoundHandler", (_Handler,), {"stand_in": stand_in}))
    thread = threading.Thread(target=server.serve_forever, name="kubernetes-stand-in", args=(0.05,))
    thread.start()
    try:
        yield ApiServer(f"https://127.0.0.1:{server.server_port}", authority, token_file, stand_in.delete)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def server_certificate(directory: Path) -> tuple[Path, Path, Path]:
    """Files with a certificate for 127.0.0.1, its key, and its authority."""
    issued = development_certificate("127.0.0.1")
    files = directory / "server.crt", directory / "server.key", directory / "ca.crt"
    for path, content in zip(files, (issued.certificate, issued.key, issued.authority), strict=True):
        path.write_bytes(content)
    return files
