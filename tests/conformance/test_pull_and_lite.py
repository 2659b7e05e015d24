"""Items 190 to 200: what hardly a client uses."""

from __future__ import annotations

from aerobee_proto import v2
from tests.conformance.raw_client import RawClient, message, resource

Code = v2.Code


async def test_200_lite_topic_in_an_acknowledgement(client: RawClient, topic: str, group: str) -> None:
    """A lite topic named with a handle changes nothing about what becomes of the message."""
    await client.sent(message(topic))
    received = (await client.receive(topic, group, wait=5)).one
    handle = received.system_properties.receipt_handle
    changed = await client.change(topic, group, handle, 30, lite_topic="lite")
    assert changed.status.code == Code.OK
    request = v2.AckMessageRequest(group=resource(group), topic=resource(topic))
    request.entries.add(message_id="m", receipt_handle=changed.receipt_handle, lite_topic="lite")
    response = await client.call("AckMessage", request)
    assert response.status.code == Code.OK
    assert response.entries[0].status.code == Code.OK
    assert (await client.receive(topic, group)).code == Code.MESSAGE_NOT_FOUND
