"""The Helm chart in deploy/helm, linted and rendered by Helm: it makes what the manifest in deploy/kubernetes has."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from aerobee_broker.config import BrokerConfig
from tests.support.kube_apiserver import administered_kube_apiserver
from tests.support.kubernetes import NAMESPACE
from tests.support.programs import HELM, go_program

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "aerobee"

pytestmark = [
    pytest.mark.toolchain,
    pytest.mark.sdk("Helm"),
    pytest.mark.skipif("AEROBEE_TOOLCHAINS" not in os.environ, reason="runs with `make test-sdks`"),
    pytest.mark.timeout(3000),  # the first run builds Helm
]


def helm(*arguments: str) -> str:
    """The output of Helm. AssertionError, with its errors, if it fails."""
    command = [str(go_program(HELM)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(*values: str) -> dict[str, Any]:
    """The objects of the chart by kind."""
    sets = [word for value in values for word in ("--set", value)]
    objects = yaml.safe_load_all(helm("template", "broker", str(CHART), *sets))
    return {each["kind"]: each for each in objects}


def pod(objects: dict[str, Any]) -> dict[str, Any]:
    """The specification of the broker's pod."""
    found: dict[str, Any] = objects["StatefulSet"]["spec"]["template"]["spec"]
    return found


def test_the_chart_has_no_findings() -> None:
    """Strictly linted, with the defaults and with everything turned on."""
    helm("lint", "--strict", str(CHART))
    helm("lint", "--strict", str(CHART), "--set", "dev=true,secretName=accounts,storage.className=local,image.tag=1")


def test_a_server_of_kubernetes_accepts_the_objects(tmp_path: Path) -> None:
    """A real API server refuses none of them, pods included, with the defaults and with everything turned on."""
    everything = ("dev=true,secretName=accounts,storage.className=local,settings.store.retention_hours=48",)
    with administered_kube_apiserver(tmp_path) as (_, administrator):
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        administrator.apply(account, NAMESPACE)
        for each in (*rendered().values(), *rendered(*everything).values()):
            assert administrator.refusal(each, NAMESPACE) == "", each["kind"]


def test_the_defaults_are_the_manifest() -> None:
    """The pod, its probes, limits and rights, the ports and the volume are those of deploy/kubernetes/aerobee.yaml."""
    objects = rendered("image.tag=latest")
    manifest = {
        each["kind"]: each for each in yaml.safe_load_all((ROOT / "deploy/kubernetes/aerobee.yaml").read_text())
    }
    ours, theirs = pod(objects), pod(manifest)
    for spec in (ours, theirs):
        for volume in spec["volumes"]:
            volume.get("configMap", {}).pop("name", None)
    assert ours == theirs
    assert objects["Service"]["spec"]["ports"] == manifest["Service"]["spec"]["ports"]
    claims = [each["StatefulSet"]["spec"]["volumeClaimTemplates"] for each in (objects, manifest)]
    assert claims[0] == claims[1]
    assert objects["ConfigMap"]["data"]["aerobee.toml"].split() == manifest["ConfigMap"]["data"]["aerobee.toml"].split()


def test_settings_reach_the_broker(tmp_path: Path) -> None:
    """Values of all kinds become a file that the broker accepts; a change of them restarts the pod."""
    objects = rendered(
        "settings.store.flush=async", "settings.store.retention_hours=48.5", "settings.delivery.long_polling=false"
    )
    file = tmp_path / "aerobee.toml"
    file.write_text(objects["ConfigMap"]["data"]["aerobee.toml"])
    config = BrokerConfig.load(config_file=file)
    assert (config.store.flush, config.store.retention_hours, config.delivery.long_polling) == ("async", 48.5, False)
    assert tomllib.loads(file.read_text()).keys() == {"store", "delivery"}
    sums = [
        each["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
        for each in (objects, rendered())
    ]
    assert sums[0] != sums[1]


def test_what_can_be_turned_on() -> None:
    """`dev`, a secret, a class of storage and an image of one's own."""
    objects = rendered(
        "dev=true", "secretName=accounts", "storage.className=local", "image.repository=registry/aerobee"
    )
    (container,) = pod(objects)["containers"]
    assert container["args"][-1] == "--dev"
    assert container["image"].startswith("registry/aerobee:")
    assert {"name": "secrets", "secret": {"secretName": "accounts", "defaultMode": 0o440}} in pod(objects)["volumes"]
    assert "/etc/aerobee-secrets" in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert objects["StatefulSet"]["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "local"
    selected = objects["Service"]["spec"]["selector"].items()
    assert selected <= objects["StatefulSet"]["spec"]["template"]["metadata"]["labels"].items()
