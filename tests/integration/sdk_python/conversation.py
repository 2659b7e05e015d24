"""Lines of JSON with the test that started this program."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

_lock = threading.Lock()


def options() -> dict[str, Any]:
    """What the test gave on the command line."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    return given


def configuration(given: dict[str, Any]) -> Any:
    """Of `endpoint`, `namespace`, `access_key` and `secret_key`; whoever takes it also takes `tls`."""
    from rocketmq import ClientConfiguration, Credentials

    credentials = Credentials(given.get("access_key", ""), given.get("secret_key", ""))
    return ClientConfiguration(given["endpoint"], credentials, given.get("namespace", ""))


def subscription(given: dict[str, Any]) -> dict[str, Any]:
    """To `topic`, as far as `expression` lets through, which may be `sql`."""
    from rocketmq import FilterExpression
    from rocketmq.grpc_protocol import FilterType

    kind = FilterType.SQL if given.get("sql", False) else FilterType.TAG
    return {given["topic"]: FilterExpression(given.get("expression", "*"), kind)}


def say(event: str, **fields: Any) -> None:
    """Tell the test; from any thread."""
    line = json.dumps({"event": event, **fields}) + "\n"
    with _lock:
        sys.stdout.write(line)
        sys.stdout.flush()


def commands() -> Iterator[dict[str, Any]]:
    """What the test says, until it closes the pipe."""
    for line in sys.stdin:
        yield json.loads(line)


def obey(answers: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Answer commands by their name; an exception is told, and the next command read."""
    for command in commands():
        name = command.pop("do")
        try:
            answer = answers[name](**command)
        except Exception as error:  # whatever an SDK raises is for the test to judge
            say("error", error=f"{type(error).__name__}: {error}")
        else:
            say("answer", **answer)


def told(message: Any) -> dict[str, Any]:
    """A received message in JSON."""
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
