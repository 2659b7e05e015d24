"""A user with only grpcurl: the broker describes itself, and requests are written in JSON."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee_client.testing import BrokerProcess
from tests.support.programs import GRPCURL, go_program

pytestmark = [pytest.mark.sdk("grpcurl"), pytest.mark.timeout(400)]  # the first run builds grpcurl, for a minute or two

MESSAGING = "apache.rocketmq.v2.MessagingService"
Grpcurl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def program() -> Path:
    """grpcurl, built once with Go."""
    return go_program(GRPCURL)


@pytest.fixture
def grpcurl(program: Path, broker: BrokerProcess) -> Grpcurl:
    """A function that runs grpcurl on the broker, with arguments after the address and `flags` before it."""

    def run(*arguments: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        command = [str(program), "-plaintext", "-max-time", "20", *flags, broker.endpoint, *arguments]
        environment = {**os.environ, "no_proxy": "127.0.0.1"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    return run


def call(grpcurl: Grpcurl, method: str, request: dict[str, Any]) -> list[dict[str, Any]]:
    """The responses to a call with the one header that the protocol requires.

    Requests may use the field names of the .proto files or of JSON. Responses have those of the .proto files:
    reflection serves Python's descriptors, which lack JSON names.
    """
    done = grpcurl(f"{MESSAGING}/{method}", flags=("-H", "x-mq-client-id: x", "-d", json.dumps(request)))
    assert (done.returncode, done.stderr) == (0, "")
    responses, decoder, text = [], json.JSONDecoder(), done.stdout.strip()
    while text:  # one JSON document after another
        response, end = decoder.raw_decode(text)
        responses.append(response)
        text = text[end:].lstrip()
    return responses


def test_the_services_are_listed_and_described(grpcurl: Grpcurl) -> None:
    """Reflection alone describes everything, down to the fields of a message."""
    listed = grpcurl("list")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert set(listed.stdout.split()) >= {
        MESSAGING,
        "apache.rocketmq.v2.Admin",
        "aerobee.v1.AdminService",
        "grpc.health.v1.Health",
    }
    service = grpcurl("describe", MESSAGING).stdout
    assert "rpc SendMessage ( .apache.rocketmq.v2.SendMessageRequest )" in service
    message = grpcurl("describe", "apache.rocketmq.v2.SystemProperties").stdout
    assert "receipt_handle" in message
    for each in listed.stdout.split():
        described = grpcurl("describe", each)
        assert (described.returncode, described.stderr) == (0, ""), each


def test_a_message_is_sent_and_received_in_json(grpcurl: Grpcurl) -> None:
    """A message is sent, received and acknowledged; then there are no more."""
    topic, group = {"name": "by-hand"}, {"name": "curious"}
    body = "grüße 🚀".encode()
    [sent] = call(
        grpcurl,
        "SendMessage",
        {
            "messages": [
                {
                    "topic": topic,
                    "body": base64.b64encode(body).decode(),
                    "userProperties": {"colour": "blue"},
                    "systemProperties": {
                        "messageId": "made-by-hand",
                        "tag": "t",
                        "messageType": "NORMAL",
                        "bodyEncoding": "IDENTITY",
                    },
                }
            ]
        },
    )
    assert sent["status"]["code"] == "OK"
    assert [(entry["status"]["code"], entry["message_id"]) for entry in sent["entries"]] == [("OK", "made-by-hand")]

    receive = {
        "group": group,
        "message_queue": {"topic": topic},
        "filter_expression": {"type": "TAG", "expression": "t"},
        "batch_size": 10,
        "invisible_duration": "30s",
        "long_polling_timeout": "1s",
    }
    status, received, delivered = call(grpcurl, "ReceiveMessage", receive)
    assert status["status"]["code"] == "OK"
    message = received["message"]
    assert base64.b64decode(message["body"]) == body
    assert message["user_properties"] == {"colour": "blue"}
    system = message["system_properties"]
    assert (system["message_id"], system["tag"], system["delivery_attempt"]) == ("made-by-hand", "t", 1)
    assert "delivery_timestamp" in delivered

    entry = {"message_id": system["message_id"], "receipt_handle": system["receipt_handle"]}
    [acknowledged] = call(grpcurl, "AckMessage", {"group": group, "topic": topic, "entries": [entry]})
    assert acknowledged["status"]["code"] == "OK"
    assert call(grpcurl, "ReceiveMessage", receive)[0]["status"]["code"] == "MESSAGE_NOT_FOUND"


def test_a_call_without_client_id_names_the_header(grpcurl: Grpcurl) -> None:
    """The most common first mistake; the answer names the header."""
    done = grpcurl(f"{MESSAGING}/QueryRoute", flags=("-d", json.dumps({"topic": {"name": "by-hand"}})))
    assert done.returncode == 0
    status = json.loads(done.stdout)["status"]
    assert status["code"] == "CLIENT_ID_REQUIRED"
    assert "x-mq-client-id" in status["message"]
