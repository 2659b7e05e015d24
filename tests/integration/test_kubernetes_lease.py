"""What the lease in Kubernetes has beside the contract of every lease: expiry by its observers, errors, settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aerobee_broker.config.replication import ReplicationConfig
from aerobee_broker.replication import kubernetes
from aerobee_broker.replication.kubernetes import KubernetesAccess, KubernetesLease
from aerobee_broker.replication.lease import (
    Claim,
    Holder,
    LeaseConflictError,
    LeaseLostError,
    LeaseUnavailableError,
    LeaseView,
)
from aerobee_store.errors import ConfigError
from tests.support.kube_apiserver import ADMINISTRATOR_TOKEN, administered_kube_apiserver, running_kube_apiserver
from tests.support.kubernetes import NAMESPACE, TOKEN, ApiServer, StandIn, running_stand_in, serving

_FIRST = Claim(1, 1, frozenset((1,)))
_SECOND = Claim(2, 2, frozenset((2,)))
_SECONDS = 10
_NUMBERS = itertools.count()
_EXAMPLE = Path(__file__).parents[2] / "deploy" / "kubernetes" / "replicated.yaml"


@pytest.fixture(scope="module", params=["stand-in", "kube-apiserver"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    running = running_stand_in if request.param == "stand-in" else running_kube_apiserver
    with running(tmp_path_factory.mktemp("kubernetes")) as found:
        yield found


class _Group:
    """One group's lease with a clock that the test sets."""

    def __init__(self, access: KubernetesAccess) -> None:
        self.access = access
        self.name = f"group-{next(_NUMBERS)}"
        self.time = 1000.0

    def broker(self, broker_id: int, lease_seconds: int = _SECONDS, *, timeout_seconds: float = 60) -> KubernetesLease:
        return KubernetesLease(
            self.access, self.name, broker_id, lease_seconds, timeout_seconds=timeout_seconds, now=lambda: self.time
        )


@pytest.fixture
def group(server: ApiServer) -> _Group:
    return _Group(server.access())


# --- Expiry ---------------------------------------------------------------------------------------------------


async def test_a_lease_ends_when_an_observer_has_seen_no_change_for_its_duration(group: _Group) -> None:
    """The observer counts from its own first look, and from each change that it sees."""
    first, second = group.broker(1), group.broker(2)
    version = await first.take(await first.read(), _FIRST)
    group.time += 500  # nobody has looked yet
    assert (await second.read()).holder == Holder(1)
    group.time += 9.9
    assert (await second.read()).holder == Holder(1)
    await first.renew()
    group.time += 9.9
    assert (await second.read()).holder == Holder(1)
    group.time += 9.9
    assert (await second.read()).holder == Holder(1)
    group.time += 0.1
    assert await second.read() == LeaseView(version, _FIRST, None)


async def test_a_lease_is_not_taken_before_its_duration_has_passed(group: _Group) -> None:
    """A view without a holder does not suffice: the one that takes the lease has watched it itself."""
    first, second = group.broker(1), group.broker(2)
    version = await first.take(await first.read(), _FIRST)
    free = LeaseView(version, _FIRST, None)
    with pytest.raises(LeaseConflictError):
        await second.take(free, _SECOND)
    group.time += 9.9
    with pytest.raises(LeaseConflictError):
        await second.take(free, _SECOND)
    group.time += 0.1
    await second.take(free, _SECOND)
    assert (await first.read()).holder == Holder(2)


async def test_a_renewal_that_the_observer_has_not_seen_refuses_the_taking(group: _Group) -> None:
    """The duration has passed for the observer, but the lease was renewed after its last look."""
    first, second = group.broker(1), group.broker(2)
    await first.take(await first.read(), _FIRST)
    await second.read()
    group.time += _SECONDS
    free = await second.read()
    assert free.holder is None
    await first.renew()
    with pytest.raises(LeaseConflictError):
        await second.take(free, _SECOND)
    assert (await second.read()).claim == _FIRST


