"""An operator's tasks on the command line, with a real broker."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.commands.terminal import output
from aerobee_client import Message, connect
from aerobee_client.testing import BrokerProcess
from tests.support.shell import Shell

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker_arguments(tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    """Settings in a file: one queue a topic, invisible times of a test."""
    config = tmp_path_factory.mktemp("config") / "aerobee.toml"
    config.write_text("[topics]\nqueue_count = 1\n[delivery]\ninvisible_seconds_min = 0.1\n")
    return ("--dev", "--config", str(config))


def dead(shell: Shell, topic: str, group: str, *bodies: str) -> None:
    """Make these messages of the topic dead letters of the group, in order."""
    shell.text("group", "create", group, "--max-attempts", "1")
    for count, body in enumerate(bodies, 1):
        shell.text("send", topic, body, "--tag", "t")
        shell.lines("receive", topic, "--group", group, "--no-ack", "--invisible", "0.1")
        deadline = time.monotonic() + 60
        while {each["group"]: each["count"] for each in shell.json("dlq", "list")}.get(group) != count:
            assert time.monotonic() < deadline
            # The receive after the last attempt makes the message a dead letter.
            assert shell.lines("receive", topic, "--group", group, "--wait", "0.1") == []


@contextmanager
def connected(endpoint: str, group: str, *topics: str) -> Iterator[str]:
    """The id of a consumer that stays connected, in its own thread."""
    ready: list[str] = []
    begun, over = threading.Event(), threading.Event()

    async def stay() -> None:
        async with connect(endpoint) as client:
            consumer = client.simple_consumer(group, dict.fromkeys(topics, "new || paid"))
            await consumer.receive(1, wait_seconds=0)
            ready.extend([each.client_id async for each in client.admin.connections(group=group)])
            begun.set()
            await asyncio.to_thread(over.wait, 60)

    thread = threading.Thread(target=lambda: asyncio.run(stay()))
    thread.start()
    try:
        assert begun.wait(60)
        yield ready[0]
    finally:
        over.set()
        thread.join(20)


class TestGroups:
    def test_lag_by_group_topic_and_queue(self, shell: Shell) -> None:
        """All groups with one line each, and one group by topic and queue."""
        shell.text("send", "lagging", "x", "--count", "5")
        shell.lines("receive", "lagging", "--group", "slow", "--max", "2", "--no-ack", "--invisible", "60")
        found = shell.json("group", "lag", "slow")
        assert (found["group"], found["lag"]) == ("slow", 5)
        assert [(topic["topic"], topic["inflight"], topic["ready"]) for topic in found["topics"]] == [("lagging", 2, 3)]
        assert found["queues"][0]["committedOffset"] == 0
        (listed,) = (each for each in shell.json("group", "lag") if each["group"] == "slow")
        assert (listed["lag"], listed["inflight"], listed["ready"]) == (5, 2, 3)
        assert "lagging" in shell.text("group", "lag", "slow")
        assert "slow" in shell.text("group", "lag")
        assert "aerobee group create absent" in shell.error("group", "lag", "absent", code=3)
        backlog = shell.lines("query", "lagging", "--backlog", "slow")
        assert [each["queueOffset"] for each in backlog] == [0, 1, 2, 3, 4]
        assert shell.lines("query", "lagging", "--backlog", "slow", "--end", "1h") == []

    def test_reset_and_skip(self, shell: Shell) -> None:
        """A group rereads or skips messages; a dry run shows the result without applying it."""
        shell.text("send", "replayed", "x", "--count", "3")
        assert len(shell.lines("receive", "replayed", "--group", "again")) == 3
        dry = shell.json("group", "reset", "again", "replayed", "--earliest", "--dry-run")
        assert (dry["dryRun"], dry["queues"]) == (True, [{"queueId": 0, "before": 3, "after": 0}])
        assert shell.lines("receive", "replayed", "--group", "again", "--wait", "0") == []
        assert "continues" in shell.text("group", "reset", "again", "replayed", "--to-time", "1h")
        shell.text("group", "skip", "again", "replayed", "--queue", "0", "--count", "2")
        assert [each["queueOffset"] for each in shell.lines("receive", "replayed", "--group", "again")] == [2]
        shell.text("group", "reset", "again", "replayed", "--to-offset", "1", "--queue", "0")
        shell.text("group", "reset", "again", "replayed", "--latest")
        assert shell.lines("receive", "replayed", "--group", "again", "--wait", "0") == []
        assert "no queue 7" in shell.error("group", "skip", "again", "replayed", "--queue", "7")

    def test_both_retry_policies(self, shell: Shell) -> None:
        """A list of delays, and exponential backoff."""
        created = shell.json("group", "create", "listed", "--retry-delays", "500ms,2s,1m")
        delays = created["retryPolicy"]["customizedBackoff"]["next"]
        assert delays == [0.5, 2.0, 60.0]
        assert "after 0.5 s, 2 s, 1 min" in shell.text("group", "describe", "listed")
        updated = shell.json("group", "update", "listed", "--retry-backoff", "1s,1h,3")
        assert updated["retryPolicy"]["exponentialBackoff"] == {"initial": 1.0, "max": 3600.0, "multiplier": 3.0}
        assert "3 times as long" in shell.text("group", "describe", "listed")

    def test_a_topic_without_write_permission(self, shell: Shell) -> None:
        """Permissions are changed and shown."""
        shell.text("topic", "create", "read-only", "--permission", "read")
        assert "FORBIDDEN" in shell.error("send", "read-only", "x")
        assert "read" in shell.text("topic", "describe", "read-only")
        shell.text("topic", "update", "read-only", "--permission", "read-write")
        shell.text("send", "read-only", "x")


class TestClientsAndSubscriptions:
    def test_connected_clients_and_subscriptions(self, shell: Shell, broker: BrokerProcess) -> None:
        """A consumer in lists and alone; its subscription while it is connected and afterwards."""
        shell.text("send", "watched", "x", "--tag", "new")
        with connected(broker.endpoint, "watchers", "watched") as client_id:
            (found,) = shell.json("client", "list", "--group", "watchers")
            assert (found["clientId"], found["clientType"], found["language"]) == (
                *(client_id, "SIMPLE_CONSUMER"),
                "PYTHON",
            )
            assert client_id in shell.text("client", "list", "--topic", "watched")
            described = shell.json("client", "describe", client_id)
            assert described["runningInfo"]["messageQueueTable"][0]["processQueueInfo"]["commitOffset"] == 0
            assert "watchers" in shell.text("client", "describe", client_id)
            (subscription,) = shell.json("subscription", "list", "--group", "watchers")
            assert (subscription["online"], subscription["subscriptionConsistency"]) == (True, True)
            assert subscription["expression"]["expression"] == "new || paid"
            assert client_id in shell.text("subscription", "list", "--group", "watchers", "--clients")
            assert "stop them first" in shell.error("subscription", "delete", "watched", "watchers")
            assert "asked" in shell.text("client", "reconnect", client_id)
        (subscription,) = shell.json("subscription", "list", "--group", "watchers")
        assert subscription["online"] is False
        assert "no" in shell.text("subscription", "list", "--topic", "watched")
        shell.text("subscription", "delete", "watched", "watchers")
        assert shell.json("subscription", "list", "--group", "watchers") == []
        assert "client list" in shell.error("client", "describe", client_id, code=3)
        assert "client list" in shell.error("client", "stacks", client_id, code=3)
        verify = ("--group", "watchers", "--topic", "watched", "--id", "x")
        assert "client list" in shell.error("client", "verify", client_id, *verify, code=3)
        assert "client list" in shell.error("client", "reconnect", client_id, code=3)


class TestDeadLetters:
    def test_dead_letters_are_listed_shown_and_resent(self, shell: Shell) -> None:
        """Dead letters are listed, shown, and sent back to their topic once."""
        dead(shell, "failing", "failed", "first", "second")
        (queue,) = [each for each in shell.json("dlq", "list") if each["group"] == "failed"]
        assert queue["count"] == 2
        letters = shell.json("dlq", "list", "failed")
        assert [(each["offset"], each["originTopic"], each["bodySize"]) for each in letters] == [
            *((0, "failing", 5), (1, "failing", 6))
        ]
        assert "failing" in shell.text("dlq", "list", "failed")
        shown = shell.json("dlq", "show", "failed", "1")
        assert (shown["body"], shown["tag"], shown["group"]) == ("second", "t", "failed")
        assert shell.json("dlq", "show", "failed", shown["messageId"]) == shown
        assert "second" in shell.text("dlq", "show", "failed", "1")
        assert "dlq list failed" in shell.error("dlq", "show", "failed", "9", code=3)
        assert shell.json("dlq", "resend", "failed", "--all", "--dry-run")["offsets"] == [0, 1]
        (result,) = shell.lines("dlq", "resend", "failed", "--offset", "1")
        assert (result["topic"], result["messageId"]) == ("failing", shown["messageId"])
        (received,) = shell.lines("receive", "failing", "--group", "failed")
        assert (received["body"], received["deliveryAttempt"]) == ("second", 1)
        assert "resentTimestamp" in shell.json("dlq", "list", "failed")[1]
        code, _, error = shell.run("dlq", "resend", "failed", "--offset", "1")
        assert (code, "already resent" in error) == (1, True)
        assert "sent 1 dead" in shell.text("dlq", "resend", "failed", "--all")
        assert "sent 0 dead" in shell.text("dlq", "resend", "failed", "--all")

    def test_dead_letters_are_exported(self, shell: Shell, tmp_path: Path) -> None:
        """One JSON object per line, to a new file or standard output, for much more than a page."""
        dead(shell, "exporting", "exporter", "a", "b")
        lines = [json.loads(line) for line in shell.text("dlq", "export", "exporter").splitlines()]
        assert [line["body"] for line in lines] == ["a", "b"]
        path = tmp_path / "letters.jsonl"
        code, out, err = shell.run("dlq", "export", "exporter", "--output", str(path))
        assert (code, out, "wrote 2" in err) == (0, "", True)
        assert len(shell.text("dlq", "export", "exporter", "--output", "-").splitlines()) == 2
        assert [json.loads(line) for line in path.read_text().splitlines()] == lines
        assert "exists already" in shell.error("dlq", "export", "exporter", "--output", str(path))
        assert shell.text("dlq", "export", "exporter", "--end", "1h") == ""


class TestMessages:
    def test_timeline_of_a_message(self, shell: Shell) -> None:
        """By key and by id, with every delivery on request, and for a message that is not due yet."""
        (sent,) = shell.lines("send", "told", "x", "--key", "k")
        shell.lines("receive", "told", "--group", "teller")
        (found,) = shell.lines("query", "told", "--key", "k", "--history")
        assert [event["kind"] for event in found["events"]] == ["BORN", "STORED", "DELIVERED", "FINISHED"]
        assert (found["message"]["body"], found["groups"][0]["state"]) == ("x", "FINISHED")
        text = shell.text("query", "told", "--id", sent["messageId"], "--timeline", "--group", "teller")
        assert re.search(r"stored +- +- +- +queue 0, offset 0", text)
        (later,) = shell.lines("send", "told", "y", "--delay", "3600")
        (found,) = shell.lines("query", "told", "--id", later["messageId"], "--timeline")
        assert [event["kind"] for event in found["events"]] == ["BORN", "DELAYED"]
        assert "delayed" in shell.text("query", "told", "--id", later["messageId"], "--timeline")
        assert "no message" in shell.error("query", "told", "--id", "absent", "--timeline", code=3)
        assert "no such message" in shell.error("query", "told", "--key", "absent", "--timeline", code=3)

    def test_receive_with_an_sql_condition(self, shell: Shell) -> None:
        """`receive --sql` takes the messages that match the condition."""
        for amount in ("50", "150"):
            shell.text("send", "priced", amount, "--property", f"amount={amount}")
        received = shell.lines("receive", "priced", "--group", "rich", "--sql", "amount > 100")
        assert [each["body"] for each in received] == ["150"]
        assert "aerobee: " in shell.error("receive", "priced", "--group", "rich", "--sql", "amount >")


class TestBroker:
    def test_status(self, shell: Shell, broker: BrokerProcess) -> None:
        """Broker and store in one output, with an exit code for scripts."""
        shell.text("send", "counted", "x")
        status = shell.json("status")
        assert status["broker"]["statistics"]["messagesIn"] >= 1
        assert status["store"]["directory"] == str(broker.store)
        text = shell.text("status")
        assert broker.endpoint in text
        assert re.search(r"takes messages +yes", text)

    def test_traffic(self, shell: Shell) -> None:
        """Recent traffic in both directions, and its rates."""
        shell.text("send", "busy", "x", "--count", "3")
        shell.lines("receive", "busy", "--group", "readers")
        found = shell.json("status", "--traffic", "minute", "--topic", "busy")
        assert [(each["topic"], each["messages"]) for each in found["topics"]] == [("busy", 3)]
        assert [(each["group"], each["messages"], each["acknowledged"]) for each in found["groups"]] == [
            ("readers", 3, 3)
        ]
        assert "busy" in shell.text("status", "--traffic", "day")

    def test_configuration(self, shell: Shell, broker: BrokerProcess) -> None:
        """Settings are shown with their sources, changed, kept after a restart, and reset."""

        def source(name: str) -> tuple[str, str]:
            (found,) = shell.json("config", "show", name)
            return found["value"], found["source"]

        assert source("topics.queue_count") == ("1", "file")
        assert source("broker.dev") == ("true", "flag")
        assert source("store.retention_hours") == ("72", "default")
        (changed,) = shell.json("config", "set", "store.retention_hours=24")
        assert (changed["value"], changed["default"], changed["source"]) == ("24", "72", "saved")
        broker.restart()
        assert source("store.retention_hours") == ("24", "saved")
        assert "retention_hours" in shell.text("config", "show", "--changed")
        assert "cannot change while the broker runs" in shell.error("config", "set", "store.flush=async")
        assert "config show" in shell.error("config", "show", "nonsense", code=3)
        shell.text("config", "unset", "store.retention_hours")
        assert source("store.retention_hours") == ("72", "default")
        assert "DEBUG" in shell.text("config", "log-level", "debug")
        assert "INFO" in shell.json("config", "log-level", "info")["remark"]

    @pytest.mark.parametrize("width", [80, 120])
    def test_every_setting_is_one_line(self, shell: Shell, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Long values are cut, and columns left out, before 150 settings become blocks of lines."""
        monkeypatch.setattr(output, "terminal_width", lambda: width)
        code, out, _ = shell.run("config", "show")  # a note says which columns are left out
        lines = out.splitlines()
        assert code == 0
        assert len(lines) == 2 + len(shell.json("config", "show"))
        assert max(map(len, lines)) <= width
        assert lines[0].split()[:2] == ["setting", "value"]
        assert "source" in lines[0]


