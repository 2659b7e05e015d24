"""The client against a scripted server that fails in many ways."""

from __future__ import annotations

import asyncio
import gzip
import socket
import time

import grpc
import pytest

from aerobee_client import (
    BadRequestError,
    BatchError,
    Client,
    ClientError,
    DeadlineError,
    ForbiddenError,
    InternalServerError,
    InvalidEndpointError,
    Message,
    NotFoundError,
    ReceivedMessage,
    SendResult,
    ServerError,
    SimpleConsumer,
    SqlFilter,
    UnavailableError,
    UnsupportedError,
    connect,
    new_message_id,
)
from aerobee_proto import v2
from tests.support.scripted_broker import OK, ScriptedBroker, failure, new_scripted_broker, scripted_broker

pytestmark = pytest.mark.timeout(300)

MESSAGE = Message(topic="orders", body=b"hello")


def send_answer(*codes: v2.Code.ValueType, top: v2.Code.ValueType | None = None) -> v2.SendMessageResponse:
    """A SendMessage response with one entry for each code."""
    entries = [v2.SendResultEntry(status=v2.Status(code=code), message_id=f"id-{code}", offset=7) for code in codes]
    return v2.SendMessageResponse(status=v2.Status(code=top or codes[0]), entries=entries)


def delivered(
    body: bytes = b"hello", handle: str = "first", encoding: v2.Encoding.ValueType = v2.Encoding.IDENTITY
) -> v2.ReceiveMessageResponse:
    """One item of a receive stream."""
    properties = v2.SystemProperties(
        tag="paid",
        keys=["a", "b c"],
        message_id="ID",
        body_encoding=encoding,
        receipt_handle=handle,
        queue_id=3,
        queue_offset=12,
        delivery_attempt=2,
    )
    properties.store_timestamp.FromMilliseconds(1_700_000_000_123)
    message = v2.Message(
        topic=v2.Resource(name="orders"), user_properties={"x": "y"}, system_properties=properties, body=body
    )
    return v2.ReceiveMessageResponse(message=message)


RECEIVED_OK = v2.ReceiveMessageResponse(status=OK)


async def received(consumer: SimpleConsumer) -> ReceivedMessage:
    """The only message returned by the next receive."""
    messages = await consumer.receive(wait_seconds=0)
    assert len(messages) == 1
    return messages[0]


