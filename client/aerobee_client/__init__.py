"""A small asyncio client of RocketMQ 5's protocol, for Aerobee and for Apache RocketMQ.

    from aerobee_client import Message, connect

    async with connect("127.0.0.1:8081") as client:
        await client.producer().send(Message(topic="orders", body=b"hello"))
        consumer = client.simple_consumer("billing", "orders")
        for message in await consumer.receive():
            await consumer.ack(message)

`aerobee_client.blocking` is the same for programs without an event loop, `aerobee_client.testing` a real broker for
tests.
"""

from aerobee_client.admin import Admin
from aerobee_client.allocation import (
    Allocation,
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    NearMachineRoom,
    Queue,
)
from aerobee_client.client import Client, connect
from aerobee_client.connections.connection import Retry
from aerobee_client.errors import (
    BadRequestError,
    BatchError,
    ClientError,
    ConfigurationError,
    DeadlineError,
    ForbiddenError,
    InternalServerError,
    InvalidEndpointError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    UnavailableError,
    UnsupportedError,
)
from aerobee_client.filters import Filter, SqlFilter, Subscriptions
from aerobee_client.hooks import Hooks
from aerobee_client.messages.message import Message, ReceivedMessage, SendResult, StoredMessage, new_message_id
from aerobee_client.producer import Producer
from aerobee_client.pull_consumer import PullConsumer, Start
from aerobee_client.push_consumer import Handler, PushConsumer, RetryLater
from aerobee_client.security import Credentials, Tls
from aerobee_client.sending.request import QueueSelector
from aerobee_client.simple_consumer import SimpleConsumer
from aerobee_client.transaction import Resolution, Transaction, TransactionChecker

__all__ = [
    "Admin",
    "Allocation",
    "Averagely",
    "AveragelyByCircle",
    "BadRequestError",
    "BatchError",
    "ByConfig",
    "ByMachineRoom",
    "Client",
    "ClientError",
    "ConfigurationError",
    "ConsistentHash",
    "Credentials",
    "DeadlineError",
    "Filter",
    "ForbiddenError",
    "Handler",
    "Hooks",
    "InternalServerError",
    "InvalidEndpointError",
    "Message",
    "NearMachineRoom",
    "NotFoundError",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "Queue",
    "QueueSelector",
    "ReceivedMessage",
    "Resolution",
    "Retry",
    "RetryLater",
    "SendResult",
    "ServerError",
    "SimpleConsumer",
    "SqlFilter",
    "Start",
    "StoredMessage",
    "Subscriptions",
    "Tls",
    "TooManyRequestsError",
    "Transaction",
    "TransactionChecker",
    "UnavailableError",
    "UnsupportedError",
    "connect",
    "new_message_id",
]
