"""The metrics of `aerobee namesrv`, compared with docs/metrics.md."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

from aerobee_broker.config import Address
from aerobee_broker.remoting_wire.codes import Request
from tests.support.name_server import name_server_process
from tests.support.ports import free_ports
from tests.support.remoting_client import RemotingClient

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


async def test_a_name_server_shows_its_tables_and_its_ledger(tmp_path: Path) -> None:
    """Every name of the page's section, with the values of a registered broker and a stored value."""
    (port,) = free_ports(1)
    with name_server_process(tmp_path, arguments=["--metrics", f"127.0.0.1:{port}"]) as (address, _):
        client = await RemotingClient.connect(Address.parse(address))
        broker = {"brokerName": "b", "clusterName": "c", "brokerId": 0, "brokerAddr": "10.0.0.1:10911"}
        topics = {
            name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in ("T", "U", "V")
        }
        body = {"topicConfigSerializeWrapper": {"dataVersion": {"counter": 1}, "topicConfigTable": topics}}
        fields = {**broker, "haServerAddr": "10.0.0.1:10912"}
        assert (await client.call(Request.REGISTER_BROKER, fields, body)).code == 0
        value = {"namespace": "n", "key": "k", "value": "v" * 1000}
        assert (await client.call(Request.PUT_KV_CONFIG, value)).code == 0
        found = await asyncio.to_thread(_read, port, "metrics")
        assert await asyncio.to_thread(_read, port, "readyz")
        await client.close()
    labels = f'cluster="",node_type="namesrv",node_id="{address}"'
    for name, count in (("brokers", 1), ("addresses", 1), ("topics", 3), ("wiped", 0), ("connections", 1)):
        assert f"\naerobee_namesrv_{name}{{{labels}}} {count}" in found, found
    kept = re.search(r'aerobee_waiting_bytes{[^}]*of="values"} (\d+)', found)
    assert kept is not None
    assert int(kept[1]) > 1000
    section = PAGE.read_text().partition("\n## Name server\n")[2]
    named = set(re.findall(r"`(aerobee_[a-z_]+[a-z])`", section))
    shown = set(re.findall(r"^(aerobee_[a-z_]+?)(?:_bucket|_sum|_count)?{", found, re.MULTILINE))
    assert {name for name in shown if not name.startswith("aerobee_event_loop_")} == named


def _read(port: int, page: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=60) as answer:
        return str(answer.read().decode())