class TestProducer:
    async def test_a_message_is_sent_with_all_its_fields(self, broker: ScriptedBroker, client: Client) -> None:
        """Every field reaches the wire, and the result has the message id that was sent."""
        result = await client.producer().send(
            Message(topic="orders", body=b"\0\xff", tag="paid", keys=("k 1", "k2"), properties={"region": "north"})
        )
        wire = broker.requests("SendMessage")[0].messages[0]
        assert (wire.topic.name, wire.body, dict(wire.user_properties)) == ("orders", b"\0\xff", {"region": "north"})
        assert wire.system_properties.tag == "paid"
        assert list(wire.system_properties.keys) == ["k 1", "k2"]
        assert wire.system_properties.message_type == v2.MessageType.NORMAL
        assert wire.system_properties.body_encoding == v2.Encoding.IDENTITY
        assert abs(wire.system_properties.born_timestamp.ToMilliseconds() - time.time() * 1000) < 60_000
        assert result == SendResult(wire.system_properties.message_id, 0)

    async def test_the_kind_of_a_message_follows_from_its_fields(self, broker: ScriptedBroker, client: Client) -> None:
        """A message group makes the message FIFO, a delivery time makes it DELAY."""
        producer = client.producer()
        await producer.send(Message(topic="orders", body=b"x", message_group="g"))
        await producer.send(Message(topic="orders", body=b"x", delivery_timestamp=1_900_000_000_001))
        ordered, delayed = (request.messages[0].system_properties for request in broker.requests("SendMessage"))
        assert (ordered.message_type, ordered.message_group) == (v2.MessageType.FIFO, "g")
        assert delayed.message_type == v2.MessageType.DELAY
        assert delayed.delivery_timestamp.ToMilliseconds() == 1_900_000_000_001

    async def test_settings_are_sent_before_the_first_message(self, broker: ScriptedBroker, client: Client) -> None:
        """RocketMQ refuses unknown clients, so the client waits for the answer to its settings before it sends."""
        producer = client.producer()
        await asyncio.gather(*(producer.send(MESSAGE) for _ in range(5)))
        assert [name for name, _ in broker.calls] == ["Telemetry", "QueryRoute", "SendMessage"]
        assert len(broker.requests("SendMessage")[0].messages) == 5  # concurrent sends share a request
        assert broker.requests("Telemetry")[0].settings.client_type == v2.ClientType.PRODUCER
        assert broker.metadata["x-mq-client-id"]
        assert broker.metadata["x-mq-language"] == "PYTHON"

    @pytest.mark.parametrize(
        "answer",
        [
            failure(grpc.StatusCode.UNAVAILABLE),
            send_answer(v2.Code.INTERNAL_SERVER_ERROR),
            send_answer(v2.Code.MASTER_PERSISTENCE_TIMEOUT),
            v2.SendMessageResponse(status=v2.Status(code=v2.Code.TOO_MANY_REQUESTS)),
        ],
        ids=["unavailable", "internal", "persistence", "busy"],
    )
    async def test_temporary_errors_are_retried_with_the_same_id(
        self, broker: ScriptedBroker, client: Client, answer: object
    ) -> None:
        """The third attempt succeeds. All three carry the same message id, so duplicates can be recognized."""
        broker.answers["SendMessage"] = [answer, answer]
        result = await client.producer().send(MESSAGE)
        ids = {request.messages[0].system_properties.message_id for request in broker.requests("SendMessage")}
        assert len(broker.requests("SendMessage")) == 3
        assert ids == {result.message_id}

    async def test_a_send_has_three_attempts(self, broker: ScriptedBroker, client: Client) -> None:
        """After three failed attempts the send fails with the server's error message."""
        status = v2.Status(code=v2.Code.INTERNAL_SERVER_ERROR, message="the disk is full")
        broker.answers["SendMessage"] = [v2.SendMessageResponse(status=status)] * 9
        with pytest.raises(InternalServerError, match="the disk is full") as raised:
            await client.producer().send(MESSAGE)
        assert raised.value.code == v2.Code.INTERNAL_SERVER_ERROR
        assert len(broker.requests("SendMessage")) == 3

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            (v2.Code.TOPIC_NOT_FOUND, NotFoundError),
            (v2.Code.ILLEGAL_MESSAGE_TAG, BadRequestError),
            (v2.Code.MESSAGE_BODY_TOO_LARGE, BadRequestError),
            (v2.Code.FORBIDDEN, ForbiddenError),
            (v2.Code.UNAUTHORIZED, ForbiddenError),
            (v2.Code.NOT_IMPLEMENTED, UnsupportedError),
        ],
    )
    async def test_client_errors_are_not_retried(
        self, broker: ScriptedBroker, client: Client, code: v2.Code.ValueType, kind: type[ServerError]
    ) -> None:
        """A client error is raised with its class and code after one attempt."""
        broker.answers["SendMessage"] = [v2.SendMessageResponse(status=v2.Status(code=code, message="because"))]
        with pytest.raises(kind, match=f"because.*{v2.Code.Name(code)}") as raised:
            await client.producer().send(MESSAGE)
        assert type(raised.value) is kind
        assert raised.value.code == code
        assert len(broker.requests("SendMessage")) == 1

    async def test_an_unknown_code_is_an_error(self, broker: ScriptedBroker, client: Client) -> None:
        """Codes that this client does not know, as from a newer server, are errors."""
        broker.answers["SendMessage"] = [
            v2.SendMessageResponse(status=v2.Status(code=99999, message="new"))  # type: ignore[arg-type]  # unknown
        ]
        with pytest.raises(ServerError, match="new"):
            await client.producer().send(MESSAGE)

    async def test_a_missing_answer_is_a_timeout(self, broker: ScriptedBroker) -> None:
        """If the server does not answer, the send fails when the retry time is over."""
        broker.answers["SendMessage"] = [failure(grpc.StatusCode.DEADLINE_EXCEEDED)] * 100
        async with connect(broker.endpoint, retry_seconds=0.1) as client:
            with pytest.raises(DeadlineError, match="did not answer in time"):
                await client.producer().send(MESSAGE)

    async def test_results_of_many_messages_keep_their_order(self, broker: ScriptedBroker, client: Client) -> None:
        """Each request has one topic and a bounded number of messages. Results are in the order of the input."""
        messages = [Message(topic=f"t{number % 3}", body=b"%d" % number) for number in range(900)]
        results = await client.producer().send_many(messages)
        sent = {}
        for request in broker.requests("SendMessage"):
            assert len({message.topic.name for message in request.messages}) == 1
            assert len(request.messages) <= 500
            sent.update({message.body: message.system_properties.message_id for message in request.messages})
        assert [result.message_id for result in results] == [sent[message.body] for message in messages]

    async def test_large_messages_are_sent_in_more_requests(self, broker: ScriptedBroker, client: Client) -> None:
        """A request stays below gRPC's 4 MiB as long as each single message does."""
        await client.producer().send_many([Message(topic="t", body=bytes(1 << 20))] * 5)
        assert [len(request.messages) for request in broker.requests("SendMessage")] == [3, 2]

    async def test_some_of_many_fail(self, broker: ScriptedBroker, client: Client) -> None:
        """The error says which messages were stored and which were not."""
        broker.answers["SendMessage"] = [
            send_answer(v2.Code.OK, v2.Code.ILLEGAL_MESSAGE_KEY, v2.Code.OK, top=v2.Code.MULTIPLE_RESULTS)
        ]
        with pytest.raises(BatchError, match="1 of 3 failed") as raised:
            await client.producer().send_many([MESSAGE] * 3)
        assert [type(outcome) for outcome in raised.value.outcomes] == [SendResult, BadRequestError, SendResult]

    async def test_one_entry_for_a_batch_counts_for_all_messages(self, broker: ScriptedBroker, client: Client) -> None:
        """RocketMQ's server answers a batch with a single entry; each message keeps its own id."""
        broker.answers["SendMessage"] = [send_answer(v2.Code.OK)]
        results = await client.producer().send_many([MESSAGE] * 3)
        assert len({result.message_id for result in results}) == 3

    async def test_a_wrong_number_of_entries_is_an_error(self, broker: ScriptedBroker, client: Client) -> None:
        """A response with status OK but the wrong number of entries is an error."""
        broker.answers["SendMessage"] = [v2.SendMessageResponse(status=OK)]
        with pytest.raises(ClientError, match="1 messages with 0 results"):
            await client.producer().send(MESSAGE)

    async def test_an_empty_list_sends_no_request(self, broker: ScriptedBroker, client: Client) -> None:
        """An empty list causes no request."""
        assert await client.producer().send_many([]) == []
        assert broker.calls == []


