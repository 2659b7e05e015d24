"""A transport for kombu, and by it for Celery. Needs the extra `celery`.

    import aerobee_client.integrations.kombu    # registers the scheme
    app = Celery("billing", broker="aerobee://127.0.0.1:8081", backend="rpc://")

How AMQP's model is kept in topics and groups:

- A durable queue is a topic and a consumer group of its name; other characters than letters, digits, `_` and `-` become
  `_xHEX_`. With `x-max-priority` the topic has type PRIORITY, and `NAME-later` its delayed messages, without priority.
- A task with an ETA or a countdown is a delayed message: the broker keeps it, and no worker does.
- Until it is acknowledged, or rejected with requeue, the invisible time of a message is renewed. A reject without
  requeue acknowledges it, as AMQP discards it.
- An exchange of type fanout or topic, or one that is not durable, is a topic as well. A queue that is exclusive,
  deleted automatically or not durable is a list in memory, which its process fills from the topics of its exchanges.

A worker of Celery starts its processes by spawn, since gRPC does not survive a fork:
`app.conf.worker_pool_start_method = "spawn"`.

Transient queues serve replies (also of `rpc://`), remote control and events. What such a list does not take, beyond
`transient_count_max` messages, is dropped with a warning, the oldest first.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from concurrent.futures import Future, wait
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty
from typing import Any, Final

from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps
from kombu.utils.uuid import uuid

from aerobee_client import blocking
from aerobee_client.client import Client
from aerobee_client.connections.repeating import PAUSE_SECONDS
from aerobee_client.errors import ClientError, DeadlineError, ServerError, UnavailableError
from aerobee_client.integrations import transient
from aerobee_client.integrations.declaring import TASKS, declare_group, declare_topic, stored_name
from aerobee_client.integrations.holding import Held, Holder
from aerobee_client.integrations.transient import TransientQueues, decoded
from aerobee_client.messages.message import Message, StoredMessage
from aerobee_client.security import Credentials, Tls
from aerobee_proto import v2

_log = logging.getLogger(__name__)
SCHEME: Final = "aerobee"
_PORT: Final = 8081
_POLL_SECONDS: Final = 10.0
_GET_SECONDS: Final = 0.5  # how long a single look into a queue waits
_UNLIMITED_COUNT: Final = 32  # messages that a channel without a prefetch count holds
_LATER: Final = "-later"
_DELAY_SECONDS_MAX: Final = (
    40 * 86_400 - 3600.0
)  # below the broker's default of 40 days; a later ETA takes several steps
_KEEP_SECONDS: Final = 86_400.0  # a queue without connections, of which nothing was taken and that has no `x-expires`
_TRANSIENT: Final = 1  # AMQP's delivery mode of messages that need no disk


class QoS(virtual.QoS):
    """Acknowledges at the broker; the virtual one would only forget."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a delivery."""
        self.channel.finish(delivery_tag, acknowledge=True)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Return a delivery to its queue, or discard it."""
        self.channel.finish(delivery_tag, acknowledge=not requeue)
        super().ack(delivery_tag)

    def restore_unacked(self) -> list[tuple[BaseException, object]]:
        """Return all deliveries to their queues."""
        self._flush()
        for delivery_tag in list(self._delivered):
            self.channel.finish(delivery_tag, acknowledge=False)
        self._delivered.clear()
        return []


class _Feed:
    """Receives one durable queue for one channel: one message at a time, or as many as the channel may hold."""

    def __init__(self, channel: Channel, queue: str, client: Client) -> None:
        self._channel, self._queue = channel, queue
        name = channel.owner.stored(queue)
        topics = [name, f"{name}{_LATER}"] if channel.owner.has_priorities(queue) else [name]
        self.holder = Holder(client.simple_consumer(name, topics), channel.owner.invisible_seconds)
        self.room = asyncio.Event()  # set when a message was decided about
        self.waiting: deque[Held] = deque()
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Receive from now on, until `stop`."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"feed {self._queue}")

    async def fetch(self, count: int, wait_seconds: float) -> None:
        """Receive once. Errors are logged."""
        seconds = self.holder.invisible_seconds
        try:
            messages = await self.holder.consumer.receive(count, invisible_seconds=seconds, wait_seconds=wait_seconds)
        except ClientError as error:
            _log.warning("receive failed queue=%s error=%s", self._queue, error)
            await asyncio.sleep(PAUSE_SECONDS)
            return
        for message in messages:
            self.waiting.append(self.holder.hold(message))
            self._channel.owner.arrived()

    async def _run(self) -> None:
        while True:
            if (count := self._channel.room_count()) > 0:
                await self.fetch(count, _POLL_SECONDS)
            else:
                self.room.clear()
                await self.room.wait()

    async def stop(self) -> None:
        """Receive no more, until `begin`."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """Return what was not decided about."""
        await self.stop()
        await self.holder.close()


class Channel(virtual.Channel):
    """One channel of a connection: what it consumes and holds."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, connection: Transport, **options: Any) -> None:
        super().__init__(connection, **options)
        self.owner = connection
        self._no_ack: set[str] = set()
        self._feeds: dict[str, _Feed] = {}
        self._deliveries: dict[str, Held] = {}
        self._ends: set[Future[None]] = set()

    # --- Declaring ------------------------------------------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        """The arguments of a queue with what kombu's options mean, such as `max_priority`."""
        prepared: dict[str, Any] = to_rabbitmq_queue_arguments(arguments, **options)
        return prepared

    def _new_queue(self, queue: str, **options: Any) -> None:
        self.owner.declare_queue(queue, **options)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        if self.owner.is_transient(queue) and self.owner.is_shared(exchange):
            self.owner.read(exchange)

    def _delete(self, queue: str, *arguments: Any, **options: Any) -> None:
        self.owner.delete_queue(queue)

    # --- Sending --------------------------------------------------------------------------------------------------

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any) -> None:
        """Send to the queues that are bound to an exchange, or to the queue of this name."""
        transport = self.owner
        if exchange and transport.is_shared(exchange):
            self._inplace_augment_message(message, exchange, routing_key)
            transport.send_to_exchange(exchange, message)
            for queue in self.typeof(exchange).lookup(self.get_table(exchange), exchange, routing_key, None):
                if not transport.is_transient(queue):
                    self._put(queue, message)
        elif not exchange and transport.is_reply(routing_key, message):
            self._inplace_augment_message(message, exchange, routing_key)
            transport.send_to_exchange("", message)
        else:
            super().basic_publish(message, exchange, routing_key, **options)

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        self.owner.send(queue, message, self._get_message_priority(message))

    # --- Receiving ------------------------------------------------------------------------------------------------

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], None], consumer_tag: str, **options: Any
    ) -> None:
        """Begin to receive a queue."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        if no_ack:
            self._no_ack.add(queue)
        if self.owner.is_transient(queue):
            self.owner.transient.consume(queue)
        else:
            self.owner.aerobee.run(self._feed(queue).begin())

    def basic_cancel(self, consumer_tag: str) -> None:
        """End to receive a queue; deliveries that are not acknowledged stay with the channel."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues and queue in self._feeds:
            feed = self._feeds[queue]
            self.owner.aerobee.run(feed.stop())
            while feed.waiting:
                self._end(feed.waiting.popleft(), acknowledge=False)

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        """One message, or None if none arrives within half a second."""
        message = super().basic_get(queue, no_ack, **options)
        if message is None and not self.owner.is_transient(queue):
            self.owner.aerobee.run(self._feed(queue).fetch(1, _GET_SECONDS))
            message = super().basic_get(queue, no_ack, **options)
        if message is not None and no_ack:
            self.finish(message.delivery_tag, acknowledge=True)
        return message

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        if self.owner.is_transient(queue):
            return self.owner.take(queue)
        feed = self._feeds.get(queue)
        while feed is not None and feed.waiting:
            held = feed.waiting.popleft()
            message = decoded(held.message)
            if message is None:  # returned until it is a dead letter
                self._end(held, acknowledge=False)
                continue
            if (later := self.owner.is_later(message)) or _is_expired(message, held.message):
                if later:
                    self._put(queue, message)
                self._end(held, acknowledge=True)
                continue
            tag = message["properties"]["delivery_tag"] = uuid()
            if held.message.delivery_attempt > 1:
                message["properties"]["delivery_info"]["redelivered"] = True
            if queue in self._no_ack:
                self._end(held, acknowledge=True)
            else:
                self._deliveries[tag] = held
            return message
        raise Empty

    def finish(self, delivery_tag: str, *, acknowledge: bool) -> None:
        """Acknowledge or return a delivery; nothing for one of a transient queue. May be called in any thread."""
        found = self._deliveries.pop(delivery_tag, None)
        if found is not None:
            self._end(found, acknowledge=acknowledge)

    def room_count(self) -> int:
        """How many more messages the channel may hold."""
        held = sum(len(feed.holder) for feed in self._feeds.values())
        return (self.qos.prefetch_count or _UNLIMITED_COUNT) - held

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Limit the messages that the channel holds; 0: 32."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self._wake()

    # --- Looking --------------------------------------------------------------------------------------------------

    def _size(self, queue: str) -> int:
        return self.owner.queue_size(queue)

    def _purge(self, queue: str) -> int:
        return self.owner.purge(queue)

    def close(self) -> None:
        """Return what was not acknowledged, and wait for acknowledgements on their way."""
        if not self.closed:
            super().close()
            for feed in self._feeds.values():
                self.owner.quietly(feed.close())
            wait(list(self._ends))
            self._feeds.clear()

    def _feed(self, queue: str) -> _Feed:
        feed = self._feeds.get(queue)
        if feed is None:
            client = self.owner.aerobee

            async def make() -> _Feed:
                return _Feed(self, queue, client.asynchronous)

            self._feeds[queue] = feed = client.run(make())
        return feed

    def _end(self, held: Held, *, acknowledge: bool) -> None:
        end = self.owner.aerobee.start(self._ended(held, acknowledge=acknowledge))
        self._ends.add(end)
        end.add_done_callback(self._ends.discard)

    async def _ended(self, held: Held, *, acknowledge: bool) -> None:
        await (held.ack() if acknowledge else held.nack())
        for feed in self._feeds.values():
            feed.room.set()
        self.owner.arrived()  # a channel that was full may deliver again

    def _wake(self) -> None:
        async def wake() -> None:
            for feed in self._feeds.values():
                feed.room.set()

        if self._feeds:
            self.owner.aerobee.run(wake())