class TestWaitingMessages:
    def test_delayed_messages_are_listed_and_recalled(self, shell: Shell) -> None:
        """By delivery time, also between two times; by id or all; what does not wait is named."""
        shell.text("topic", "create", "later", "--type", "DELAY")
        for body, seconds in (("second", "7200"), ("first", "3600"), ("third", "10800")):
            shell.text("send", "later", body, "--delay", seconds, "--tag", body)
        found = until(lambda: shell.json("delayed", "list", "later"), lambda listed: len(listed) == 3)
        assert [each["tag"] for each in found] == ["first", "second", "third"]
        assert found[0].keys() >= {"messageId", "deliveryTimestamp", "recallHandle", "bodySize"}
        assert "queueOffset" not in found[0]
        first, second, third = (each["messageId"] for each in found)
        assert first in shell.text("delayed", "list")
        limits = ("--begin", str(found[1]["deliveryTimestamp"]), "--end", str(found[2]["deliveryTimestamp"]))
        assert [each["messageId"] for each in shell.json("delayed", "list", "later", *limits)] == [second]
        assert "aerobee delayed list later" in shell.error("delayed", "recall", "later", "--id", "nothing", code=3)
        dry = shell.json("delayed", "recall", "later", "--all", "--dry-run")
        assert (dry["count"], dry["dryRun"]) == (3, True)
        assert shell.text("delayed", "recall", "later", "--id", first) == "recalled 1 delayed message of later\n"
        assert [each["messageId"] for each in shell.lines("delayed", "recall", "later", "--all", *limits)] == [second]
        assert [each["messageId"] for each in shell.json("delayed", "list", "later")] == [third]
        assert shell.text("delayed", "list", "later", "--end", "now") == "no such message waits\n"

    def test_open_transactions_are_listed_and_decided(self, shell: Shell, broker: BrokerProcess) -> None:
        """A committed one is delivered, one that is rolled back is not; neither can be decided again."""
        shell.text("topic", "create", "undecided", "--type", "TRANSACTION")

        async def begin() -> None:
            async with connect(broker.endpoint) as client:
                producer = client.producer(transaction_checker=lambda _: "unknown")
                for body in (b"kept", b"dropped"):
                    await producer.transaction().send(Message(topic="undecided", body=body))

        asyncio.run(begin())
        kept, dropped = (each["transactionId"] for each in shell.json("transaction", "list", "undecided"))
        assert kept in shell.text("transaction", "list")
        assert "not open" in shell.error("transaction", "commit", "undecided", "nothing", code=3)
        done = shell.lines("transaction", "commit", "undecided", kept)
        assert [(each["transactionId"], each["status"]["code"]) for each in done] == [(kept, "OK")]
        said = shell.text("transaction", "rollback", "undecided", dropped)
        assert said == "rolled back 1 transaction of undecided\n"
        assert "not open" in shell.error("transaction", "rollback", "undecided", kept, code=3)
        assert shell.text("transaction", "list", "undecided") == "no transaction is open\n"
        received = shell.lines("receive", "undecided", "--group", "deciders")
        assert [each["body"] for each in received] == ["kept"]


