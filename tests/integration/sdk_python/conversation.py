"""Exchanges lines of JSON with the test that started this program."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

_lock = threading.Lock()


def options() -> dict[str, Any]:
    """The options that the test passed on the command line."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    return given


def configuration(given: dict[str, Any]) -> Any:
    """A configuration from `endpoint`, `namespace`, `access_key` and `secret_key`; callers also pass `tls`."""
    from rocketmq import ClientConfiguration, Credentials

    credentials = Credentials(given.get("access_key", ""), given.get("secret_key", ""))
    return ClientConfiguration(given["endpoint"], credentials, given.get("namespace", ""))


def subscription(given: dict[str, Any]) -> dict[str, Any]:
    """A subscription to `topic`, filtered by the tags in `expression`, or by SQL if `sql` is set."""
    from rocketmq import FilterExpression
    from rocketmq.grpc_protocol import FilterType

    kind = FilterType.SQL if given.get("sql", False) else FilterType.TAG
    return {given["topic"]: FilterExpression(given.get("expression", "*"), kind)}


def say(event: str, **fields: Any) -> None:
    """Send an event to the test, from any thread."""
    line = json.dumps({"event": event, **fields}) + "\n"
    with _lock:
        sys.stdout.write(line)
        sys.stdout.flush()


def commands() -> Iterator[dict[str, Any]]:
    """The test's commands, until it closes the pipe."""
    for line in sys.stdin:
        yield json.loads(line)


def obey(answers: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Answer each command with the function of its name. An exception becomes the answer, and the loop continues."""
    for command in commands():
        name = command.pop("do")
        try:
            answer = answers[name](**command)
        except Exception as error:  # the test judges whatever the SDK raises
            say("error", error=f"{type(error).__name__}: {error}")
        else:
            say("answer", **answer)


def told(message: Any) -> dict[str, Any]:
    """A received message as JSON."""
    return {
        "time": time.time(),
        "message_id": message.message_id,
        "topic": message.topic,
        "body": message.body.decode(),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "properties": message.properties,
        "attempt": message.delivery_attempt,
        "corrupted": message.corrupted,
        "born_host": message.born_host,
        "born_timestamp": message.born_timestamp,
    }
