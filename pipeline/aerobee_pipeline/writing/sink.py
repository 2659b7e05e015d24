"""The writing side of the Spark data source `aerobee`: sends rows as messages and waits for every acknowledgement.

A task returns only when the broker has stored all of its rows. Spark repeats tasks and micro-batches, so a message may
be stored more than once: each carries an id that is the same in every attempt, in its message id and in a property.
"""

from __future__ import annotations

import hashlib
import itertools
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from aerobee_pipeline.broker_channel import Address, Broker
from aerobee_pipeline.errors import OptionError, RowError
from aerobee_pipeline.options import SinkOptions
from aerobee_pipeline.worker_memory import prepare_worker
from aerobee_pipeline.writing.encode import chunks, message_ids, property_strings, row_ids, timer_strings
from aerobee_pipeline.writing.record_appender import RecordAppender
from aerobee_pipeline.writing.row_checks import check_rows, is_delayed, queue_ids
from aerobee_store.records.message_fields import TIMER_QUEUE_ID, TIMER_TOPIC
from aerobee_store.records.properties import jump_hash

_TYPES: Final = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "keys": ("string",),
    "tags": ("string",),
    "properties": ("map<string,string>",),
    "queueId": ("int", "bigint"),
    "messageGroup": ("string",),
    "deliverTimestamp": ("timestamp",),
}

_HELD_SIZE: Final = 32 << 20  # bytes of rows that a task keeps, checked, before it sends the first
_DELAYED_ROWS: Final = 1000  # delayed messages that go to the same queue, which their properties name


@dataclass
class Stored(WriterCommitMessage):
    """The result of a task. `refused`: why a row cannot be stored; nothing of its batch was sent."""

    partition: int
    rows: int
    refused: str | None = None


class _Sink:
    """The common part of the batch and stream writers."""

    def __init__(self, options: SinkOptions, job_id: str) -> None:
        self._options = options
        self._job_id = job_id

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, overwrite: bool) -> Any:
        """OptionError for columns that the sink does not have, and for `overwrite`: messages cannot be replaced."""
        options = SinkOptions.parse(given)
        if overwrite:
            raise OptionError(
                'mode overwrite: messages in a topic cannot be replaced; write .mode("append"), or outputMode("append")'
            )
        for field in schema.fields:
            types = _TYPES.get(field.name)
            if types is None:
                raise OptionError(
                    f"column {field.name!r}: unknown; the columns of the sink are {', '.join(_TYPES)}; drop the others"
                )
            if field.dataType.simpleString() not in types:
                found = field.dataType.simpleString()
                raise OptionError(f"column {field.name!r} is {found}, expected {' or '.join(types)}; cast it")
        names = schema.names
        if "body" not in names:
            raise OptionError("column 'body' is missing; add the bodies of the messages")
        if options.topic is None and "topic" not in names:
            raise OptionError("give the option topic, or a column of that name")
        return cls(options, options.job_id or uuid.uuid4().hex)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        """Send the rows of a task and return when all are stored. Runs in a worker.

        A row that no attempt could store is no error here, because Spark would repeat the task and store the other rows
        again; `commit` raises it.
        """
        prepare_worker()
        context = TaskContext.get()
        assert context is not None
        run = self._run_id(context)
        partition = context.partitionId()
        pace = Pace(self._options.rows_per_second)
        task = _Task(self._options, f"{run}:{partition}")
        try:
            for batch in checked_ahead(task.check, iterator, _HELD_SIZE):
                for part in pace.parts(batch):
                    task.take(part)
            task.finish()
        except RowError as error:
            task.finish()
            return Stored(partition, task.rows, str(error))
        finally:
            task.close()
        return Stored(partition, task.rows)

    def _run_id(self, context: TaskContext) -> str:
        return self._job_id

    def _commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All messages are stored, or a row was refused: RowError."""
        for message in messages:
            if isinstance(message, Stored) and message.refused is not None:
                raise RowError(f"task {message.partition}: {message.refused}")

    def _abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Stored messages remain; the next attempt stores them again with the same ids."""


