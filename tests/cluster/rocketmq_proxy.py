"""Apache RocketMQ 5 from its published artefacts: a name server, and a gRPC proxy with its broker in one JVM."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.cluster.java_program import HERE, Release, java_server, prepare_servers

VERSION: Final = "5.5.0"
TOPICS: Final[Mapping[str, str]] = {
    "aerobee-anywhere": "NORMAL",
    "aerobee-anywhere-fifo": "FIFO",
    "aerobee-anywhere-delay": "DELAY",
    "aerobee-anywhere-transaction": "TRANSACTION",
}
GROUPS: Final[Mapping[str, bool]] = {  # group -> whether it is ordered
    "aerobee-anywhere": False,
    "aerobee-anywhere-tags": False,
    "aerobee-anywhere-fifo": True,
}
_START_SECONDS: Final = 120.0
_HEAP: Final = ("-Xmx320m", "-XX:MaxDirectMemorySize=768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_OPEN: Final = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref")
)
_QUIET: Final = "<configuration/>"


def prepare() -> Release:
    """Download it with Maven. Skips the test if Java, Maven or the registry is missing."""
    return prepare_servers(VERSION, HERE / "proxy")


@dataclass(frozen=True)
class RunningProxy:
    """The gRPC address, those of name server and broker, and the process of proxy and broker."""

    endpoint: str
    names: str
    broker: str
    process: subprocess.Popen[bytes]


@contextmanager
def rocketmq(
    release: Release,
    home: Path,
    port: int,
    *,
    topics: Mapping[str, str] = TOPICS,
    groups: Mapping[str, bool] = GROUPS,
    broker_settings: Mapping[str, object] = MappingProxyType({}),
    java_options: Sequence[str] = _HEAP,
) -> Iterator[RunningProxy]:
    """Serve gRPC on `port` and use the nine ports after it. Killed at the end by its process id."""
    names, broker = port + 2, port + 6  # a broker also uses its port - 2 and + 1
    store = home / "store"
    broker_conf, proxy_json = home / "broker.conf", home / "proxy.json"
    (home / "conf").mkdir(parents=True)
    for name in ("rmq.proxy", "rmq.broker", "logback_broker"):
        (home / "conf" / f"{name}.logback.xml").write_text(_QUIET)
    settings = {
        "brokerClusterName": "test-cluster",
        "brokerName": "test-broker",
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": broker,
        "haListenPort": broker + 1,
        "namesrvAddr": f"127.0.0.1:{names}",
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "mappedFileSizeCommitLog": 16 << 20,
        "autoCreateTopicEnable": "false",
        "enablePropertyFilter": "true",
        "diskMaxUsedSpaceRatio": 95,
        "recallMessageEnable": "true",
        "transactionTimeOut": 2000,
        "transactionCheckInterval": 2000,
        **broker_settings,
    }
    broker_conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    proxy = {
        "rocketMQClusterName": "test-cluster",
        "proxyClusterName": "test-cluster",
        "proxyName": "test-proxy",
        "localServeAddr": "127.0.0.1",
        "grpcServerPort": port,
        "remotingListenPort": port + 1,
        "namesrvAddr": f"127.0.0.1:{names}",
        "proxyMode": "LOCAL",
    }
    proxy_json.write_text(json.dumps(proxy))
    main = "org.apache.rocketmq.proxy.ProxyStartup"
    command = [release.java, *java_options, *_OPEN, f"-Duser.home={home}", "-cp", release.class_path, main]
    command += ["-pc", str(proxy_json), "-bc", str(broker_conf), "-pm", "LOCAL"]
    environment = {"ROCKETMQ_HOME": str(home), "RMQ_PROXY_CONFIG_PATH": str(proxy_json), "PATH": os.environ["PATH"]}
    name_server = "org.apache.rocketmq.namesrv.NamesrvStartup"
    with (
        java_server(release, home / "names", name_server, {"listenPort": names, "bindAddress": "127.0.0.1"}),
        (home / "output").open("w") as output,
        subprocess.Popen(command, cwd=home, stdout=output, stderr=output, env=environment) as process,
    ):
        try:
            until = time.monotonic() + _START_SECONDS
            while not _listens(port):
                assert process.poll() is None, (home / "output").read_text()
                assert time.monotonic() < until, (home / "output").read_text()
                time.sleep(0.1)
            _create(release, home, f"127.0.0.1:{broker}", f"127.0.0.1:{names}", topics, groups)
            yield RunningProxy(f"127.0.0.1:{port}", f"127.0.0.1:{names}", f"127.0.0.1:{broker}", process)
        finally:
            process.kill()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _create(
    release: Release, home: Path, broker: str, names: str, topics: Mapping[str, str], groups: Mapping[str, bool]
) -> None:
    """Create typed topics and groups with mqadmin's own commands."""
    commands = [
        ["updateTopic", "-b", broker, "-t", topic, "-r", "4", "-w", "4", "-a", f"+message.type={kind}"]
        for topic, kind in topics.items()
    ]
    commands += [
        ["updateSubGroup", "-b", broker, "-g", group, "-o", str(ordered).lower()] for group, ordered in groups.items()
    ]
    for arguments in commands:
        mqadmin(release, home / "admin", names, arguments)


def mqadmin(release: Release, home: Path, names: str, arguments: Sequence[str]) -> None:
    """Run a command that prints "success" if all went well."""
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"
    done = release.run(home, main, *arguments, "-n", names)
    assert "success" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
