"""The samples of a scrape after known traffic."""

from __future__ import annotations

import asyncio
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aerobee_broker.config import BrokerConfig
from aerobee_broker.counters import families as families_module
from aerobee_broker.counters.families import CounterFamily, GaugeFamily, HistogramFamily, Pieces
from aerobee_broker.metrics import exposition as exposition_module
from aerobee_broker.remoting_wire.codes import Request
from aerobee_proto import admin_v1, v2
from aerobee_store import StoreConfig
from aerobee_store.testing.travelling_clock import TravellingClock
from tests.support.in_process_broker import METADATA, InProcessBroker, in_process_broker, message
from tests.support.remoting_client import remoting_broker, send_fields

BASE = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "aerobee"}


async def scrape(broker: InProcessBroker) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by its name and its labels, without the labels that all samples have."""

    def fetch() -> str:
        with urllib.request.urlopen(f"http://{broker.metrics}/metrics", timeout=60) as response:
            return str(response.read().decode())

    samples = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(fetch)):
        assert family.documentation, family.name
        for sample in family.samples:
            if not sample.name.startswith("process_"):
                assert sample.labels.items() >= BASE.items()
            rest = {name: value for name, value in sample.labels.items() if name not in BASE}
            samples[sample.name, frozenset(rest.items())] = sample.value
    return samples


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


async def test_failures_are_shown_by_their_code(tmp_path: Path) -> None:
    """The code lets alerts tell client errors from broker errors. An empty receive is a success."""
    async with in_process_broker(tmp_path) as broker:
        await broker.messaging.SendMessage(v2.SendMessageRequest(), metadata=METADATA, timeout=60)
        receive = v2.ReceiveMessageRequest(group=v2.Resource(name="g"), batch_size=1, auto_renew=True)
        receive.message_queue.topic.name = "orders"
        receive.long_polling_timeout.SetInParent()
        async for _ in broker.messaging.ReceiveMessage(receive, metadata=METADATA, timeout=30):
            pass
        shown = await scrape(broker)
    results = {dict(key)["response_code"]: dict(key)["result"] for name, key in shown if name.endswith("latency_count")}
    assert results == {"MESSAGE_CORRUPTED": "process_request_failed", "MESSAGE_NOT_FOUND": "success"}


async def test_messages_with_a_delay_level_are_shown(tmp_path: Path) -> None:
    """One of two messages is delivered, the other one waits in the queue of its level."""
    clock = TravellingClock()
    async with remoting_broker(tmp_path, clock=clock) as (broker, client):
        for level in (1, 4):
            properties = f"DELAY\x01{level}\x02"
            fields = send_fields("later", properties=properties)
            assert (await client.call(Request.SEND_MESSAGE_V2, fields, b"x")).code == 0
        await clock.advance(2.0)
        store = {"storage_type": "local", "storage_medium": "disk"}
        async with asyncio.timeout(60):
            while (shown := await scrape(broker)).get(("aerobee_level_delay_delivered_total", labels(**store))) != 1:  # noqa: ASYNC110 - scraped
                await asyncio.sleep(0.01)
    assert shown["aerobee_level_delay_waiting_messages", labels(level="1", **store)] == 0
    assert shown["aerobee_level_delay_waiting_messages", labels(level="4", **store)] == 1
    assert shown["aerobee_level_delay_lost_total", labels(**store)] == 0


async def test_every_disk_of_the_log_is_shown(tmp_path: Path) -> None:
    """Each has its path, size and use, like in GetStoreStatus."""
    paths = (tmp_path / "a", tmp_path / "b")
    config = replace(StoreConfig.tiny(tmp_path / "data"), commit_log_paths=paths)
    async with in_process_broker(tmp_path / "data", store=config) as broker:
        shown = await scrape(broker)
        status = await broker.administration.GetStoreStatus(admin_v1.GetStoreStatusRequest(), timeout=60)
    assert [disk.path for disk in status.log_disks] == [str(path) for path in paths]
    for disk in status.log_disks:
        of_path = labels(storage_type="local", storage_medium="disk", path=disk.path)
        assert shown["aerobee_store_log_disk_bytes", of_path] == disk.total_bytes > 0
        assert 0 < shown["aerobee_store_log_disk_used_bytes", of_path] <= disk.total_bytes
        assert 0 < disk.used_bytes <= disk.total_bytes


async def test_an_edited_table_is_counted(tmp_path: Path) -> None:
    """A table edited while the broker was down is loaded as edited and counted."""
    name = "aerobee_store_tables_changed_total"
    async with in_process_broker(tmp_path) as broker:
        samples = await scrape(broker)
        assert [value for (sample, _), value in samples.items() if sample == name] == [0]
        await broker.messaging.SendMessage(v2.SendMessageRequest(messages=[message()]), metadata=METADATA, timeout=60)
    (path,) = tmp_path.rglob("topics.json")
    path.write_bytes(path.read_bytes() + b"\n")
    async with in_process_broker(tmp_path) as broker:
        samples = await scrape(broker)
        assert [value for (sample, _), value in samples.items() if sample == name] == [1]


async def test_a_scrape_is_made_in_steps_and_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run while a family is rendered. A family with too many samples reports how many it leaves out."""
    monkeypatch.setattr(families_module, "SAMPLES_MAX", 100)
    monkeypatch.setattr(exposition_module, "_STEP_SECONDS", 0)
    exposition = exposition_module.Exposition(BrokerConfig.tiny(tmp_path))

    class Large:
        def collect(self) -> Pieces:
            gauge = GaugeFamily("large", "A gauge.", labels=("topic",))
            histogram = HistogramFamily("sliced", "A histogram.", labels=("topic",))
            for number in range(150):
                gauge.add_metric((str(number),), number)
                histogram.add_histogram((str(number),), (1.0, 2.0), (1, 1, 1), 4)
                yield None
            yield from (gauge, histogram)

    exposition.collectors.append(Large())
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others_run = asyncio.create_task(others())
    text = b"".join(await exposition.render()).decode()
    others_run.cancel()
    assert turns > 100
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families["large"].samples) == 100
    assert len(families["sliced"].samples) == 100  # twenty whole series of five
    left_out = {sample.labels["family"]: sample.value for sample in families["aerobee_metrics_left_out"].samples}
    assert left_out == {"large": 50, "sliced": 650}


