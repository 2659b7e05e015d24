"""What a replica asks its master about its log, over the remoting protocol, and how it compares that log with its own.

All of it can be asked of RocketMQ's brokers, too; only those of controller mode have epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from aerobee_broker.errors import BrokerError
from aerobee_broker.remoting.shown_records import AS_STORED
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.replication.epochs import common_end
from aerobee_broker.replication.follower import DivergedError
from aerobee_broker.replication.frames import Epoch
from aerobee_broker.tables.json_fields import INT64_MAX, JsonFields, checked_integer
from aerobee_store import CorruptRecordError, MessageStore, RecordNotFoundError
from aerobee_store.records import record
from aerobee_store.records.decimals import decimal
from aerobee_store.tables import java_json
from aerobee_store.tables.java_json import JsonFormatError, ObjectMap

ANSWER_SECONDS: Final = 5.0

_NO_EPOCHS: Final = (Answer.SYSTEM_ERROR, Answer.REQUEST_CODE_NOT_SUPPORTED)
"""Answers of RocketMQ's brokers that are not in controller mode, of release 5 and of release 4."""

QueueEnds = dict[str, dict[int, int]]
"""Topic -> queue id -> the offset after the last message."""


class Extent(NamedTuple):
    """Where the log of a master begins and ends, physical offsets."""

    begin: int
    end: int


class MasterEpochs(NamedTuple):
    """The epochs of a master, and the end of its log."""

    epochs: tuple[Epoch, ...]
    end: int


async def epochs_of(master: Connection) -> MasterEpochs | None:
    """None: the master has no epochs, so it speaks the plain protocol. Raises BrokerError, TimeoutError and OSError."""
    code = Request.GET_BROKER_EPOCH_CACHE
    answered = await master.ask(Command(code), ANSWER_SECONDS)
    if answered.code in _NO_EPOCHS:
        return None
    if answered.code != Answer.SUCCESS:  # it may be one that starts, or is busy
        hint = "; compare peers.secret_key_file" if answered.code == Answer.NO_PERMISSION else ""
        raise BrokerError(f"the master refused to tell its epochs (code {answered.code}): {answered.remark}{hint}")
    fields = JsonFields("epochs of the master", content_of(answered, code))
    epochs = tuple(
        Epoch(
            checked_integer("epoch", item.get("epoch"), 0, INT64_MAX),
            checked_integer("startOffset", item.get("startOffset"), 0, INT64_MAX),
        )
        for item in fields.objects("epochList")
    )
    return MasterEpochs(epochs, fields.integer("maxOffset", 0, maximum=INT64_MAX))


async def extent_of(master: Connection) -> Extent | None:
    """None: the master does not say. Raises BrokerError, TimeoutError and OSError."""
    code = Request.GET_BROKER_RUNTIME_INFO
    answered = await master.ask(Command(code), ANSWER_SECONDS)
    table = content_of(answered, code).get("table") if answered.code == Answer.SUCCESS else None
    if not isinstance(table, dict):
        return None
    begin, end = (decimal(str(table.get(name))) for name in ("commitLogMinOffset", "commitLogMaxOffset"))
    return None if begin is None or end is None else Extent(begin, end)


async def queue_ends(master: Connection, topics: Iterable[str]) -> QueueEnds:
    """The ends of the queues of these topics, without topics that the master does not have.

    Raises BrokerError, TimeoutError and OSError.
    """
    found: QueueEnds = {}
    code = Request.GET_TOPIC_STATS_INFO
    for topic in topics:
        answered = await master.ask(Command(code, fields={"topic": topic}), ANSWER_SECONDS)
        if answered.code != Answer.SUCCESS:
            continue
        table = content_of(answered, code).get("offsetTable")
        for queue, offsets in table.pairs() if isinstance(table, ObjectMap) else ():
            name = f"offsets of {topic}"
            queue_id = JsonFields(name, queue).integer("queueId", 0)
            end = JsonFields(name, offsets).integer("maxOffset", 0, maximum=INT64_MAX)
            found.setdefault(topic, {})[queue_id] = end
    return found


