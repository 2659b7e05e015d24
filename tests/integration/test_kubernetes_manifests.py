"""A real API server of Kubernetes accepts the manifests of deploy/kubernetes, pods included, and no unknown fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kube_apiserver import Administrator, administered_kube_apiserver
from tests.support.kubernetes import NAMESPACE

DIRECTORY = Path(__file__).parents[2] / "deploy" / "kubernetes"
MANIFESTS = sorted(path.name for path in DIRECTORY.glob("*.yaml"))


def objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DIRECTORY / name).read_text()))


@pytest.fixture(scope="module")
def administrator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administrator]:
    """Of a namespace with the accounts that pods need; elsewhere a controller creates the first."""
    with administered_kube_apiserver(tmp_path_factory.mktemp("kubernetes")) as (_, administrator):
        for name in ("default", "aerobee"):
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
            administrator.apply(account, NAMESPACE)
        yield administrator


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_the_server_accepts_every_object(administrator: Administrator, manifest: str) -> None:
    """Schema, defaults, admission: nothing is refused."""
    for each in objects(manifest):
        if each["kind"] != "ServiceAccount":  # the fixture has created it
            assert administrator.refusal(each, NAMESPACE) == "", f"{each['kind']} {each['metadata']['name']}"


@pytest.mark.parametrize(
    ("mistake", "refusal"),
    [
        ("unknown field", r'unknown field "spec.template.spec.terminationGracePeriod"'),
        ("wrong type", r"cannot unmarshal string"),
        ("volume that is not there", r"volumeMounts\[\d\].name: Not found"),
    ],
)
def test_the_server_refuses_mistakes(administrator: Administrator, mistake: str, refusal: str) -> None:
    """The check above notices a misspelt field, a wrong type, and a mount without its volume."""
    broken = next(each for each in objects("aerobee.yaml") if each["kind"] == "StatefulSet")
    pod = broken["spec"]["template"]["spec"]
    match mistake:
        case "unknown field":
            pod["terminationGracePeriod"] = 60
        case "wrong type":
            broken["spec"]["replicas"] = "one"
        case _:
            pod["volumes"] = []
    assert re.search(refusal, administrator.refusal(broken, NAMESPACE))