def test_the_text_is_parsed_by_prometheus() -> None:
    """Names, types, escaped labels, and infinite and large values are parsed as they were written."""
    odd = 'a"b\\c\nd, {e}=ü'
    gauge = GaugeFamily("g", "A gauge.", labels=("one", "two"))
    gauge.add_metric((odd, "plain"), 1.5)
    gauge.add_metric(("", "x"), float("inf"))
    counter = CounterFamily("c", "A counter.", labels=("one",))
    counter.add_metric((odd,), 12345678901234567)
    histogram = HistogramFamily("h", "A histogram.", labels=("one",))
    histogram.add_histogram((odd,), (0.5, 10), (1, 2, 3), 7.25)
    text = b"".join(chunk for family in (gauge, counter, histogram) for chunk in family.chunks()).decode()
    read = {family.name: family for family in text_string_to_metric_families(text)}
    assert [(name, family.type, family.documentation) for name, family in read.items()] == [
        ("g", "gauge", "A gauge."),
        ("c", "counter", "A counter."),
        ("h", "histogram", "A histogram."),
    ]
    assert [(sample.labels, sample.value) for sample in read["g"].samples] == [
        ({"one": odd, "two": "plain"}, 1.5),
        ({"one": "", "two": "x"}, float("inf")),
    ]
    assert [(sample.name, sample.labels, sample.value) for sample in read["c"].samples] == [
        ("c_total", {"one": odd}, float(12345678901234567))
    ]
    assert [(sample.name, sample.labels.get("le"), sample.value) for sample in read["h"].samples] == [
        ("h_bucket", "0.5", 1),
        ("h_bucket", "10.0", 3),
        ("h_bucket", "+Inf", 6),
        ("h_count", None, 6),
        ("h_sum", None, 7.25),
    ]
