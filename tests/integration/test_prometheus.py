"""Monitoring with real tools: Prometheus scrapes a broker, and promtool checks metrics, alerts and the board.

Without Prometheus (Debian: `apt-get install prometheus`), only the comparison of names runs.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aerobee_client import Client, Message, connect
from aerobee_client.testing import BrokerProcess
from tests.support import broker_process as replicating
from tests.support.ports import free_ports
from tests.support.programs import program

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboards" / "aerobee.json").read_text())
TOPIC, GROUP = "monitored", "watchers"

# Metrics that Prometheus itself adds.
OF_PROMETHEUS = {"up", "ALERTS"}
KEYWORDS = {"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "group_left", "group_right"}
# Panels without events here: their series appear with the first event.
WITHOUT_DATA = {"Dead letters", "Replicas behind", "Replicas", "Sends that wait for replicas"}


def promtool(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program("promtool")), *arguments], input=given, capture_output=True, text=True, timeout=60, check=False
    )


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def board_expressions() -> list[str]:
    """The PromQL of every panel, with Grafana's variables replaced as when all is selected."""
    return [filled_in(target["expr"]) for panel in panels() for target in panel["targets"]]


def filled_in(expression: str) -> str:
    expression = expression.replace("$__rate_interval", "1m")
    for variable in BOARD["templating"]["list"]:
        expression = expression.replace(f"${variable['name']}", variable["allValue"])
    assert "$" not in expression, f"a variable that the board does not define: {expression}"
    return expression