def content_of(answered: Command, code: Request) -> dict[str, object]:
    """The JSON object in the body of an answer. Raises BrokerError."""
    try:
        content = java_json.loads(answered.body, object_keys=True) if answered.body else {}
    except JsonFormatError as error:
        raise BrokerError(f"the master answered request {code:d} with a body that is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise BrokerError(f"the master answered request {code:d} with a body that is not a JSON object")
    return content


# --- Comparing ---------------------------------------------------------------------------------------------------


def compare_epochs(store: MessageStore, epochs: Sequence[Epoch], master: MasterEpochs | None) -> None:
    """Raise DivergedError if the epochs show that the logs differ."""
    if master is None or not master.epochs or master.epochs[-1].number < (epochs[-1].number if epochs else 0):
        return
    end = store.positions[0]
    common = common_end(epochs, end, master.epochs, max(master.end, end))
    if common is not None and common < end:
        raise DivergedError(common, end, master.epochs[-1].number)


async def compare_last_record(store: MessageStore, master: Connection) -> None:
    """Raise DivergedError if the master has another record at the offset of the last record here."""
    last = _last_record(store)
    if last is None:
        return
    answered = await _stored_at(master, last.physical_offset, topic=last.topic)
    if answered.code != Answer.SUCCESS or answered.body != store.record_bytes(last):
        raise DivergedError(last.physical_offset, store.positions[0])


async def _stored_at(master: Connection, physical_offset: int, **fields: str) -> Command:
    """The answer with the record at an offset, byte for byte; RocketMQ's brokers hide no properties from anybody."""
    fields = {"offset": str(physical_offset), AS_STORED: "true"} | fields
    return await master.ask(Command(Request.VIEW_MESSAGE_BY_ID, fields=fields), ANSWER_SECONDS)


def _last_record(store: MessageStore) -> record.Record | None:
    """The last record of the log, found through the queues; None if the log is empty."""
    best = -1
    for topic, queue_ids in store.queues().items():
        for queue_id in queue_ids:
            low, high = store.queue_range(topic, queue_id)
            if high > low and (place := store.physical_offset_at(topic, queue_id, high - 1)) is not None:
                best = max(best, place)
    try:
        return None if best < 0 else store.record_at(best)
    except (RecordNotFoundError, CorruptRecordError):
        return None


async def begin(store: MessageStore, master: Connection, begin: int) -> None:
    """Begin an empty log where the master's begins. A RocketMQ master that receives 0 would skip all but its newest
    segment, so the replica never sends 0."""
    if begin > 0:
        store.follower.begin_at(begin)
        return
    first = await _stored_at(master, 0)
    if first.code == Answer.SUCCESS and first.body:
        end = store.follower.receive(0, first.body)
        await store.wait_stored(end, durable=True)


def check_origin(
    store: MessageStore, epochs: Sequence[Epoch], master: MasterEpochs | None, ends: QueueEnds, *, was_replica: bool
) -> None:
    """Raise BrokerError unless this log is an older copy of the master's, as far as that can be known.

    The master has removed the records that could be compared. With epochs, both must have the last one of this log, and
    it must end no earlier there; without, the store must have been a replica's before. A queue must not end later here
    than there.
    """
    end = store.positions[0]
    advice = "move the store away, so that the replica starts with an empty one and copies the master's whole log"
    if store.config.read_only_commit_log_paths:
        raise BrokerError(
            f"this log ends at {end}, before the master's begins, and a new copy cannot replace segments in "
            f"store.read_only_commit_log_paths; {advice}"
        )
    if master is not None and epochs:
        if not master.epochs or master.epochs[-1].number < epochs[-1].number:
            raise BrokerError(f"the master has no epoch {epochs[-1].number}, so another master has taken over")
        common = common_end(epochs, end, master.epochs, max(master.end, end))
        if common is None:
            raise BrokerError(f"this log and the master's have no epoch in common; {advice}")
        if common < end:
            raise DivergedError(common, end, master.epochs[-1].number)
    elif epochs or not was_replica:
        raise BrokerError(f"this log ends at {end}, before the master's begins, and cannot be compared; {advice}")
    for topic, offsets in ends.items():
        for queue_id, offset in offsets.items():
            if store.queue_range(topic, queue_id)[1] > offset:
                raise BrokerError(
                    f"queue {queue_id} of topic {topic} ends at {store.queue_range(topic, queue_id)[1]} here and at "
                    f"{offset} at the master, so this log is no older copy of the master's; {advice}"
                )