class TestTheBrokerItself:
    def test_who_changed_what(self, shell: Shell) -> None:
        """The newest first, by text in method or request."""
        shell.text("topic", "create", "changed-topic")
        shell.text("topic", "delete", "changed-topic")
        found = shell.json("operations", "--search", "changed-topic")
        assert [each["method"] for each in found] == ["DeleteTopic", "CreateTopic"]
        assert [each["method"] for each in shell.json("operations", "--max", "1")] == ["DeleteTopic"]
        assert "DeleteTopic" in shell.text("operations")
        assert shell.text("operations", "--account", "nobody") == "no such change\n"

    def test_the_segments_of_the_log(self, shell: Shell) -> None:
        """The one that is written to has no time at which it is removed."""
        shell.text("send", "segmented", "x")
        answer = shell.json("segments")
        (segment,) = answer["segments"]
        assert (segment["physicalOffset"], "expireTimestamp" in segment) == (0, False)
        assert answer["retentionHours"] == 72
        text = shell.text("segments")
        assert "disk full in  " in text
        assert segment["path"] in text

    def test_what_needs_attention(self, shell: Shell) -> None:
        """Each problem with its next step."""
        dead(shell, "attended", "attention", "a")
        found = until(
            lambda: shell.json("problems"), lambda problems: "attention" in [each["group"] for each in problems]
        )
        (problem,) = (each for each in found if each["group"] == "attention")
        assert (problem["name"], problem["severity"]) == ("AerobeeDeadLetters", "SEVERITY_WARNING")
        text = " ".join(shell.text("problems").split())
        assert f"warning: {problem['summary']} (AerobeeDeadLetters, for " in text
        assert problem["nextStep"] in text


def until(look: Callable[[], Any], is_it: Callable[[Any], bool]) -> Any:
    """What is there once the broker has come so far."""
    deadline = time.monotonic() + 120
    while not is_it(found := look()):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found