class BatchSink(_Sink, DataSourceArrowWriter):
    """`frame.write.format("aerobee").mode("append").save()`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """`frame.writeStream.format("aerobee").start()`. Ids consist of query and micro-batch, so a repeated micro-batch
    has the same ids."""

    def _run_id(self, context: TaskContext) -> str:
        query = context.getLocalProperty("sql.streaming.queryId") or self._job_id
        return f"{query}:{context.getLocalProperty('streaming.sql.batchId')}"

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)


def checked_ahead(
    check: Callable[[pa.RecordBatch, int], None], batches: Iterable[pa.RecordBatch], held_size: int
) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a task once `check` has passed them and all that follow within `held_size` bytes.

    `check` gets a batch and the number of its first row in the task. So nothing of a task of at most this size is taken
    if one of its rows is refused.
    """
    held: deque[pa.RecordBatch] = deque()
    size = rows = 0
    for batch in batches:
        check(batch, rows)
        rows += batch.num_rows
        held.append(batch)
        size += batch.nbytes
        while size > held_size:
            size -= held[0].nbytes
            yield held.popleft()
    yield from held


class Pace:
    """Keeps a task below a rate: the rows of each second are sent together, and the next ones a second later."""

    def __init__(
        self,
        rows_per_second: int | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rows_per_second
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields the parts of a batch, each when it may be sent."""
        if self._rate is None:
            yield batch
            return
        for begin in range(0, batch.num_rows, self._rate):
            part = batch.slice(begin, self._rate)
            now = self._clock()
            if self._free_at > now:
                self._sleep(self._free_at - now)
            self._free_at = max(self._free_at, now) + part.num_rows / self._rate
            yield part


class _Task:
    """The rows of one task on their way to the broker."""

    def __init__(self, options: SinkOptions, task_id: str) -> None:
        self._options = options
        self._task_id = task_id
        self._prefix = int.from_bytes(hashlib.blake2b(task_id.encode(), digest_size=8).digest(), "big")
        self._broker = Broker(
            Address(
                options.endpoint,
                options.credentials_file,
                options.tls_ca,
                timeout_ms=options.send_timeout_ms,
                retries=options.retries,
            )
        )
        self._appender = RecordAppender(
            self._broker,
            in_flight_max=options.in_flight_max,
            retries=options.retries,
            retry_interval_ms=200,
        )
        self._queues: dict[str, list[int]] = {}
        self._rotations: dict[str, Iterator[int]] = {}
        self._body_size_max: int | None = None
        self.rows = 0

    def check(self, batch: pa.RecordBatch, first_row: int) -> None:
        """RowError for a row that no broker would store. `first_row`: the number of the batch's first row."""
        if batch.num_rows == 0:
            return
        if self._body_size_max is None:
            self._body_size_max = self._broker.body_size_max()
        check_rows(batch, self._body_size_max, first_row, has_topic=self._options.topic is not None)

    def take(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch that is checked; some may remain unanswered."""
        if batch.num_rows == 0:
            return
        bodies = batch.column("body").cast(pa.binary())
        ids = message_ids(self._prefix, self.rows, batch.num_rows)
        marks = row_ids(self._task_id, self.rows, batch.num_rows)
        delayed = is_delayed(batch)
        topics = self._topics(batch)
        texts = property_strings(batch, ids, (self._options.dedup_property, marks))
        size_max = self._options.batch_bytes
        for topic, queue, rows in self._groups(batch, topics, np.flatnonzero(~delayed)):
            queues = self._rotation(topic) if queue is None else itertools.repeat(queue)
            for number, chunk in chunks(topic, _taken(bodies, rows), _taken(texts, rows), queues, size_max):
                # Rows of a given queue or group keep their order even if the broker refuses a request at first.
                self._appender.append(topic, number, chunk, ordered=queue is not None)
        for topic, queue, rows in self._groups(batch, topics, np.flatnonzero(delayed)):
            for begin in range(0, len(rows), _DELAYED_ROWS):
                index = pa.array(rows[begin : begin + _DELAYED_ROWS])
                target = next(self._rotation(topic)) if queue is None else queue
                times = timer_strings(batch.column("deliverTimestamp").take(index), topic, target)
                strings = pc.binary_join_element_wise(texts.take(index), times, pa.scalar(b"", pa.binary()))
                timer_queue = itertools.repeat(TIMER_QUEUE_ID)
                for _, chunk in chunks(TIMER_TOPIC, bodies.take(index), strings, timer_queue, size_max):
                    self._appender.append(topic, target, chunk)
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Return when all rows are stored."""
        self._appender.finish()

    def close(self) -> None:
        self._appender.close()

    def _topics(self, batch: pa.RecordBatch) -> pa.DictionaryArray:
        if self._options.topic is not None:
            return pa.repeat(self._options.topic, batch.num_rows).dictionary_encode()
        return batch.column("topic").dictionary_encode()

    def _groups(
        self, batch: pa.RecordBatch, topics: pa.DictionaryArray, rows: np.ndarray[Any, np.dtype[np.int64]]
    ) -> Iterator[tuple[str, int | None, np.ndarray[Any, np.dtype[np.int64]]]]:
        """The rows by topic and queue, in their order; queue None: any."""
        codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)[rows]
        pins = np.full(len(rows), -1, np.int64)
        if "queueId" in batch.schema.names:
            pins = queue_ids(batch)[rows]
        if "messageGroup" in batch.schema.names:
            self._pin_groups(batch.column("messageGroup").take(pa.array(rows)), topics.dictionary, codes, pins)
        # One number for topic and queue: a sort of pairs would take more time than everything else here.
        numbers = codes * (int(pins.max(initial=-1)) + 2) + pins
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            first = int(chosen.argmax())
            pin = int(pins[first])
            yield topics.dictionary[int(codes[first])].as_py(), None if pin < 0 else pin, rows[chosen]

    def _pin_groups(
        self,
        groups: pa.Array,
        topics: pa.Array,
        topic_codes: np.ndarray[Any, np.dtype[np.int64]],
        pins: np.ndarray[Any, np.dtype[np.int64]],
    ) -> None:
        """Ordered messages go to the queue of their group: each group's queue is looked up once per batch."""
        ordered = groups.is_valid().to_numpy(zero_copy_only=False)
        if (pins[ordered] >= 0).any():
            raise RowError("queueId and messageGroup: the group determines the queue; leave one of them null")
        encoded = groups.dictionary_encode()
        group_codes = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)
        names = encoded.dictionary.to_pylist()
        for code in np.unique(topic_codes[ordered]).tolist():
            count = len(self._writable_queues(topics[code].as_py()))
            queue_of = np.array([jump_hash(name, count) for name in names], np.int64)
            of_topic = ordered & (topic_codes == code)
            pins[of_topic] = queue_of[group_codes[of_topic]]

    def _writable_queues(self, topic: str) -> list[int]:
        if topic not in self._queues:
            self._queues[topic] = self._broker.writable_queues(topic)
        return self._queues[topic]

    def _rotation(self, topic: str) -> Iterator[int]:
        """The queues of a topic in turn, beginning at a different queue for each task."""
        if topic not in self._rotations:
            ids = self._writable_queues(topic)
            first = self._prefix % len(ids)
            self._rotations[topic] = itertools.cycle(ids[first:] + ids[:first])
        return self._rotations[topic]


def _taken(values: pa.Array, rows: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
    """These rows of a column; the column itself, without a copy, if they are all."""
    return values if len(rows) == len(values) else values.take(pa.array(rows))