class TestConnection:
    async def test_no_broker_answers(self) -> None:
        """The error names the endpoint and the next step. With no retry time it is raised immediately."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{taken.getsockname()[1]}"  # bound, not listening: connections are refused
            async with connect(endpoint, retry_seconds=0) as client:
                with pytest.raises(UnavailableError, match=rf"no broker answers at {endpoint}; start one"):
                    await client.producer().send(MESSAGE)

    async def test_a_send_waits_for_a_broker(self, caplog: pytest.LogCaptureFixture) -> None:
        """A send without a reachable broker retries, logs one warning, and succeeds once a broker starts."""
        async with scripted_broker() as gone:
            endpoint = gone.endpoint
        async with connect(endpoint) as client:
            sending = asyncio.create_task(client.producer().send(MESSAGE))
            while not caplog.records:  # noqa: ASYNC110  # a log has no event
                await asyncio.sleep(0.01)
            server = grpc.aio.server()
            v2.add_MessagingServiceServicer_to_server(new_scripted_broker(), server)
            server.add_insecure_port(endpoint)
            await server.start()
            try:
                await sending
            finally:
                await server.stop(None)
        (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert line.startswith(f"no broker answers at {endpoint}")
        assert line.endswith("retrying for up to 30 s")

    async def test_an_outage_of_all_endpoints_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        """However often the client changes to the next endpoint; after an answer, a change is logged again."""
        async with scripted_broker() as gone, scripted_broker() as also_gone:
            endpoints = [gone.endpoint, also_gone.endpoint]
        async with connect(endpoints, retry_seconds=2) as client:
            with pytest.raises(UnavailableError):
                await client.producer().send(MESSAGE)
            warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            assert len([line for line in warnings if "continuing with" in line]) == 1, warnings
            assert len(warnings) == 2, warnings
            caplog.clear()
            server = grpc.aio.server()
            v2.add_MessagingServiceServicer_to_server(new_scripted_broker(), server)
            server.add_insecure_port(endpoints[0])
            await server.start()
            await client.producer().send(MESSAGE)
            await server.stop(None)
            with pytest.raises(UnavailableError):
                await client.producer().send(MESSAGE)
        assert [record.levelname for record in caplog.records if "continuing with" in record.getMessage()] == [
            "WARNING"
        ]

    @pytest.mark.parametrize("joined", [True, False])
    async def test_another_endpoint_is_used(self, broker: ScriptedBroker, joined: bool) -> None:
        """With several endpoints, the client switches to one that answers and stays there."""
        async with scripted_broker() as gone:
            endpoints = [gone.endpoint, broker.endpoint]
        async with connect(";".join(endpoints) if joined else endpoints, retry_seconds=5) as client:
            producer = client.producer()
            await producer.send(MESSAGE)
            assert client.endpoint == broker.endpoint
            await producer.send(MESSAGE)
        assert len(broker.requests("SendMessage")) == 2
        assert broker.requests("Telemetry")[0].settings.access_point.addresses[0].port == int(
            endpoints[1].split(":")[1]
        )

    async def test_each_attempt_goes_to_the_next_endpoint(self, broker: ScriptedBroker) -> None:
        """No attempt is repeated at the endpoint that has just failed, and every endpoint is tried once a round."""
        async with scripted_broker() as second, scripted_broker() as third:
            for failing in (broker, second):
                failing.answers["SendMessage"] = [failure(grpc.StatusCode.UNAVAILABLE)] * 9
            async with connect(";".join((broker.endpoint, second.endpoint, third.endpoint))) as client:
                await client.producer().send(MESSAGE)
                assert client.endpoint == third.endpoint
            assert [len(each.requests("SendMessage")) for each in (broker, second, third)] == [1, 1, 1]

    @pytest.mark.parametrize(
        "endpoint", ["", ";", "127.0.0.1:1;", "localhost", "localhost:", "host:0", "host:65536", "::1:80", "http://h:1"]
    )
    async def test_invalid_endpoints(self, endpoint: str) -> None:
        """An invalid endpoint is refused before any request, and the error shows a valid example."""
        with pytest.raises(InvalidEndpointError, match=r"127\.0\.0\.1:8081"):
            connect(endpoint)

    @pytest.mark.parametrize(
        ("endpoint", "scheme", "host"),
        [
            ("127.0.0.1:8081", v2.AddressScheme.IPv4, "127.0.0.1"),
            ("[::1]:8081", v2.AddressScheme.IPv6, "::1"),
            ("broker.example:8081", v2.AddressScheme.DOMAIN_NAME, "broker.example"),
        ],
    )
    def test_kinds_of_endpoints(self, endpoint: str, scheme: v2.AddressScheme.ValueType, host: str) -> None:
        """The address scheme on the wire matches the host."""
        from aerobee_client.connections.endpoints import parse_endpoint

        parsed = parse_endpoint(endpoint)
        assert (parsed.scheme, parsed.addresses[0].host, parsed.addresses[0].port) == (scheme, host, 8081)

    async def test_refused_settings_fail_the_call(self, broker: ScriptedBroker, client: Client) -> None:
        """The server's refusal of the settings is raised to the caller; the next call sends them again."""
        status = v2.Status(code=v2.Code.ILLEGAL_CONSUMER_GROUP, message="no such name")
        broker.answers["Telemetry"] = [v2.TelemetryCommand(status=status)]
        producer = client.producer()
        with pytest.raises(BadRequestError, match="no such name"):
            await producer.send(MESSAGE)
        await producer.send(MESSAGE)

    async def test_settings_that_rocketmq_refuses(self, broker: ScriptedBroker, client: Client) -> None:
        """RocketMQ ends the stream with INVALID_ARGUMENT if the group does not exist. The client does not retry."""
        broker.answers["Telemetry"] = [failure(grpc.StatusCode.INVALID_ARGUMENT)]
        with pytest.raises(BadRequestError, match="as the test wants it"):
            await client.simple_consumer("g", "orders").receive()
        assert len(broker.requests("Telemetry")) == 1

    async def test_a_broken_telemetry_stream_is_opened_again(
        self, broker: ScriptedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After the stream ends, the client reopens it and sends the settings again."""
        monkeypatch.setattr("aerobee_client.connections.telemetry.REOPEN_SECONDS", 0.01)
        bad = v2.Status(code=v2.Code.INTERNAL_SERVER_ERROR)

        await client.producer().send(MESSAGE)
        settings = len(broker.requests("Telemetry"))
        broker.answers["Telemetry"] = [v2.TelemetryCommand(status=bad)] * 2  # the next two streams break as well
        broker.end_streams()
        async with asyncio.timeout(60):
            await broker.called("Telemetry", settings + 3)

    async def test_closing_notifies_the_server_once(self, broker: ScriptedBroker) -> None:
        """Closing a consumer notifies the server once, with its group. Closing twice is harmless."""
        client = connect(broker.endpoint)
        consumer = client.simple_consumer("billing", "orders")
        assert await consumer.receive(wait_seconds=0) == []
        await consumer.close()
        await client.close()
        assert [request.group.name for request in broker.requests("NotifyClientTermination")] == ["billing"]
        with pytest.raises(ClientError, match="closed"):
            await consumer.receive()


class TestSimpleConsumer:
    async def test_fields_of_a_receive_request(self, broker: ScriptedBroker, client: Client) -> None:
        """Group, topic, filter and durations reach the wire, and any queue of the broker is requested."""
        consumer = client.simple_consumer("billing", {"orders": "paid || refunded"})
        assert await consumer.receive(7, invisible_seconds=12.5, wait_seconds=0.25) == []
        request = broker.requests("ReceiveMessage")[0]
        assert (request.group.name, request.message_queue.topic.name) == ("billing", "orders")
        assert (request.message_queue.id, request.message_queue.broker.name) == (-1, "one")
        assert request.filter_expression == v2.FilterExpression(type=v2.FilterType.TAG, expression="paid || refunded")
        assert (request.batch_size, request.auto_renew) == (7, False)
        assert request.invisible_duration.ToMilliseconds() == 12_500
        assert request.long_polling_timeout.ToMilliseconds() == 250
        settings = broker.requests("Telemetry")[0].settings
        assert settings.client_type == v2.ClientType.SIMPLE_CONSUMER
        assert settings.subscription.group.name == "billing"
        assert settings.subscription.subscriptions[0].topic.name == "orders"

    async def test_a_delivery_with_all_its_fields(self, broker: ScriptedBroker, client: Client) -> None:
        """Every field on the wire is in the message; unset fields are None."""
        broker.answers["ReceiveMessage"] = [[RECEIVED_OK, delivered()]]
        message = await received(client.simple_consumer("billing", "orders"))
        assert (message.topic, message.body, message.message_id) == ("orders", b"hello", "ID")
        assert (message.tag, message.keys, message.properties) == ("paid", ("a", "b c"), {"x": "y"})
        assert (message.queue_id, message.queue_offset, message.delivery_attempt) == (3, 12, 2)
        assert message.store_timestamp == 1_700_000_000_123
        assert (message.message_group, message.delivery_timestamp) == (None, None)

    async def test_all_topics_are_asked_at_once(self, broker: ScriptedBroker, client: Client) -> None:
        """Each receive requests every subscribed topic with its own filter."""
        consumer = client.simple_consumer("billing", {"a": "*", "b": SqlFilter("x > 1")})
        assert await consumer.receive(wait_seconds=0) == []
        requests = {each.message_queue.topic.name: each for each in broker.requests("ReceiveMessage")}
        assert set(requests) == {"a", "b"}
        assert requests["b"].filter_expression == v2.FilterExpression(type=v2.FilterType.SQL, expression="x > 1")

    async def test_compressed_bodies_are_decompressed(self, broker: ScriptedBroker, client: Client) -> None:
        """A body that another client compressed is decompressed."""
        body = b"long " * 1000
        broker.answers["ReceiveMessage"] = [[RECEIVED_OK, delivered(gzip.compress(body), encoding=v2.Encoding.GZIP)]]
        assert (await received(client.simple_consumer("billing", "orders"))).body == body

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (b"no gzip at all", "cannot be decompressed"),
            (gzip.compress(b"hello")[:-9], "truncated"),
            (gzip.compress(bytes((64 << 20) + 1), 1), "grows beyond"),
        ],
        ids=["garbage", "truncated", "bomb"],
    )
    async def test_bodies_that_cannot_be_decompressed(
        self, broker: ScriptedBroker, client: Client, caplog: pytest.LogCaptureFixture, body: bytes, reason: str
    ) -> None:
        """The message is returned unchanged, marked as corrupted, and logged with the reason. Others are unaffected."""
        broken = delivered(body, "broken", v2.Encoding.GZIP)
        broker.answers["ReceiveMessage"] = [[RECEIVED_OK, delivered(), broken, delivered(b"next", "next")]]
        messages = await client.simple_consumer("billing", "orders").receive(wait_seconds=0)
        assert [(message.receipt_handle, message.corrupted) for message in messages] == [
            ("first", False),
            ("broken", True),
            ("next", False),
        ]
        assert [message.body for message in messages] == [b"hello", body, b"next"]
        (line,) = (record.getMessage() for record in caplog.records if "corrupted" in record.getMessage())
        assert "topic=orders id=ID" in line
        assert reason in line

    async def test_an_unknown_encoding(self, broker: ScriptedBroker, client: Client) -> None:
        """A body with an unknown encoding is marked as corrupted. A body without an encoding is returned unchanged."""
        broken = delivered(b"?", encoding=7)  # type: ignore[arg-type]
        plain = delivered(b"plain", encoding=v2.Encoding.ENCODING_UNSPECIFIED)
        broker.answers["ReceiveMessage"] = [[RECEIVED_OK, broken, plain]]
        messages = await client.simple_consumer("billing", "orders").receive(wait_seconds=0)
        assert [(message.body, message.corrupted) for message in messages] == [(b"?", True), (b"plain", False)]

    async def test_messages_before_a_break_are_kept(self, broker: ScriptedBroker, client: Client) -> None:
        """Messages received before the stream broke are returned; they are invisible to other consumers already."""
        broker.answers["ReceiveMessage"] = [[RECEIVED_OK, delivered(), failure(grpc.StatusCode.UNAVAILABLE)]]
        assert (await received(client.simple_consumer("billing", "orders"))).body == b"hello"

    async def test_a_receive_repeats_its_attempt_id_after_a_break_only(
        self, broker: ScriptedBroker, client: Client
    ) -> None:
        """The attempt id is repeated only after a broken stream, so that an ordered group returns the same messages."""
        consumer = client.simple_consumer("billing", "orders")
        broker.answers["ReceiveMessage"] = [[failure(grpc.StatusCode.UNAVAILABLE)]]
        await consumer.receive(wait_seconds=0)
        await consumer.receive(wait_seconds=0)
        first, second, third = (request.attempt_id for request in broker.requests("ReceiveMessage"))
        assert first == second != third

    async def test_a_refused_receive(self, broker: ScriptedBroker, client: Client) -> None:
        """The status of the stream is raised as an error."""
        status = v2.Status(code=v2.Code.ILLEGAL_FILTER_EXPRESSION, message="no such operator")
        broker.answers["ReceiveMessage"] = [[v2.ReceiveMessageResponse(status=status)]]
        with pytest.raises(BadRequestError, match="no such operator"):
            await client.simple_consumer("billing", "orders").receive(wait_seconds=0)

    async def test_a_busy_server_is_asked_again(self, broker: ScriptedBroker, client: Client) -> None:
        """The status "polling full" is retried and not reported to the caller."""
        status = v2.Status(code=v2.Code.TOO_MANY_REQUESTS, message="polling full")
        broker.answers["ReceiveMessage"] = [[v2.ReceiveMessageResponse(status=status)], [RECEIVED_OK, delivered()]]
        assert (await received(client.simple_consumer("billing", "orders"))).body == b"hello"

    async def test_a_topic_that_cannot_be_read(self, broker: ScriptedBroker, client: Client) -> None:
        """A topic without a readable queue is an error."""
        broker.answers["QueryRoute"] = [v2.QueryRouteResponse(status=OK)]
        with pytest.raises(ForbiddenError, match="no readable queue"):
            await client.simple_consumer("billing", "orders").receive()

    async def test_acknowledging_some_that_fail(self, broker: ScriptedBroker, client: Client) -> None:
        """A single failure is raised as its own error. For several messages, BatchError has each outcome."""
        broker.answers["ReceiveMessage"] = [[RECEIVED_OK, delivered()]]
        consumer = client.simple_consumer("billing", "orders")
        message = await received(consumer)
        bad = v2.AckMessageResultEntry(status=v2.Status(code=v2.Code.INVALID_RECEIPT_HANDLE, message="expired"))
        good = v2.AckMessageResultEntry(status=OK)
        broker.answers["AckMessage"] = [
            v2.AckMessageResponse(status=bad.status, entries=[bad]),
            v2.AckMessageResponse(status=v2.Status(code=v2.Code.MULTIPLE_RESULTS), entries=[good, bad]),
        ]
        with pytest.raises(BadRequestError, match="expired"):
            await consumer.ack(message)
        with pytest.raises(BatchError, match="1 of 2") as raised:
            await consumer.ack([message, message])
        assert [type(outcome) for outcome in raised.value.outcomes] == [type(None), BadRequestError]
        await consumer.ack([message])
        entry = broker.requests("AckMessage")[-1].entries[0]
        assert (entry.message_id, entry.receipt_handle) == ("ID", "first")

    async def test_acknowledgements_are_tried_again(self, broker: ScriptedBroker, client: Client) -> None:
        """A failed acknowledgement is retried; acknowledging is idempotent."""
        broker.answers["ReceiveMessage"] = [[RECEIVED_OK, delivered()]]
        consumer = client.simple_consumer("billing", "orders")
        message = await received(consumer)
        broker.answers["AckMessage"] = [failure(grpc.StatusCode.UNAVAILABLE)]
        await consumer.ack(message)
        assert len(broker.requests("AckMessage")) == 2

    async def test_a_changed_invisible_time_changes_the_handle(self, broker: ScriptedBroker, client: Client) -> None:
        """The returned message has the new receipt handle."""
        broker.answers["ReceiveMessage"] = [[RECEIVED_OK, delivered()]]
        consumer = client.simple_consumer("billing", "orders")
        changed = await consumer.change_invisible(await received(consumer), 0)
        assert changed.receipt_handle == "second"
        request = broker.requests("ChangeInvisibleDuration")[0]
        assert (request.receipt_handle, request.message_id) == ("first", "ID")
        assert request.HasField("invisible_duration")

    def test_a_consumer_needs_a_topic(self) -> None:
        """An empty subscription is refused at once."""

        async def subscribe_to_nothing() -> None:
            async with connect("127.0.0.1:1") as client:
                client.simple_consumer("billing", {})

        with pytest.raises(ValueError, match="at least one topic"):
            asyncio.run(subscribe_to_nothing())


def test_message_ids_are_unique_and_have_rocketmqs_form() -> None:
    """Ids have 17 bytes as upper-case hex digits, begin with version 1, and are unique."""
    ids = [new_message_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    for identifier in ids:
        assert len(identifier) == 34
        assert identifier.startswith("01")
        assert bytes.fromhex(identifier).hex().upper() == identifier
