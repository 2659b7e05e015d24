"""The files in `deploy/` agree with the broker's settings, ports and paths, and with each other."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from aerobee_broker.cli import build_parser
from aerobee_broker.clients.accounts import Right, load_accounts
from aerobee_broker.config import BrokerConfig, ListenConfig
from aerobee_broker.config.rocketmq_conf import ONLY_ROCKETMQ
from aerobee_broker.errors import ForbiddenError
from tests.support.accounts_file import write_accounts

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
EXAMPLE = DEPLOY / "aerobee.example.toml"
BOARD = DEPLOY / "grafana" / "dashboards" / "aerobee.json"
STORE_DIRECTORY = "/var/lib/aerobee"

# The settings of each section, named by the configuration's classes.
SETTINGS = {
    "broker": ["name", "cluster", "namesrv", "dev"],
    **{
        section: [
            item.name
            for item in dataclasses.fields(kind)
            if item.name != "store_host" and f"{section}.{item.name}" not in ONLY_ROCKETMQ  # derived, not set
        ]
        for section, kind in get_type_hints(BrokerConfig).items()
        if dataclasses.is_dataclass(kind)
    },
}


def read_yaml(path: Path) -> list[Any]:
    """The documents of a YAML file, read with the safe loader."""
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, which comes with the development dependencies")
    return list(yaml.safe_load_all(path.read_text()))


def uncommented(example: str) -> str:
    """The example with every setting uncommented."""
    return re.sub(r"(?m)^#(?=[a-z_]+ = )", "", example)


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", [])


# --- The example configuration ------------------------------------------------------------------------------


def test_the_unchanged_example_is_the_default() -> None:
    """Every setting of the example is commented out, so an unchanged copy is the default configuration."""
    assert BrokerConfig.load(config_file=EXAMPLE) == BrokerConfig.load()


def test_the_example_names_every_setting_once() -> None:
    """Each section lists exactly its settings in the configuration."""
    named: dict[str, list[str]] = {}
    for line in EXAMPLE.read_text().splitlines():
        if section := re.fullmatch(r"\[(\w+)\]", line):
            named[section[1]] = []
        elif setting := re.match(r"#?([a-z_]+) = ", line):
            named[list(named)[-1]].append(setting[1])
    assert {section: sorted(keys) for section, keys in named.items()} == {
        section: sorted(keys) for section, keys in SETTINGS.items()
    }


def test_the_example_shows_the_defaults(tmp_path: Path) -> None:
    """With all comments removed, the example loads and gives the defaults, except for settings without one."""
    everything = tmp_path / "aerobee.toml"
    everything.write_text(uncommented(EXAMPLE.read_text()))
    shown, default = BrokerConfig.load(config_file=everything), BrokerConfig.load()

    assert shown.listen.advertise is not None
    # Their defaults depend on broker.dev; the example shows the resulting values.
    assert (shown.auto_create_topics, shown.auto_create_groups) == (
        default.auto_create_topics,
        default.auto_create_groups,
    )
    unset = dataclasses.replace(
        shown,
        namesrv=(),
        store=dataclasses.replace(shown.store, store_host=default.store.store_host),
        listen=dataclasses.replace(
            shown.listen,
            advertise=None,
            tls=None,
            advertise_tls=None,
            remoting=None,
            advertise_remoting=None,
            console=None,
        ),
        tls=default.tls,
        auth=default.auth,
        peers=default.peers,
        replication=dataclasses.replace(
            shown.replication, etcd_password_file=None, etcd_ca=None, kubernetes_token_file=None, kubernetes_ca=None
        ),
        topics=dataclasses.replace(shown.topics, auto_create=None),
        groups=dataclasses.replace(shown.groups, auto_create=None),
        sources={},
    )
    assert unset == default


def test_the_example_of_accounts_loads(tmp_path: Path) -> None:
    """With its secret keys present it loads, and each account has the permissions of its comment."""
    text = (DEPLOY / "accounts.example.toml").read_text()
    key = tmp_path / "key"
    key.write_text("a secret key\n")
    text = re.sub(r'"/run/secrets/[a-z-]+"', f'"{key}"', text)
    accounts = load_accounts(write_accounts(tmp_path / "accounts.toml", text))
    accounts["operator"].require(Right.ADMIN, "DeleteTopic")
    accounts["checkout"].require(Right.PUBLISH, "audit-2026")
    accounts["billing"].require(Right.CONSUME, "%DLQ%billing")
    assert accounts["reports"].certificate == "CN=reports,O=Example"
    with pytest.raises(ForbiddenError):
        accounts["billing"].require(Right.PUBLISH, "orders")


# --- Other formats ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    sorted(
        path.relative_to(DEPLOY).as_posix()
        for path in DEPLOY.rglob("*")
        if path.suffix in (".yml", ".yaml") and path.parent.name != "templates"  # of Helm, which renders them first
    ),
)
def test_yaml_parses(path: str) -> None:
    """Every YAML file has at least one document, and each is a mapping."""
    documents = read_yaml(DEPLOY / path)
    assert documents
    assert all(isinstance(document, dict) and document for document in documents)


@pytest.mark.parametrize("path", sorted(path.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("*.toml")))
def test_toml_parses(path: str) -> None:
    """Every TOML file is valid."""
    assert tomllib.loads((DEPLOY / path).read_text())


def test_the_image_serves_on_all_addresses_as_an_ordinary_user() -> None:
    """The image sets the store's directory and both addresses in environment variables that the broker accepts."""
    text = (DEPLOY / "Dockerfile").read_text()
    environment = dict(re.findall(r"\b(AEROBEE_[A-Z_]+)=(\S+)", text))
    config = BrokerConfig.load(environment=environment)

    assert str(config.store.directory) == STORE_DIRECTORY
    assert config.listen.grpc.is_wildcard
    assert config.listen.metrics.is_wildcard
    assert f"EXPOSE {config.listen.grpc.port} {config.listen.metrics.port}\n" in text
    assert f"VOLUME {STORE_DIRECTORY}\n" in text
    assert f"'127.0.0.1', {config.listen.metrics.port}" in text.partition("HEALTHCHECK")[2]
    final_stage = text.rpartition("\nFROM ")[2]
    assert re.search(r"(?m)^USER aerobee$", final_stage)