async def test_a_renewal_between_reading_and_writing_refuses_the_taking(
    group: _Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write names the resourceVersion that was read."""
    first, second = group.broker(1), group.broker(2)
    await first.take(await first.read(), _FIRST)
    await second.read()
    group.time += _SECONDS
    free = await second.read()
    call = second._call

    async def slowly(method: str, sent: dict[str, Any] | None = None) -> dict[str, Any]:
        if method == "PUT":
            await first.renew()
        return await call(method, sent)

    monkeypatch.setattr(second, "_call", slowly)
    with pytest.raises(LeaseConflictError):
        await second.take(free, _SECOND)
    assert (await first.read()).claim == _FIRST
    await first.renew()


async def test_the_longer_of_two_settings_counts(group: _Group) -> None:
    """The holder stops by its own setting, which is longer than the observer's, and the reverse."""
    first, second, third = group.broker(1, 30), group.broker(2, 10), group.broker(3, 40)
    await first.take(await first.read(), _FIRST)
    await second.read()
    await third.read()
    group.time += 29.9
    assert (await second.read()).holder == Holder(1)
    group.time += 0.1
    assert (await second.read()).holder is None
    assert (await third.read()).holder == Holder(1)
    group.time += 10
    assert (await third.read()).holder is None


async def test_every_renewal_is_a_change_whatever_the_clock_says(
    group: _Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that stands still, or is set back, writes the same renewTime. The observer sees the renewal anyway."""
    monkeypatch.setattr(kubernetes, "_now", lambda: "2026-01-01T00:00:00.000000Z")
    first, second = group.broker(1), group.broker(2)
    await first.take(await first.read(), _FIRST)
    for _ in range(3):
        await second.read()
        group.time += 9.9
        await first.renew()
    assert (await second.read()).holder == Holder(1)


async def test_an_old_holder_of_the_same_broker_cannot_renew(group: _Group) -> None:
    """A process that was paused, and its successor with the same id and store."""
    paused, successor = group.broker(1), group.broker(1)
    await paused.take(await paused.read(), _FIRST)
    await successor.read()
    group.time += _SECONDS
    await successor.take(await successor.read(), Claim(2, 1, frozenset((1,))))
    with pytest.raises(LeaseLostError, match="broker-1-"):
        await paused.renew()
    await paused.release()
    await successor.renew()


# --- The object -----------------------------------------------------------------------------------------------


async def test_a_deleted_lease_is_not_created_by_its_old_holder(server: ApiServer, group: _Group) -> None:
    """Neither is the claim of the next Lease confused with that of the deleted one."""
    first, second = group.broker(1), group.broker(2)
    version = await first.take(await first.read(), _FIRST)
    server.delete(group.name)
    with pytest.raises(LeaseLostError, match="no broker"):
        await first.renew()
    with pytest.raises(LeaseConflictError):
        await first.change(version, Claim(1, 1, frozenset((1, 2))))
    empty = await second.read()
    assert empty == LeaseView(0, None, None)
    again = await second.take(empty, _SECOND)
    assert again != version
    with pytest.raises(LeaseConflictError):
        await first.change(version, _FIRST)


async def test_a_lease_deleted_between_reading_and_writing_stays_deleted(
    server: ApiServer, group: _Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server creates a Lease by PUT. The uid of the deleted one prevents it."""
    first = group.broker(1)
    await first.take(await first.read(), _FIRST)
    call = first._call

    async def slowly(method: str, sent: dict[str, Any] | None = None) -> dict[str, Any]:
        if method == "PUT":
            server.delete(group.name)
        return await call(method, sent)

    monkeypatch.setattr(first, "_call", slowly)
    with pytest.raises(LeaseLostError):
        await first.renew()
    assert await group.broker(2).read() == LeaseView(0, None, None)


async def test_a_taking_without_an_answer_is_withdrawn(tmp_path: Path) -> None:
    """The lease was taken, and nobody serves. If the withdrawal has no answer either, the lease expires."""
    stand_in = StandIn({TOKEN: {"get", "create", "update"}})
    with serving(tmp_path, stand_in) as server:
        group = _Group(server.access())
        first, second = group.broker(1), group.broker(2)
        stand_in.loses_answers = True
        with pytest.raises(LeaseUnavailableError, match="not HTTP"):
            await first.take(await first.read(), _FIRST)
        view = await second.read()
        assert (view.claim, view.holder) == (_FIRST, None)
        with pytest.raises(LeaseLostError):
            await first.renew()


async def test_the_lease_for_people(tmp_path: Path) -> None:
    """`kubectl get lease` shows the holder and its times."""
    stand_in = StandIn({TOKEN: {"get", "create", "update"}})
    with serving(tmp_path, stand_in) as server:
        group = _Group(server.access())
        first, second = group.broker(1), group.broker(2)
        await first.take(await first.read(), _FIRST)
        spec = stand_in.leases[group.name]["spec"]
        assert (spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (_SECONDS, 1)
        assert spec["holderIdentity"].startswith("broker-1-")
        assert spec["renewTime"] >= spec["acquireTime"]
        await first.release()
        assert "holderIdentity" not in stand_in.leases[group.name]["spec"]
        await second.take(await second.read(), _SECOND)
        assert stand_in.leases[group.name]["spec"]["leaseTransitions"] == 2


# --- Errors ---------------------------------------------------------------------------------------------------


async def test_a_refused_account_is_told_what_to_do(server: ApiServer, tmp_path: Path) -> None:
    """The token, the permission, the namespace."""
    (tmp_path / "token").write_text("another")
    with pytest.raises(LeaseUnavailableError, match=r"status 401: Unauthorized; the token in .*kubernetes_token_file"):
        await _Group(server.access(token_file=tmp_path / "token")).broker(1).read()


async def test_a_missing_permission_is_named(tmp_path: Path) -> None:
    """The error names verbs, resource and namespace."""
    stand_in = StandIn({TOKEN: {"get"}})
    with serving(tmp_path, stand_in) as server:
        lease = _Group(server.access()).broker(1)
        with pytest.raises(LeaseUnavailableError, match=r"status 403: .*cannot create.*create.*leases.*messages"):
            await lease.take(await lease.read(), _FIRST)
        stand_in.verbs[TOKEN] = set()
        with pytest.raises(LeaseUnavailableError, match=r"cannot get"):
            await lease.read()
        stand_in.verbs[TOKEN] = {"get", "create", "update"}
        lease = _Group(server.access(namespace="unknown")).broker(1)
        with pytest.raises(LeaseUnavailableError, match=r'404: namespaces "unknown".*create the namespace unknown'):
            await lease.take(await lease.read(), _FIRST)


async def test_a_real_server_names_permission_and_namespace(tmp_path: Path) -> None:
    """The Role of the example suffices for the Lease of the example, and for no other one."""
    with administered_kube_apiserver(tmp_path) as (server, administrator):
        administrator.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "aerobee"}})
        for document in yaml.safe_load_all(_EXAMPLE.read_text()):
            if document["kind"] in ("ServiceAccount", "Role", "RoleBinding", "Lease"):
                administrator.apply(document, "aerobee")
        (tmp_path / "restricted").write_text(administrator.token("aerobee", "aerobee"))
        restricted = server.access(token_file=tmp_path / "restricted", namespace="aerobee")
        group = _Group(restricted)
        with pytest.raises(LeaseUnavailableError, match=r"status 403: .*cannot get.*namespace aerobee"):
            await group.broker(1).read()
        group.name = "aerobee"
        first, second = group.broker(1), group.broker(2)
        version = await first.take(await first.read(), _FIRST)
        await first.renew()
        await first.change(version, Claim(1, 1, frozenset((1, 2))))
        await first.release()
        await second.take(await second.read(), _SECOND)
        (tmp_path / "admin").write_text(ADMINISTRATOR_TOKEN)
        lease = _Group(server.access(token_file=tmp_path / "admin", namespace="unknown")).broker(1)
        with pytest.raises(LeaseUnavailableError, match=r'404: namespaces "unknown".*create the namespace unknown'):
            await lease.take(await lease.read(), _FIRST)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            (500, b'{"kind": "Status", "message": "etcdserver: request timed out"}'),
            "500: etcdserver: request timed out$",
        ),
        ((429, b"too many requests"), "429: b'too many requests'$"),
        ((404, b"<html>no such page</html>"), "404: b'<html>"),
        ((200, b"[]"), r"200: b'\[\]'"),
        ((200, b'{"kind": "Lease"}'), "is not a Lease"),
        ((200, b'{"kind": "Lease", "metadata": {"annotations": []}, "spec": {"holderIdentity": "x"}}'), "belongs to"),
        ((200, b'{"kind": "Lease", "metadata": {"annotations": ["x"]}}'), "is not a Lease"),
        ((200, b'{"kind": "Lease", "metadata": {}}'), "damaged"),
        (
            (200, b'{"kind": "Lease", "metadata": {"resourceVersion": "1", "annotations": {"aerobee/claim": "x"}}}'),
            "damaged",
        ),
        (
            (200, b'{"kind": "Lease", "metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": "scheduler"}}'),
            "belongs to another program, 'scheduler'; choose another",
        ),
        ((200, b"x" * (3 << 20)), "longer than"),
    ],
)
async def test_answers_that_are_of_no_use(tmp_path: Path, answer: tuple[int, bytes], text: str) -> None:
    """The outcome is unknown, and the error has the cause."""
    with (
        serving(tmp_path, StandIn({}, answer=lambda _: answer)) as server,
        pytest.raises(LeaseUnavailableError, match=text),
    ):
        await _Group(server.access()).broker(1).read()


