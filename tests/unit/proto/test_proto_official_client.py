"""The official Python client and our package work in one process and on the wire, with separate descriptor pools."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.official_sdks import PYTHON

_IMPORTS = {
    "ours": "from aerobee_proto import admin_v1, v2",
    "theirs": "import rocketmq; from rocketmq.v5.client import ClientConfiguration; "
    "from rocketmq.grpc_protocol import definition_pb2, service_pb2",
}
_EXCHANGE = """
from google.protobuf.json_format import MessageToDict

def fill(request, definition):
    message = request.messages.add()
    message.topic.name = "orders"
    message.topic.resource_namespace = "shop"
    message.body = bytes(range(256))
    message.user_properties["colour"] = "blå"
    properties = message.system_properties
    properties.tag = ""
    properties.keys.extend(["k1", "k2"])
    properties.message_id = "01A2B3"
    properties.body_encoding = definition.Encoding.GZIP
    properties.message_type = definition.MessageType.PRIORITY
    properties.born_timestamp.FromMilliseconds(1_700_000_000_123)
    properties.invisible_duration.FromSeconds(30)
    properties.queue_offset = 2**40
    properties.priority = 7
    properties.dead_letter_queue.topic = "before"
    return request

our_request = fill(v2.SendMessageRequest(), v2)
their_request = fill(service_pb2.SendMessageRequest(), definition_pb2)
our_bytes = our_request.SerializeToString(deterministic=True)
their_bytes = their_request.SerializeToString(deterministic=True)
assert our_bytes == their_bytes
decoded_by_them = service_pb2.SendMessageRequest.FromString(our_bytes)
decoded_by_us = v2.SendMessageRequest.FromString(their_bytes)
assert decoded_by_them == their_request
assert decoded_by_us == our_request
assert MessageToDict(decoded_by_us) == MessageToDict(decoded_by_them)
assert type(decoded_by_us) is not type(decoded_by_them)
assert decoded_by_us.messages[0].system_properties.HasField("tag")
assert decoded_by_us.messages[0].system_properties.born_timestamp.ToMilliseconds() == 1_700_000_000_123
print("exchanged")
"""


@PYTHON.mark
@pytest.mark.parametrize("order", [("ours", "theirs"), ("theirs", "ours")], ids=["ours first", "theirs first"])
def test_both_are_imported_and_understand_each_other(order: tuple[str, str], tmp_path: Path) -> None:
    """In either import order, both encode the same bytes and decode each other's to equal values."""
    script = "\n".join([*(_IMPORTS[name] for name in order), _EXCHANGE])
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "HOME": str(tmp_path)},  # the client writes its log there
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "exchanged\n"