def test_the_build_context_has_every_source_of_the_wheel() -> None:
    """The image's build context has each package and file that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {"pyproject.toml", project["project"]["readme"], *(package.split("/")[0] for package in packages)}
    needed |= set(re.findall(r"deploy/\w+\.py", (DEPLOY / "Dockerfile").read_text()))  # what the build runs
    assert needed <= kept


def test_the_composition_agrees_with_the_image_and_with_prometheus() -> None:
    """The store is a named volume at the image's path, and Prometheus scrapes the service by name and port."""
    (composition,) = read_yaml(DEPLOY / "docker-compose.yml")
    services = composition["services"]
    assert {name for name, service in services.items() if "profiles" not in service} == {
        *("broker", "console", "prometheus", "grafana")
    }
    assert f"broker-store:{STORE_DIRECTORY}" in services["broker"]["volumes"]
    named = {mount.split(":")[0] for service in services.values() for mount in service.get("volumes", ())}
    assert {name for name in named if not name.startswith(".")} == set(composition["volumes"])

    console = services["console"]
    parsed = build_parser("console").parse_args([*console["entrypoint"][1:], *console["command"]])
    assert (parsed.listen, parsed.endpoint) == ("0.0.0.0:8090", "broker:8081")
    assert "[console]" in (DEPLOY / "Dockerfile").read_text(), "the image has what the console needs"

    (prometheus,) = read_yaml(DEPLOY / "prometheus" / "prometheus.yml")
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in prometheus["scrape_configs"]}
    assert jobs["aerobee"] == ["broker:5557"]
    assert all((DEPLOY / "prometheus" / name).is_file() for name in prometheus["rule_files"])

    (sources,) = read_yaml(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml")
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"


def test_the_composition_has_a_spark_cluster() -> None:
    """Master, workers and jobs share an image with the Spark extras and mount the store read-only."""
    (composition,) = read_yaml(DEPLOY / "docker-compose.yml")
    services = {name: service for name, service in composition["services"].items() if "profiles" in service}
    assert {name: service["profiles"] for name, service in services.items()} == {
        "spark-master": ["spark"],
        "spark-worker": ["spark"],
        "spark-job": ["spark-job"],
    }
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for service in services.values():
        assert service["image"] == services["spark-master"]["image"]
        asked = service["build"]["args"]["EXTRAS"].strip("[]").split(",")
        assert set(asked) <= set(extras)
        assert f"broker-store:{STORE_DIRECTORY}:ro" in service["volumes"]
        assert "spark-work:/var/lib/spark" in service["volumes"]
    for name in ("spark-master", "spark-worker"):
        assert services[name]["entrypoint"] == ["python", "-m", "aerobee_pipeline.spark_class"]
    assert services["spark-worker"]["command"][-1] == "spark://spark-master:7077"
    assert services["spark-worker"]["ports"] == [], "several of them cannot have one port"
    master = services["spark-master"]["command"]
    assert (master[master.index("--host") + 1], master[master.index("--port") + 1]) == ("spark-master", "7077")
    assert f"-o aerobee -g aerobee -m 0750 {STORE_DIRECTORY} /var/lib/spark" in (DEPLOY / "Dockerfile").read_text()


def test_kubernetes_runs_one_replica_with_probes_and_a_volume() -> None:
    """A single replica writes to the store, and its volume is mounted at the image's path."""
    documents = read_yaml(DEPLOY / "kubernetes" / "aerobee.yaml")
    kinds = {document["kind"]: document for document in documents}
    assert set(kinds) == {"ConfigMap", "Service", "StatefulSet"}
    stateful_set = kinds["StatefulSet"]["spec"]
    assert stateful_set["replicas"] == 1
    assert stateful_set["serviceName"] == kinds["Service"]["metadata"]["name"]
    (claim,) = stateful_set["volumeClaimTemplates"]
    (container,) = stateful_set["template"]["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == STORE_DIRECTORY
    paths = {probe: container[probe]["httpGet"]["path"] for probe in container if probe.endswith("Probe")}
    assert paths == {"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}


def test_kubernetes_configuration_is_accepted(tmp_path: Path) -> None:
    """The TOML inside the ConfigMap loads."""
    config_map = read_yaml(DEPLOY / "kubernetes" / "aerobee.yaml")[0]
    file = tmp_path / "aerobee.toml"
    file.write_text(config_map["data"]["aerobee.toml"])
    assert BrokerConfig.load(config_file=file).store.flush == "sync"


def test_kubernetes_runs_two_brokers_that_may_write_one_lease(tmp_path: Path) -> None:
    """The configuration of each pod loads, one of them creates the group, and the Role covers its Lease."""
    documents = read_yaml(DEPLOY / "kubernetes" / "replicated.yaml")
    kinds = {document["kind"]: document for document in documents}
    assert len(kinds) == len(documents)
    stateful_set = kinds["StatefulSet"]["spec"]
    pod = stateful_set["template"]["spec"]
    (container,) = pod["containers"]
    assert "--config=/etc/aerobee/$(POD_NAME).toml" in container["args"]
    assert pod["serviceAccountName"] == kinds["ServiceAccount"]["metadata"]["name"]
    (subject,) = kinds["RoleBinding"]["subjects"]
    assert subject["name"] == kinds["ServiceAccount"]["metadata"]["name"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    loaded = []
    for number in range(stateful_set["replicas"]):
        file = tmp_path / f"aerobee-{number}.toml"
        file.write_text(kinds["ConfigMap"]["data"][file.name])
        config = BrokerConfig.load(config_file=file)
        name = f"aerobee-{number}.{kinds['Service']['metadata']['name']}"
        assert str(config.listen.advertise_remoting) == f"{name}:{ports['remoting']}"
        assert config.replication.advertise == f"{name}:{ports['replicas']}"
        loaded.append(config.replication)
    assert {each.kubernetes_lease for each in loaded} == {kinds["Lease"]["metadata"]["name"]}
    assert sorted((each.broker_id, each.role) for each in loaded) == [(1, "master"), (2, "replica")]
    (rule,) = kinds["Role"]["rules"]
    assert rule["resourceNames"] == [kinds["Lease"]["metadata"]["name"]]
    assert (rule["apiGroups"], rule["resources"]) == (["coordination.k8s.io"], ["leases"])
    assert rule["verbs"] == ["get", "update"]


def test_systemd_waits_longer_than_the_broker_drains() -> None:
    """The unit keeps the store in its state directory, and its stop timeout is longer than a drain, as Docker's is."""
    unit = (DEPLOY / "systemd" / "aerobee.service").read_text()
    settings = dict(re.findall(r"(?m)^(\w+)=(.*)$", unit))
    assert settings["StateDirectory"] == "aerobee"
    assert f"--store {STORE_DIRECTORY}" in settings["ExecStart"]
    assert settings["Restart"] == "on-failure"
    listen = ListenConfig()
    assert int(settings["TimeoutStopSec"]) > 35 + listen.drain_seconds, "the manual names leave_seconds = 35"
    assert listen.leave_seconds + listen.drain_seconds < 10, "docker stop kills after ten seconds"


# --- Alerts and board ---------------------------------------------------------------------------------------


def test_every_alert_names_a_remedy_and_is_tested() -> None:
    """Each alert has a severity, a summary, a section in docs/operating.md, and a promtool test."""
    (rules,) = read_yaml(DEPLOY / "prometheus" / "alerts.yml")
    (tests,) = read_yaml(DEPLOY / "prometheus" / "alerts.test.yml")
    alerts = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    assert alerts
    tested = {case["alertname"] for test in tests["tests"] for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert tested == {alert["alert"] for alert in alerts}
    operating = (ROOT / "docs" / "operating.md").read_text()
    for alert in alerts:
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"]["summary"]
        assert alert["annotations"]["runbook"] == f"docs/operating.md#{alert['alert'].lower()}"
        assert f"#### {alert['alert']}\n" in operating


def test_the_board_is_complete() -> None:
    """Panels have unique ids, titles, descriptions, separate grid places, and the provisioned data source."""
    board = json.loads(BOARD.read_text())
    (sources,) = read_yaml(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml")
    source = {"type": "prometheus", "uid": sources["datasources"][0]["uid"]}
    assert board["uid"]
    assert board["title"]
    everything = list(panels(board))
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["description"]
            assert panel["datasource"] == source
            assert panel["targets"]
            assert all(target["expr"] and target["datasource"] == source for target in panel["targets"])
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