class Transport(virtual.Transport):
    """A connection: one client, in a thread of its own.

    The URL is `aerobee://[KEY:SECRET@]HOST:PORT[/NAMESPACE]`. With `ssl`, or Celery's `broker_use_ssl`, it uses TLS:
    true, or a dictionary with `ca_certs`, `certfile`, `keyfile`. Options of transport:

    - `invisible_seconds` (60): how long a message of a dead process waits for another one.
    - `queue_name_prefix`: before the name of every topic and group.
    - `retry_seconds` (30), `request_timeout_seconds` (3): as for `aerobee_client.connect`.
    - `transient_count_max` (10,000): messages that a transient queue holds.
    """

    Channel = Channel
    default_port = _PORT
    driver_type = SCHEME
    driver_name = "aerobee_client"
    can_parse_url = False
    connection_errors = (*virtual.Transport.connection_errors, UnavailableError, DeadlineError, OSError)
    channel_errors = (*virtual.Transport.channel_errors, ServerError)
    implements = virtual.Transport.implements.extend(exchange_type=frozenset(["direct", "topic", "fanout"]))

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        settings = client.transport_options
        self.invisible_seconds = float(settings.get("invisible_seconds", 60.0))
        self._prefix = str(settings.get("queue_name_prefix", ""))
        self._transient_count_max = int(settings.get("transient_count_max", 10_000))
        self._namespace = (client.virtual_host or "").strip("/")
        self._blocking: blocking.BlockingClient | None = None
        self._producer: blocking.BlockingProducer | None = None
        self._declared: set[str] = set()
        self._priorities: set[str] = set()
        self._transient: TransientQueues | None = None
        self._arrivals = 0
        self._changed = threading.Condition()

    def driver_version(self) -> str:
        """The version of Aerobee."""
        import importlib.metadata

        return importlib.metadata.version("aerobee")

    # --- The connection -------------------------------------------------------------------------------------------

    def establish_connection(self) -> Transport:
        """Connect. UnavailableError if no broker answers."""
        self._blocking = self._connect()
        self._transient = transient.join(self._broker, self)
        try:
            self._declare_topic(self.stored_exchange(""), (v2.MessageType.NORMAL,))
        except BaseException:
            self._disconnect()
            raise
        self._producer = self._blocking.producer()
        connection: Transport = super().establish_connection()
        return connection

    def _connect(self) -> blocking.BlockingClient:
        kombu = self.client
        options = kombu.transport_options
        return blocking.connect(
            self._endpoint,
            request_timeout_seconds=float(options.get("request_timeout_seconds", 3.0)),
            retry_seconds=float(options.get("retry_seconds", 30.0)),
            credentials=Credentials(kombu.userid, kombu.password or "") if kombu.userid else None,
            tls=_tls(kombu.ssl),
            namespace=self._namespace,
        )

    @property
    def _endpoint(self) -> str:
        return f"{self.client.hostname or '127.0.0.1'}:{self.client.port or _PORT}"

    @property
    def _broker(self) -> Hashable:
        return self._endpoint, self.client.userid, self.client.password, self._namespace, self._prefix

    def close_connection(self, connection: Transport) -> None:
        """Close the channels and disconnect."""
        super().close_connection(connection)
        self._disconnect()

    def _disconnect(self) -> None:
        self._declared.clear()
        self._transient = None
        transient.leave(self._broker, self)
        if self._blocking is not None:
            self._blocking.close()
            self._blocking = self._producer = None

    @property
    def aerobee(self) -> blocking.BlockingClient:
        """The client. ClientError if there is none."""
        if self._blocking is None:
            raise _closed()
        return self._blocking

    @property
    def transient(self) -> TransientQueues:
        """The transient queues of this process. ClientError if there is no connection."""
        if self._transient is None:
            raise _closed()
        return self._transient

    def quietly(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the end of something; an error is logged, since there is no other way to end it."""
        try:
            self.aerobee.run(work)
        except ClientError as error:
            _log.warning("not closed cleanly error=%s", error)

    # --- Waiting --------------------------------------------------------------------------------------------------

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Deliver one message of any channel. TimeoutError if there is none within `timeout` seconds; None: forever."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            seen = self._arrivals
            try:
                self.cycle.get(self._deliver, timeout=timeout)
            except Empty:
                if not self.wait(until, seen):
                    raise TimeoutError(f"no message within {timeout} s") from None
            else:
                return

    def arrivals(self) -> int:
        """A number that changes with each arrival, for `wait`."""
        return self._arrivals

    def arrived(self) -> None:
        """A message arrived, or there is room for one. May be called in any thread."""
        with self._changed:
            self._arrivals += 1
            self._changed.notify_all()

    def wait(self, until: float, seen: int) -> bool:
        """Wait for an arrival after `seen`; False if there was none until this monotonic time."""
        with self._changed:
            seconds = None if until == math.inf else max(0.0, until - time.monotonic())
            return self._changed.wait_for(lambda: self._arrivals != seen, seconds)

    # --- Names and declarations -----------------------------------------------------------------------------------

    def stored(self, queue: str) -> str:
        """The topic and group of a durable queue."""
        return stored_name(self._prefix + queue)

    def stored_exchange(self, exchange: str) -> str:
        """The topic of an exchange whose messages all connections may read."""
        return stored_name(f"{self._prefix}exchange:{exchange}")

    def is_transient(self, queue: str) -> bool:
        """Whether a queue lives in the memory of this process."""
        return self._transient is not None and queue in self._transient

    def has_priorities(self, queue: str) -> bool:
        """Whether a queue was declared with `x-max-priority`."""
        return queue in self._priorities

    def is_shared(self, exchange: str) -> bool:
        """Whether the messages of an exchange go through a topic that all connections may read."""
        found = self.state.exchanges.get(exchange)
        return found is not None and (found["type"] in ("fanout", "topic") or not found["durable"])

    def is_reply(self, queue: str, message: dict[str, Any]) -> bool:
        """Whether a message for the default exchange goes to a transient queue, perhaps of another process."""
        known = queue in self._declared or self.stored(queue) in self._declared
        return self.is_transient(queue) or (not known and message["properties"].get("delivery_mode") == _TRANSIENT)

    def declare_queue(
        self,
        queue: str,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """A topic and a group, or a list in memory."""
        if (arguments or {}).get("x-max-priority"):
            self._priorities.add(queue)
        if exclusive or auto_delete or not durable:
            expires = (arguments or {}).get("x-expires")  # milliseconds
            keep_seconds = None if exclusive else _KEEP_SECONDS if expires is None else expires / 1000
            self.transient.declare(queue, self, count_max=self._transient_count_max, keep_seconds=keep_seconds)
            self.read("")
            return
        name = self.stored(queue)
        if self.has_priorities(queue):
            self._declare_topic(name, (v2.MessageType.PRIORITY,))
            self._declare_topic(name + _LATER, TASKS)
        else:
            self._declare_topic(name, TASKS)
        self._declare_group(name)

    def delete_queue(self, queue: str) -> None:
        """Forget a queue; topic and group of a durable one are deleted."""
        if self.transient.delete(queue):
            return
        name = self.stored(queue)
        for topic in (name, f"{name}{_LATER}"):
            if topic in self._declared:
                self.aerobee.admin.delete_topic(self._qualified(topic))
        self._declared -= {name, f"{name}{_LATER}", f"group {name}"}

    def _declare_topic(self, name: str, types: Iterable[v2.MessageType.ValueType]) -> None:
        if name not in self._declared:
            self.aerobee.run(declare_topic(self.aerobee.asynchronous, name, types, namespace=self._namespace))
            self._declared.add(name)

    def _declare_group(self, name: str) -> None:
        if f"group {name}" not in self._declared:
            self.aerobee.run(declare_group(self.aerobee.asynchronous, name, namespace=self._namespace))
            self._declared.add(f"group {name}")

    def _qualified(self, name: str) -> str:
        return f"{self._namespace}%{name}" if self._namespace else name

    # --- Messages -------------------------------------------------------------------------------------------------

    def send(self, queue: str, message: dict[str, Any], priority: int) -> None:
        """Store a message for a durable queue; one with an ETA is delivered then."""
        self.declare_queue(queue)
        name, eta = self.stored(queue), _eta(message)
        body = dumps(message).encode()
        if eta is not None and eta > time.time():
            due = math.ceil(min(eta, time.time() + _DELAY_SECONDS_MAX) * 1000)
            topic = f"{name}{_LATER}" if queue in self._priorities else name
            self._store(Message(topic=topic, body=body, delivery_timestamp=due))
        elif queue in self._priorities:
            self._store(Message(topic=name, body=body, priority=priority))
        else:
            self._store(Message(topic=name, body=body))

    def send_to_exchange(self, exchange: str, message: dict[str, Any]) -> None:
        """Store a message for all transient queues that are bound to an exchange."""
        name = self.stored_exchange(exchange)
        self._declare_topic(name, (v2.MessageType.NORMAL,))
        self._store(Message(topic=name, body=dumps(message).encode()))

    def is_later(self, message: dict[str, Any]) -> bool:
        """Whether the broker could not keep a message long enough."""
        eta = _eta(message)
        return eta is not None and eta - time.time() > _DELAY_SECONDS_MAX / 2

    def _store(self, message: Message) -> None:
        if self._producer is None:
            raise _closed()
        self._producer.send(message)

    def read(self, exchange: str) -> None:
        """Read an exchange from now on."""
        name = self.stored_exchange(exchange)
        self._declare_topic(name, (v2.MessageType.NORMAL,))
        self._declare_group(name)
        self.transient.read(exchange, name, self._connect)

    def bound_queues(self, exchange: str, routing_key: str) -> set[str]:
        """The queues that this connection bound to an exchange with a matching key. May be called in any thread."""
        channel = next(iter([*self.channels, *self._avail_channels]), None)
        found = self.state.exchanges.get(exchange)
        if channel is None or found is None:
            return set()
        names = channel.exchange_types[found["type"]].lookup(list(found["table"]), exchange, routing_key, None)
        return set(names)

    def take(self, queue: str) -> dict[str, Any]:
        """The next message of a transient queue, by priority if it has priorities. Empty if there is none."""
        priority = _priority if self.has_priorities(queue) else None
        while (found := self.transient.take(queue, priority)) is not None:
            message, stored = found
            if not _is_expired(message, stored):
                return message
        raise Empty

    def queue_size(self, queue: str) -> int:
        """Messages that were not acknowledged; of a transient queue, not taken."""
        if self.is_transient(queue):
            return self.transient.size(queue)
        admin, name = self.aerobee.admin, self._qualified(self.stored(queue))
        read = {topic.topic: topic.lag for topic in admin.describe_group(name).topics}
        count = 0
        for topic in (name, f"{name}{_LATER}") if self.has_priorities(queue) else (name,):
            if topic in read:
                count += read[topic]
            else:  # nothing of it was received yet
                count += sum(each.max_offset - each.min_offset for each in admin.describe_topic(topic).queues)
        return count

    def purge(self, queue: str) -> int:
        """Skip all messages of a queue except delayed ones; returns how many."""
        if self.is_transient(queue):
            return self.transient.purge(queue)
        count = self.queue_size(queue)
        name = self._qualified(self.stored(queue))
        for topic in (name, f"{name}{_LATER}") if queue in self._priorities else (name,):
            self.aerobee.admin.reset_offsets(name, topic, latest=True)
        return count


def _closed() -> UnavailableError:
    return UnavailableError("this connection is closed; connect again")


def _eta(message: dict[str, Any]) -> float | None:
    """When a task of Celery is due, in Unix seconds."""
    eta = (message.get("headers") or {}).get("eta")
    if not isinstance(eta, str):
        return None
    try:
        moment = datetime.fromisoformat(eta)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _priority(message: dict[str, Any]) -> int:
    priority = message["properties"].get("priority")
    return priority if isinstance(priority, int) else 0


def _is_expired(message: dict[str, Any], stored: StoredMessage) -> bool:
    """Whether AMQP's `expiration`, in milliseconds, is over."""
    try:
        lifetime = int(message["properties"]["expiration"])
    except (KeyError, ValueError, TypeError):
        return False
    return time.time() * 1000 > (stored.delivery_timestamp or stored.store_timestamp) + lifetime


def _tls(ssl: object) -> Tls | None:
    """TLS as kombu describes it."""
    if not ssl:
        return None
    given = ssl if isinstance(ssl, dict) else {}
    paths = (given.get(name) for name in ("ca_certs", "certfile", "keyfile"))
    return Tls(*(None if path is None else Path(path) for path in paths))


TRANSPORT_ALIASES[SCHEME] = f"{__name__}:Transport"