def alert_expressions() -> list[str]:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, which comes with the development dependencies")
    rules = yaml.safe_load(ALERTS.read_text())
    return [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def variable_expressions() -> list[str]:
    """The selectors that Grafana uses for the values of the board's variables."""
    found = []
    for variable in BOARD["templating"]["list"]:
        match = re.fullmatch(r"label_values\((.*), \w+\)", variable["query"]["query"])
        assert match, variable["name"]
        found.append(filled_in(match[1]))
    return found


def metric_names(expression: str) -> set[str]:
    """The metrics in an expression: identifiers that are not functions, keywords, labels or numbers."""
    text = re.sub(r'"(?:\\.|[^"\\])*"', "", expression)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", text)
    text = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", text)
    text = re.sub(r"\boffset\s+\w+", "", text)
    return {name for name in re.findall(r"\b[a-zA-Z_:][\w:]*\b(?!\s*\()", text) if name not in KEYWORDS}


def exposed_names(exposition: str) -> set[str]:
    """The names of all possible samples of an exposition's families, with or without samples at the moment."""
    suffixes = {
        "counter": ("_total", "_created"),
        "histogram": ("_bucket", "_sum", "_count"),
        "summary": ("", "_sum", "_count"),
    }
    return {
        family.name + suffix
        for family in text_string_to_metric_families(exposition)
        for suffix in suffixes.get(family.type, ("",))
    }


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


class StartingError(Exception):
    """Prometheus listens, but is still reading its store."""


class PrometheusProcess:
    """A Prometheus process with its own port and data, owned by a test."""

    def __init__(self, directory: Path, target: str) -> None:
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        # The shipped configuration, with this test's addresses and shorter intervals.
        text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
        for shipped, here in (("broker:5557", target), ("localhost:9090", self.address), ("15s", "1s")):
            assert shipped in text
            text = text.replace(shipped, here)
        (directory / "prometheus.yml").write_text(text)
        shutil.copy(ALERTS, directory)
        self._log = directory / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={directory / 'prometheus.yml'}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address={self.address}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def api(self, path: str, **parameters: str) -> Any:
        """The data of a successful answer. AssertionError with Prometheus's message for an error."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            answer = json.loads(fetch(url))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 503:
                    raise StartingError from None
                raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        assert answer["status"] == "success"
        return answer["data"]

    def query(self, expression: str) -> list[Any]:
        result: list[Any] = self.api("query", query=expression)["result"]
        return result

    def wait_for(self, expression: str) -> list[Any]:
        """The first non-empty result of `expression`."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self._log.read_text()
            try:
                if result := self.query(expression):
                    return result
            except (urllib.error.URLError, StartingError):
                pass  # Prometheus does not listen or answer yet
            time.sleep(0.1)
        raise AssertionError(f"no answer to {expression} in 30 s; the log of Prometheus:\n{self._log.read_text()}")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def prometheus(broker: BrokerProcess, tmp_path: Path) -> Iterator[PrometheusProcess]:
    process = PrometheusProcess(tmp_path, broker.metrics)
    try:
        yield process
    finally:
        process.stop()


async def traffic(client: Client) -> None:
    """Send messages; receive and acknowledge some, receive some without acknowledging, and leave some."""
    producer = client.producer()
    for index in range(20):
        await producer.send(Message(topic=TOPIC, body=b"%d" % index))
    consumer = client.simple_consumer(GROUP, TOPIC)
    received = await consumer.receive(10, invisible_seconds=60)
    assert received
    await consumer.ack(received[: len(received) // 2 + 1])


# --- Without Prometheus -------------------------------------------------------------------------------------


async def replication_names(directory: Path) -> set[str]:
    """The names in /metrics of a master with a replica, and of that replica."""
    master = replicating.BrokerProcess(directory, "a", "--role", "master")
    replica = replicating.BrokerProcess(directory, "b", "--role", "replica", "--master", master.remoting)
    async with replicating.running(master, replica):
        await master.start()
        await replica.start()
        await replica.follows(master)
        pages = [await asyncio.to_thread(fetch, f"http://{each.metrics}/metrics") for each in (master, replica)]
    return set().union(*map(exposed_names, pages))


async def test_board_and_alerts_read_only_metrics_that_the_broker_exposes(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """Every name in the expressions of board and alerts is in /metrics, or is Prometheus's own."""
    async with connect(broker.endpoint) as client:
        await traffic(client)
        exposed = exposed_names(await asyncio.to_thread(fetch, f"http://{broker.metrics}/metrics"))
    exposed |= await replication_names(tmp_path)
    for expression in [*board_expressions(), *variable_expressions(), *alert_expressions()]:
        names = metric_names(expression)
        assert names, expression
        assert names <= exposed | OF_PROMETHEUS, (expression, sorted(names - exposed - OF_PROMETHEUS))


def test_metric_names_are_found_in_an_expression() -> None:
    """The comparison above finds metrics, and ignores labels, functions, keywords and strings."""
    expression = (
        'histogram_quantile(0.99, sum by (le, a) (rate(x_bucket{le!="y_total"}[5m]))) > 1e3 '
        "or on (b) max without (c) (z_total unless w offset 15m) == bool 2"
    )
    assert metric_names(expression) == {"x_bucket", "z_total", "w"}


# --- promtool -----------------------------------------------------------------------------------------------


def test_the_alert_rules_are_valid_and_their_tests_pass() -> None:
    """`promtool check rules`, `test rules` and `check config` accept the files in deploy/."""
    for arguments in (
        ("check", "rules", "--lint-fatal", str(ALERTS)),
        ("test", "rules", str(DEPLOY / "prometheus" / "alerts.test.yml")),
        ("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml")),
    ):
        result = promtool(*arguments)
        assert result.returncode == 0, result.stdout + result.stderr


def test_every_expression_of_the_board_parses(tmp_path: Path) -> None:
    """Each is accepted as a rule's expression."""
    rules = [
        {"record": f"board:expression:{number}", "expr": expression}
        for number, expression in enumerate([*board_expressions(), *variable_expressions()])
    ]
    file = tmp_path / "board.yml"
    file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))  # JSON is YAML
    result = promtool("check", "rules", "--lint=none", str(file))
    assert result.returncode == 0, result.stderr
    assert f"{len(rules)} rules found" in result.stdout


async def test_promtool_accepts_the_metrics(broker: BrokerProcess) -> None:
    """/metrics is valid, and our own names follow Prometheus's conventions; RocketMQ's names are kept."""
    async with connect(broker.endpoint) as client:
        await traffic(client)
        exposition = await asyncio.to_thread(fetch, f"http://{broker.metrics}/metrics")
    result = promtool("check", "metrics", given=exposition)
    # 0: fine; 3: valid, with findings, one a line; 1: not valid.
    assert result.returncode in (0, 3), result.stderr
    findings = [line for line in (result.stdout + result.stderr).splitlines() if line.strip()]
    assert [line for line in findings if not line.startswith("rocketmq_")] == []


# --- A real Prometheus --------------------------------------------------------------------------------------


async def test_a_real_prometheus_fills_the_board(broker: BrokerProcess, prometheus: PrometheusProcess) -> None:
    """With the shipped configuration every panel has data with its legend's labels, and no alert fires."""
    async with connect(broker.endpoint) as client:
        await traffic(client)  # counters must exist before the first scrape for an increase to be seen
        await asyncio.to_thread(prometheus.wait_for, f'rocketmq_messages_in_total{{topic="{TOPIC}"}} >= 20')
        before = time.time()
        await traffic(client)
        await asyncio.to_thread(prometheus.wait_for, f'timestamp(up{{job="aerobee"}}) > {before}')
        increased = f'rate(rocketmq_messages_out_total{{topic="{TOPIC}", consumer_group="{GROUP}"}}[1m]) > 0'
        await asyncio.to_thread(prometheus.wait_for, increased)

        for panel in panels():
            for target in panel["targets"]:
                result = await asyncio.to_thread(prometheus.query, filled_in(target["expr"]))
                if panel["title"] not in WITHOUT_DATA:
                    assert result, f"{panel['title']}: no data for {target['expr']}"
                for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                    assert all(series["metric"].get(label) for series in result), (panel["title"], label, result)

    groups = (await asyncio.to_thread(prometheus.api, "rules"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in rules} >= {"AerobeeDown", "AerobeeSyncFailed"}
    assert [rule["lastError"] for rule in rules if rule["health"] == "err"] == []
    # The free disk space of this machine does not depend on the broker.
    firing = 'ALERTS{alertstate="firing", alertname!~"AerobeeDisk.*"}'
    assert await asyncio.to_thread(prometheus.query, firing) == []