async def test_a_slow_server_is_given_up(tmp_path: Path) -> None:
    """The limit holds for the whole call."""
    stand_in = StandIn({TOKEN: {"get"}}, delay_seconds=5.0)
    with (
        serving(tmp_path, stand_in) as server,
        pytest.raises(LeaseUnavailableError, match=r"Kubernetes at 127\.0\.0\.1:\d+: timeout"),
    ):
        await _Group(server.access()).broker(1, timeout_seconds=0.2).read()


async def test_endless_conflicts_are_given_up(tmp_path: Path) -> None:
    """A server that refuses every write does not keep the broker busy for ever."""
    stand_in = StandIn({TOKEN: {"get", "create", "update"}})
    with serving(tmp_path, stand_in) as server:
        lease = _Group(server.access()).broker(1, timeout_seconds=1)
        missing, refused = (404, b'{"kind": "Status"}'), (409, b'{"kind": "Status", "message": "modified"}')
        stand_in.answer = lambda method: missing if method == "GET" else refused
        with pytest.raises(LeaseUnavailableError, match="timeout"):
            await lease.take(LeaseView(0, None, None), _FIRST)


async def test_a_token_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    """Kubernetes replaces the token of a pod before it expires."""
    stand_in = StandIn({TOKEN: {"get", "create", "update"}})
    with serving(tmp_path, stand_in) as server:
        lease = _Group(server.access()).broker(1)
        await lease.take(await lease.read(), _FIRST)
        stand_in.verbs["renewed"] = stand_in.verbs.pop(TOKEN)
        with pytest.raises(LeaseUnavailableError, match="401"):
            await lease.renew()
        server.token_file.write_text("renewed\n")
        await lease.renew()
        server.token_file.unlink()
        with pytest.raises(LeaseUnavailableError, match="No such file"):
            await lease.renew()


