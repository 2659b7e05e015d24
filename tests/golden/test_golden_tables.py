"""What each command that lists something prints in terminals of 80 and 120 columns, kept as text in `tables/`.

To write the files anew after a change that is meant: AEROBEE_WRITE_GOLDEN=1 pytest tests/golden/test_golden_tables.py
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker import cli
from aerobee_broker.cli import main
from aerobee_broker.commands.monitoring import top
from aerobee_broker.commands.terminal import output, timeline
from aerobee_broker.commands.terminal.contexts import Contexts
from aerobee_client.messages.message import stored_message
from aerobee_proto import admin_v1, v2

DIRECTORY = Path(__file__).parent / "tables"
NOW_MS = 1_735_787_045_000
LONG = "a-topic-with-a-name-of-fifty-letters-as-people-have"
CLIENT = "worker-7.production.example.com@4711@0@9f3k2a7d1c"
MESSAGE_ID = "0102FC000000014AB00B13010700000000"


def at(milliseconds: int) -> v2.Timestamp:
    found = v2.Timestamp()
    found.FromMilliseconds(milliseconds)
    return found


def message(number: int, body: bytes, tag: str = "paid") -> v2.Message:
    return v2.Message(
        topic=v2.Resource(name="orders"),
        body=body,
        system_properties=v2.SystemProperties(
            message_id=f"{MESSAGE_ID[:-2]}{number:02}",
            tag=tag,
            keys=["order-7", "customer-12"],
            queue_id=number % 4,
            queue_offset=100_000 + number,
            born_host="10.0.0.7",
            born_timestamp=at(NOW_MS - 1000),
            store_timestamp=at(NOW_MS - 1000 * number),
        ),
    )


def topics() -> list[admin_v1.Topic]:
    types = [v2.MessageType.NORMAL, v2.MessageType.FIFO, v2.MessageType.DELAY, v2.MessageType.TRANSACTION]
    return [
        admin_v1.Topic(name="orders", read_queue_count=8, write_queue_count=8, accept_message_types=types),
        admin_v1.Topic(name=LONG, read_queue_count=16, write_queue_count=8, accept_message_types=types[:1]),
    ]


def described_topic() -> admin_v1.DescribeTopicResponse:
    queues = [
        admin_v1.QueueStatus(queue_id=number, min_offset=0, max_offset=12_345_678, last_store_timestamp=at(NOW_MS))
        for number in range(2)
    ]
    return admin_v1.DescribeTopicResponse(topic=topics()[0], queues=queues, groups=["billing", "shipping"])


def described_group() -> admin_v1.DescribeGroupResponse:
    values: dict[str, Any] = {
        "lag": 1_234_567,
        "inflight": 32,
        "ready": 1_234_535,
        "retrying": 4,
        "oldest_timestamp": at(NOW_MS - 90_000),
    }
    return admin_v1.DescribeGroupResponse(
        group=admin_v1.Group(name="billing", max_attempts=16, consume_enabled=True),
        topics=[admin_v1.GroupTopicStatus(topic=topic, **values) for topic in ("orders", LONG)],
        queues=[
            admin_v1.GroupQueueStatus(
                topic=topic, queue_id=3, committed_offset=11_111_111, max_offset=12_345_678, **values
            )
            for topic in ("orders", LONG)
        ],
    )


def connections() -> list[admin_v1.Connection]:
    return [
        admin_v1.Connection(
            client_id=CLIENT,
            client_type=v2.ClientType.PUSH_CONSUMER,
            language=v2.Language.JAVA,
            version="5.0.7",
            remote_address="10.20.30.40:51234",
            last_heartbeat_timestamp=at(NOW_MS - 3000),
            group="billing",
            topics=["orders", "refunds"],
        )
    ]


def dead_letters() -> list[admin_v1.DeadLetter]:
    return [
        admin_v1.DeadLetter(
            offset=number,
            message=message(number, b""),
            origin_topic="orders",
            body_size=2048,
            resent_timestamp=at(NOW_MS),
        )
        for number in (17, 18)
    ]


def dead_letter_queues() -> list[admin_v1.DeadLetterQueue]:
    return [
        admin_v1.DeadLetterQueue(
            group=group, count=12, oldest_timestamp=at(NOW_MS - 86_400_000), newest_timestamp=at(NOW_MS)
        )
        for group in ("billing", LONG)
    ]


def settings() -> list[admin_v1.Setting]:
    return [
        admin_v1.Setting(
            name="delivery.auto_renew_seconds_max",
            value="900",
            default_value="10800",
            source=admin_v1.SettingSource.SETTING_SOURCE_FILE,
            changeable=True,
        ),
        admin_v1.Setting(
            name="store.directory", value="/var/lib/aerobee", source=admin_v1.SettingSource.SETTING_SOURCE_FLAG
        ),
    ]


def accounts() -> list[admin_v1.Account]:
    return [
        admin_v1.Account(access_key="operator", admin=True),
        admin_v1.Account(
            access_key="checkout-service",
            publish=["orders", "refunds", "audit-*", "notifications-of-customers"],
            consume=["orders", "payments-of-all-regions"],
            groups=["checkout-*", "checkout-for-tests"],
        ),
    ]


def subscriptions() -> list[v2.SubscriptionInfo]:
    return [
        v2.SubscriptionInfo(
            group=v2.Resource(name="billing"),
            topic=v2.Resource(name="orders"),
            online=True,
            subscription_consistency=True,
            expression=v2.FilterExpression(
                type=v2.FilterType.SQL, expression="amount > 100 AND region IN ('north', 'south') AND kind = 'order'"
            ),
            last_update_timestamp=at(NOW_MS - 5000),
        )
    ]


def messages() -> list[Any]:
    bodies = (
        b'{"amount": 12, "customer": "a name", "lines": [1, 2, 3], "note": "of some length, as they are"}',
        b"short",
    )
    return [stored_message(message(number, body)) for number, body in enumerate(bodies)]


def traffic() -> admin_v1.ListTrafficResponse:
    answer = admin_v1.ListTrafficResponse()
    answer.window.FromSeconds(60)
    for topic in ("orders", LONG):
        answer.topics.add(topic=topic, messages=1_234_567, bytes=1 << 30, messages_rate=20_576.1)
        answer.groups.add(
            topic=topic,
            group="billing",
            messages=1_234_000,
            bytes=1 << 30,
            messages_rate=20_566.7,
            acknowledged=1_233_000,
        )
    return answer


def client_subscriptions() -> list[Any]:
    info = v2.ClientInfo(client_id=CLIENT)
    kind = v2.DescribeSubscriptionResponse.ClientSubscriptionInfo
    return [kind(client_info=info, subscription_info=each) for each in subscriptions()]


def accumulations() -> list[tuple[str, v2.DescribeGroupAccumulationResponse.GroupAccumulation]]:
    delay = v2.Duration()
    delay.FromSeconds(90)
    found = v2.DescribeGroupAccumulationResponse.GroupAccumulation(
        accumulation=1_234_567, inflight_messages=32, ready_messages=1_234_535, deliver_delay_time=delay
    )
    return [("billing", found), (LONG, found)]


def problems() -> list[admin_v1.Problem]:
    return [
        admin_v1.Problem(
            name="AerobeeDiskFilling",
            severity=admin_v1.Severity.SEVERITY_WARNING,
            summary="the disk of /var/lib/aerobee is 81 % full and will be full in 2 d 4 h",
            next_step="Find out what fills it with `aerobee topic list`, shorten store.retention_hours, or give the "
            "store a larger disk.",
            since_timestamp=at(NOW_MS - 90_000),
        ),
        admin_v1.Problem(
            name="AerobeeDeadLetters",
            severity=admin_v1.Severity.SEVERITY_CRITICAL,
            summary="group billing has 12 new dead letters",
            next_step="Look at them with `aerobee dlq list billing`.",
        ),
    ]


def topped() -> int:
    broker = admin_v1.GetBrokerStatusResponse(name="broker-a")
    broker.uptime.FromSeconds(93_784)
    broker.statistics.messages_in_rate = 20_576.1
    broker.statistics.producers = 12
    statuses = [
        admin_v1.TopicStatus(
            topic=topic,
            message_count=123_456_789,
            bytes=1 << 40,
            messages_in_rate=20_576.1,
            messages_out_rate=41_152.2,
            group_count=12,
        )
        for topic in topics()
    ]
    groups = [
        admin_v1.GroupStatus(
            group=admin_v1.Group(name=name),
            lag=1_234_567,
            inflight=32,
            oldest_timestamp=at(NOW_MS - 90_000),
            messages_out_rate=20_576.1,
            client_count=12,
            dead_letter_count=1_234,
        )
        for name in ("billing", LONG)
    ]
    top._print(broker, statuses, groups, problems())
    return 0


def delayed() -> list[admin_v1.DelayedMessage]:
    return [
        admin_v1.DelayedMessage(
            message=message(number, b""), due_timestamp=at(NOW_MS), recall_handle=handle, body_size=2048
        )
        for number, handle in ((1, "djEg"), (2, ""))
    ]


def transactions() -> list[admin_v1.OpenTransaction]:
    return [
        admin_v1.OpenTransaction(
            transaction_id=f"{MESSAGE_ID[:-2]}09",
            message=message(9, b""),
            begin_timestamp=at(NOW_MS - 90_000),
            check_count=3,
            next_check_timestamp=at(NOW_MS),
            producer_group="checkout",
        )
    ]


def operations() -> list[admin_v1.Operation]:
    return [
        admin_v1.Operation(
            timestamp=at(NOW_MS),
            method="UpdateConfiguration",
            account="operator-of-the-night",
            address="10.20.30.40:51234",
            request='set { key: "store.retention_hours" value: "48" } set { key: "broker.cluster" value: "north" }',
        )
    ]


def segments() -> admin_v1.ListSegmentsResponse:
    answer = admin_v1.ListSegmentsResponse(growth_bytes_per_day=12.5 * (1 << 30), retention_hours=72)
    answer.full_in.FromSeconds(190_000)
    for number in range(2):
        offset = number << 30
        path = f"/var/lib/aerobee/commitlog/{offset:020}"
        segment = answer.segments.add(physical_offset=offset, size=1 << 30, used=1 << 30, path=path)
        segment.begin_timestamp.CopyFrom(at(NOW_MS))
        segment.end_timestamp.CopyFrom(at(NOW_MS))
        if number == 0:
            segment.expire_timestamp.CopyFrom(at(NOW_MS))
    return answer


def status() -> tuple[admin_v1.GetBrokerStatusResponse, admin_v1.GetStoreStatusResponse]:
    broker = admin_v1.GetBrokerStatusResponse(
        name="broker-a",
        cluster="production-north",
        version="0.1.0",
        listen_addresses=["127.0.0.1:8081", "0.0.0.0:8443"],
        store_state=admin_v1.StoreState(writable=False, reason=REFUSED),
        flush_mode=admin_v1.FlushMode.FLUSH_MODE_ASYNC,
        topic_count=1_234,
        group_count=567,
        statistics=admin_v1.BrokerStatistics(
            producers=12, consumers=34, messages_in=1_234_567_890, messages_in_rate=20_576.1, dead_letters=12
        ),
        replication=admin_v1.BrokerReplication(
            epoch=7,
            replicas=[
                admin_v1.ReplicaStatus(id="2", address="replica-b.production.example.com:10911", lag_bytes=1 << 20)
            ],
            lease=admin_v1.BrokerLease(
                holder=1, epoch=7, in_sync=[1, 2], error="etcd.example.com:2379 does not answer"
            ),
        ),
    )
    broker.uptime.FromSeconds(93_784)
    store = admin_v1.GetStoreStatusResponse(
        directory="/var/lib/aerobee/production-north/broker-a/store",
        max_physical_offset=12 << 30,
        disk_used_bytes=91 << 30,
        disk_total_bytes=100 << 30,
        fsync_count=1_234_567,
        last_fsync_seconds=0.00123,
        log_disks=[admin_v1.LogDisk(path="/mnt/a-second-disk/commitlog", total_bytes=100 << 30, used_bytes=92 << 30)],
        oldest_timestamp=at(NOW_MS - 86_400_000),
    )
    return broker, store


REFUSED = (
    "no space left on the disk of /var/lib/aerobee: 91.0 % are used, and above 90 % (store.disk_full_ratio) no message "
    "is taken; free some until at most 85 % are used (store.disk_force_clean_ratio)"
)


def brokers() -> admin_v1.ListBrokersResponse:
    found = [
        admin_v1.ClusterBroker(
            name=f"broker-{name}",
            cluster="production-north",
            addresses={0: f"10.20.30.{number}:10911", 1: f"10.20.31.{number}:10911"},
            grpc_address=f"broker-{name}.production.example.com:8081",
            is_this=name == "a",
        )
        for number, name in ((1, "a"), (2, "b"))
    ]
    return admin_v1.ListBrokersResponse(brokers=found)


def described_client() -> tuple[admin_v1.Connection, v2.ConsumerRunningInfo]:
    info = v2.ConsumerRunningInfo()
    for number, topic in enumerate(("orders", LONG)):
        item = info.message_queue_table.add()
        item.message_queue.topic.name, item.message_queue.id = topic, number
        item.process_queue_info.commit_offset = 12_345_678
        item.process_queue_info.cached_msg_count = 32 * number
        item.process_queue_info.cached_msg_max_offset = 12_345_710
    [found] = connections()
    found.topics.extend(f"topic-{number}-of-many" for number in range(8))
    return found, info


def whoami() -> admin_v1.WhoAmIResponse:
    return admin_v1.WhoAmIResponse(accounts_required=True, account=accounts()[1])


def told() -> int:
    kinds = admin_v1.TimelineEvent.Kind
    found = admin_v1.MessageTimeline(
        message=message(1, b'{"amount": 12, "currency": "EUR", "customer": "ada lovelace", "urgent": true}')
    )
    events = (
        (kinds.STORED, "", 0, ""),
        (kinds.DELIVERED, "billing", 1, CLIENT),
        (kinds.DEAD_LETTER, "shipping", 16, ""),
    )
    for number, (kind, group, attempt, client_id) in enumerate(events):
        found.events.add(
            kind=kind,
            timestamp=at(NOW_MS + number),
            group=group,
            attempt=attempt,
            client_id=client_id,
            detail="queue 3",
        )
    for group in ("billing", LONG):
        found.groups.add(group=group, state=admin_v1.GroupMessageState.State.IN_FLIGHT, attempts=1)
    timeline._print(found, history=True)
    return 1


def moves() -> list[admin_v1.ResetOffsetsResponse.Queue]:
    kind = admin_v1.ResetOffsetsResponse.Queue
    return [kind(queue_id=number, before=12_345_678 * number or None, after=11_111_111) for number in range(3)]


def named_brokers() -> Contexts:
    files = {"credentials": "/home/operator/.config/aerobee/production.toml", "tls_ca": "/etc/ssl/certs/company-ca.crt"}
    endpoint = "aerobee.production.example.com:8081"
    return Contexts(
        "production", {"production": {"endpoint": endpoint, **files}, "test": {"endpoint": "127.0.0.1:8081"}}
    )


CASES: dict[str, tuple[str, tuple[str, ...], Callable[[], Any]]] = {
    "topic-list": ("topic", ("topic", "list"), topics),
    "topic-describe": ("topic", ("topic", "describe", "orders"), described_topic),
    "group-list": ("group", ("group", "list"), lambda: [described_group().group]),
    "group-describe": ("group", ("group", "describe", "billing"), described_group),
    "group-lag": ("group_offsets", ("group", "lag", "billing"), described_group),
    "subscription-list": ("subscription", ("subscription", "list"), subscriptions),
    "client-list": ("client", ("client", "list"), connections),
    "dlq-groups": ("dlq", ("dlq", "list"), dead_letter_queues),
    "dlq-list": ("dlq", ("dlq", "list", "billing"), dead_letters),
    "config-show": ("configuration", ("config", "show"), settings),
    "account-list": ("account", ("account", "list"), accounts),
    "query": ("messages.query", ("query", "orders", "--key", "order-7"), messages),
    "browse": ("messages.browse", ("browse", "orders"), messages),
    "traffic": ("status", ("status", "--traffic", "minute"), traffic),
    "group-lag-all": ("group_offsets", ("group", "lag"), accumulations),
    "subscription-clients": ("subscription", ("subscription", "list", "--clients"), client_subscriptions),
    "context-list": ("shell.context", ("context", "list"), named_brokers),
    "top": ("monitoring.top", ("top", "--once"), topped),
    "problems": ("monitoring.problems", ("problems",), problems),
    "operations": ("monitoring.operations", ("operations",), operations),
    "segments": ("monitoring.segments", ("segments",), segments),
    "delayed-list": ("messages.delayed", ("delayed", "list"), delayed),
    "status": ("status", ("status",), status),
    "status-brokers": ("status", ("status", "--brokers"), brokers),
    "client-describe": ("client", ("client", "describe", CLIENT), described_client),
    "dlq-show": ("dlq", ("dlq", "show", "billing", "17"), lambda: dead_letters()[0]),
    "account-whoami": ("account", ("account", "whoami"), whoami),
    "timeline": ("terminal.timeline", ("query", "orders", "--id", MESSAGE_ID, "--timeline"), told),
    "group-reset": ("group_offsets", ("group", "reset", "billing", "orders", "--earliest", "--dry-run"), moves),
    "transaction-list": ("messages.transaction", ("transaction", "list"), transactions),
}


FIGURES = {"bench", "store", "spark"}
"""Modules whose tables are of figures, without names that people give, and so have one width."""


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", CASES)
def test_listing(name: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The same text as before; no line is wider than the terminal, unless a name alone is."""
    module, arguments, answer = CASES[name]
    answers = "contexts.load" if module == "shell.context" else "with_client"
    monkeypatch.setattr(f"aerobee_broker.commands.{module}.{answers}", lambda *_: answer())
    monkeypatch.setattr(output, "terminal_width", lambda: width)
    monkeypatch.setattr(output, "short_time_text", lambda _: "01-02 03:04:05")
    monkeypatch.setattr(output, "time_text", lambda _: "2025-01-02 03:04:05.000")
    monkeypatch.setattr(output, "age_text", lambda moment: output.span_text(NOW_MS - moment))
    monkeypatch.setattr(sys.modules["aerobee_broker.cli"].contexts, "apply", lambda _: None)
    assert main(arguments) == (1 if name == "status" else 0)  # it says that no message is taken
    text = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    file = DIRECTORY / f"{name}.{width}.txt"
    if os.environ.get("AEROBEE_WRITE_GOLDEN"):
        DIRECTORY.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= width, text


def test_every_module_that_prints_a_table_has_a_case() -> None:
    """So that no new command is seen at one width only."""
    commands = Path(import_module("aerobee_broker.commands").__file__ or "").parent
    tables = {
        ".".join(file.relative_to(commands).with_suffix("").parts)
        for file in commands.rglob("*.py")
        if re.search(r"output\.print_(table|facts)\(", file.read_text(encoding="utf-8"))
    }
    assert tables <= {module for module, _, _ in CASES.values()} | FIGURES


WHOLE = re.compile(r"  \S+( \S+)*| +[\[(]--[^\[(]+ \| [^\[(]+[\])]")


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser and those of its sub-commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in dict.fromkeys(action.choices.values()):
                yield from parsers(each)


def test_help_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every command, at 80 columns; only commands in examples, and options that exclude each other, are whole."""
    monkeypatch.setenv("COLUMNS", "80")
    wide = [
        (parser.prog, line)
        for parser in parsers(cli.build_parser())
        for line in parser.format_help().splitlines()
        if len(line) > 80 and not WHOLE.fullmatch(line)
    ]
    assert wide == []