async def test_a_certificate_of_an_unknown_authority_is_refused(tmp_path: Path) -> None:
    """No token is sent to such a server."""
    with (
        serving(tmp_path, StandIn({TOKEN: {"get"}})) as server,
        pytest.raises(LeaseUnavailableError, match="certificate"),
    ):
        await _Group(server.access(ca=None)).broker(1).read()


# --- Settings -------------------------------------------------------------------------------------------------

_FIXED: dict[str, Any] = {"role": "master", "listen": "127.0.0.1:1", "acks": "all", "kubernetes_lease": "aerobee"}


def test_a_pod_needs_the_name_of_the_lease_only(tmp_path: Path) -> None:
    """Address, namespace, token and authorities are what Kubernetes gives every pod."""
    with running_stand_in(tmp_path) as server:
        (tmp_path / "namespace").write_text("messages\n")
        for host, url in (("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")):
            environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
            found = KubernetesAccess.load(ReplicationConfig(**_FIXED), environment, tmp_path)
            assert (found.api, found.namespace, found.token_file) == (url, NAMESPACE, server.token_file)
            assert found.security is not None


def test_kubectl_proxy_needs_no_token(tmp_path: Path) -> None:
    """The proxy has the credentials."""
    config = ReplicationConfig(**_FIXED, kubernetes_api="http://127.0.0.1:8001", kubernetes_namespace="messages")
    assert KubernetesAccess.load(config, {}, tmp_path) == KubernetesAccess("http://127.0.0.1:8001", "messages")


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("environment", r"kubernetes_api: missing, and this process is in no pod \(KUBERNETES_SERVICE_HOST"),
        ("namespace", r"kubernetes_namespace: .*No such file.*automountServiceAccountToken"),
        ("token", r"kubernetes_token_file: .*No such file.*automountServiceAccountToken"),
        ("ca.crt", r"kubernetes_ca: .*ca\.crt has no certificates"),
    ],
)
def test_what_a_pod_lacks_is_named(tmp_path: Path, missing: str, text: str) -> None:
    """The broker does not start."""
    with running_stand_in(tmp_path):
        (tmp_path / "namespace").write_text("messages")
        environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
        if missing == "environment":
            environment = {}
        else:
            (tmp_path / missing).unlink()
        with pytest.raises(ConfigError, match=text):
            KubernetesAccess.load(ReplicationConfig(**_FIXED), environment, tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kubernetes_lease": "A b"}, "'A b' is not a name of Kubernetes"),
        ({"kubernetes_namespace": "a/b"}, "'a/b' is not a name"),
        ({"kubernetes_api": "10.0.0.1:6443"}, "not a URL such as https://10.0.0.1:6443"),
        ({"kubernetes_api": "http://a:1", "kubernetes_token_file": Path("t")}, "a token is not sent over http://"),
        ({"etcd": ("http://e:2379",)}, "in place of replication.etcd"),
        ({"acks": "none"}, "set a number of replicas, or all"),
        ({"role": "none"}, "replication.kubernetes_lease: every broker"),
    ],
)
def test_inconsistent_settings(changes: dict[str, Any], text: str) -> None:
    """The error names the setting."""
    with pytest.raises(ConfigError, match=text):
        ReplicationConfig(**{**_FIXED, **changes})
