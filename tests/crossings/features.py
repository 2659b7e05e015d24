"""The features: what is done in each stage, and what is promised besides the promises of `tests/model/promises.py`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Final

from aerobee_client.admin import Admin
from aerobee_store.tools.backup import backup
from aerobee_store.tools.dump import dump
from tests.crossings.cell import Cell, Feature, Stage
from tests.model.calls import LITE_TOPICS
from tests.model.promises import Delivery, Kind, Promise, Sent

_DAY: Final = 86_400


class Send(Feature):
    """Single messages."""

    name = "send"

    def use(self, cell: Cell) -> None:
        for _ in range(3):
            cell.send()


class Batch(Feature):
    """Several messages in one call: a few, and as many as take the path for known layouts."""

    name = "batch"

    def use(self, cell: Cell) -> None:
        cell.send(3)
        cell.send(9)


class Bulk(Feature):
    """AppendRecords, by our own client."""

    name = "bulk"

    def use(self, cell: Cell) -> None:
        cell.calls.send_in_bulk(cell.messages(9))


class Remoting(Feature):
    """Messages by RocketMQ's older protocol."""

    name = "remoting"

    def use(self, cell: Cell) -> None:
        for sent in cell.messages(3):
            cell.calls.send_over_remoting(sent)


class Ordered(Feature):
    """Message groups, whose messages are delivered one after another."""

    name = "ordered"
    kind = Kind.FIFO
    is_ordered = True

    def use(self, cell: Cell) -> None:
        for _ in range(2):
            for message_group in ("g0", "g1"):
                cell.calls.send(cell.messages(message_group=message_group))
        cell.acknowledge(cell.receive(3, 60)[:1])


class Priority(Feature):
    """Messages with a priority."""

    name = "priority"
    kind = Kind.PRIORITY

    def use(self, cell: Cell) -> None:
        cell.send(2, priority=0)
        cell.send(1, priority=7)
        cell.acknowledge(cell.receive(2, 60)[:1])


class Lite(Feature):
    """Messages of lite topics."""

    name = "lite"
    kind = Kind.LITE

    def use(self, cell: Cell) -> None:
        for number in range(len(LITE_TOPICS)):
            cell.send(2, lite_topic=number)
        cell.acknowledge(cell.receive(2, 60)[:1])


class Delay(Feature):
    """Messages with a time: soon, within the state, and long after it."""

    name = "delay"
    kind = Kind.DELAY

    def use(self, cell: Cell) -> None:
        for seconds in (30, 120, 3 * _DAY):
            cell.calls.send(cell.messages(delay_seconds=seconds))
        cell.acknowledge(cell.receive(2, 60)[:1])


class Level(Feature):
    """Messages with one of RocketMQ's delay levels."""

    name = "delay-level"
    kind = Kind.DELAY
    seconds: ClassVar = {1: 1, 5: 60, 18: 7200}

    def use(self, cell: Cell) -> None:
        for level, seconds in self.seconds.items():
            for sent in cell.messages(delay_seconds=seconds):
                sent.level_ms = seconds * 1000
                cell.calls.send_over_remoting(sent, level=level)


class Recall(Feature):
    """Delayed messages that are called back, in the stage in which they were sent and in later ones."""

    name = "recall"
    kind = Kind.DELAY

    def use(self, cell: Cell) -> None:
        latest = cell.promises.latest_ms + 5000  # what the clock has passed once may have been delivered
        pending = cell.each_sent(lambda sent: sent.recalled is Promise.NO and sent.due_ms > latest)
        new = [sent for _ in range(3) for sent in cell.messages(delay_seconds=_DAY)]
        for sent in new:
            cell.calls.send([sent])
        for sent in (*pending[:1], *[sent for sent in new if sent.stored is Promise.YES][:1]):
            cell.calls.recall(sent)


class Transaction(Feature):
    """Half messages that are committed or rolled back, in the stage in which they were sent and in later ones."""

    name = "transaction"
    kind = Kind.TRANSACTION

    def use(self, cell: Cell) -> None:
        for _ in range(4):
            cell.send()
        undecided = cell.each_sent(lambda sent: Promise.NO is sent.committed is sent.rolled_back)
        for sent in undecided[:2]:
            cell.calls.decide(sent, commit=True)
        for sent in undecided[2:3]:
            cell.calls.decide(sent, commit=False)


class Acknowledge(Feature):
    """Messages that are in flight over all stages: a part is finished, the others come again."""

    name = "acknowledge"

    def use(self, cell: Cell) -> None:
        cell.acknowledge(cell.held[:2])
        cell.send(4)
        found = cell.receive(4, 3600)
        cell.acknowledge(found[:2])
        cell.held = found[2:]


class Renew(Feature):
    """Invisible times that are made longer."""

    name = "renew"

    def use(self, cell: Cell) -> None:
        cell.send(3)
        for delivery in cell.receive(2, 60):
            cell.renew(delivery, 7200)
        cell.receive(32, 60)  # those of earlier stages are still invisible


class GiveBack(Feature):
    """Messages that a consumer gives back are delivered again, as the next attempt."""

    name = "give-back"

    def use(self, cell: Cell) -> None:
        cell.send(2)
        for delivery in cell.receive(2, 3600):
            cell.renew(delivery, 0)
        cell.acknowledge(cell.receive(1, 3600))


class DeadLetter(Feature):
    """Messages that were not finished in two attempts."""

    name = "dead-letter"
    max_attempts = 2

    def use(self, cell: Cell) -> None:
        cell.send(2)
        cell.receive(3, 10)

    def settle(self, cell: Cell) -> None:
        """Each of them is finished, or a dead letter that can be read."""
        with cell.calls.client() as client:

            async def ids() -> set[str]:
                letters = client.asynchronous.admin.dead_letters(cell.group)
                return {letter.origin_message_id async for letter in letters}

            cell.promises.finished(cell.group, client.run(ids()), Promise.PERHAPS)


class DeletedLetters(Feature):
    """Dead letters that an operator deletes, one by one: they are not seen again."""

    name = "dead-letter-deleted"

    def use(self, cell: Cell) -> None:
        sent = cell.send(3)
        cell.bury(cell.receive(3, 3600))
        cell.promises.finished(cell.group, [each.message_id for each in sent], Promise.PERHAPS)
        letters = self._letters(cell)
        for message_id, offset in list(letters.items())[:1]:
            done = cell.calls.administer(partial(_delete_letter, cell.group, offset))
            cell.told[message_id] = done

    def judge(self, cell: Cell) -> None:
        letters = self._letters(cell)
        for message_id, deleted in cell.told.items():
            if deleted is not None and message_id in letters:
                cell.problems.append(f"the deleted dead letter {message_id} is seen again")
        if not cell.told or not letters:
            cell.problems.append("there was no dead letter")

    def _letters(self, cell: Cell) -> dict[str, int]:
        """The offsets of the dead letters, by message."""

        async def letters(admin: Admin) -> dict[str, int]:
            return {letter.origin_message_id: letter.offset async for letter in admin.dead_letters(cell.group)}

        return cell.calls.administer(letters) or {}


async def _delete_letter(group: str, offset: int, admin: Admin) -> int:
    return await admin.delete_dead_letters(group, [offset])


class Purge(Feature):
    """Topics that are emptied: what was purged never comes again, and what is sent afterwards comes."""

    name = "purge"

    def use(self, cell: Cell) -> None:
        cell.send(3)
        cell.acknowledge(cell.receive(1, 3600))
        cell.receive(1, 60)
        done = cell.calls.administer(lambda admin: admin.purge_topic(cell.topic))
        if done is not None:
            cell.told.update(dict.fromkeys((sent.message_id for sent in cell.promises.stored()), 0))
        cell.promises.purged(cell.topic, Promise.PERHAPS if done is None else Promise.YES)
        cell.send(2)

    def judge(self, cell: Cell) -> None:
        """A reader by offset does not find them either."""
        found = cell.calls.read_records(cell.topic) or set()
        cell.problems += [f"the purged message {each} can be read" for each in found & cell.told.keys()]
        if not found:
            cell.problems.append("no message can be read")


class Reset(Feature):
    """A group that goes back to the first message."""

    name = "reset"

    def use(self, cell: Cell) -> None:
        cell.send(3)
        cell.acknowledge(cell.receive(4, 3600))
        cell.promises.reset(cell.group, Promise.PERHAPS)
        done = cell.calls.administer(lambda admin: admin.reset_offsets(cell.group, cell.topic, earliest=True))
        if done is not None:
            cell.promises.reset(cell.group, Promise.YES)


class Pop(Feature):
    """Messages received and acknowledged by POP of RocketMQ's older protocol."""

    name = "pop"
    answers = frozenset(("NO_MESSAGE",))  # an acknowledgement after the invisible time

    def use(self, cell: Cell) -> None:
        cell.acknowledge(cell.held[:1])
        cell.send(3)
        found = cell.receive(3, 60)
        cell.acknowledge(found[:1])
        cell.held = found[1:]

    def receive(self, cell: Cell, count: int, hidden_seconds: int) -> list[Delivery]:
        return cell.calls.pop(cell.group, cell.topic, count=count, hidden_seconds=hidden_seconds)

    def acknowledge(self, cell: Cell, deliveries: Sequence[Delivery]) -> None:
        cell.calls.acknowledge_popped(cell.group, cell.topic, deliveries)


class Pull(Feature):
    """A reader that pulls each queue from its beginning; it misses nothing that was answered."""

    name = "pull"

    def use(self, cell: Cell) -> None:
        cell.send(3)
        wanted = {sent.message_id for sent in cell.promises.stored()}
        found = set().union(*(cell.calls.pull(cell.group, cell.topic, queue_id) for queue_id in range(2)))
        if cell.stage is Stage.AFTER and not wanted <= found:
            cell.problems.append(f"pulls did not find {sorted(wanted - found)}")


class Offsets(Feature):
    """Offsets that a group which only pulls commits, forwards and back: an answered commit holds."""

    name = "offsets"
    answers = frozenset(("OFFSET_NOT_FOUND",))
    _group = "pullers"

    def use(self, cell: Cell) -> None:
        if cell.stage is Stage.BEFORE:
            cell.calls.administer(lambda admin: admin.create_group(self._group))
        cell.send(4)
        self.settle(cell)
        for queue_id in range(2):
            end = cell.calls.queue_end(cell.topic, queue_id)
            if end is not None:
                part = 1 if cell.stage in (Stage.INSIDE, Stage.AFTER) else 2
                cell.calls.commit(self._group, cell.topic, queue_id, end // part)

    def settle(self, cell: Cell) -> None:
        for queue_id in range(2):
            cell.calls.look_at_offset(self._group, cell.topic, queue_id)


class Backup(Feature):
    """Copies of the store that an operator makes, whether a broker uses it or not: each has all that was answered."""

    name = "backup"
    cannot: ClassVar = {"table-unsaved": "A file is where the directory of the tables was, which no backup can have."}

    def use(self, cell: Cell) -> None:
        cell.send(3)
        wanted = {sent.message_id for sent in cell.promises.stored()}
        target = cell.world.directory / "backup"
        backup(cell.broker.store, target)
        found = {_id_of(record["properties"]) for record in dump(target, topic=cell.topic)}
        shutil.rmtree(target)
        if not wanted <= found:
            cell.problems.append(f"{cell.stage.value}: the backup lacks {sorted(wanted - found)}")


def _id_of(properties: object) -> object:
    assert isinstance(properties, dict)
    return properties["UNIQ_KEY"]


class ReadRecords(Feature):
    """Spark's way to read: the range of each queue, and then its records, without a gap."""

    name = "read-records"

    def use(self, cell: Cell) -> None:
        cell.send(9)
        wanted = {sent.message_id for sent in cell.promises.stored()}
        found = cell.calls.read_records(cell.topic)
        if found is not None and not wanted <= found:
            cell.problems.append(f"{cell.stage.value}: ReadRecords did not find {sorted(wanted - found)}")


class Query(Feature):
    """Messages that are found by their id."""

    name = "query"

    def use(self, cell: Cell) -> None:
        wanted = cell.promises.stored()[-3:]
        cell.send(2)
        for sent in wanted:
            found = cell.calls.administer(partial(_count, sent))
            if found not in (None, 1):
                cell.problems.append(f"{cell.stage.value}: a query found {found} messages {sent.message_id}")


async def _count(sent: Sent, admin: Admin) -> int:
    return len([message async for message in admin.query(sent.topic, message_id=sent.message_id)])


class Topics(Feature):
    """Topics that an operator makes and changes: an answered change holds."""

    name = "topics"

    def use(self, cell: Cell) -> None:
        name = f"made-{cell.stage.value}"
        made = cell.calls.administer(lambda admin: admin.create_topic(name, queue_count=3))
        cell.told[name] = None if made is None else 3
        if cell.told.get("made-before") is not None:
            count = 4 + list(Stage).index(cell.stage)
            changed = cell.calls.administer(lambda admin: admin.update_topic("made-before", queue_count=count))
            cell.told["made-before"] = -1 if changed is None else count

    def judge(self, cell: Cell) -> None:
        found = cell.calls.administer(lambda admin: admin.list_topics()) or []
        counts = {topic.name: topic.read_queue_count for topic in found}
        for name, count in cell.told.items():
            if count is not None and (name not in counts or count not in (-1, counts[name])):
                cell.problems.append(f"topic {name} has {counts.get(name)} queues, not {count}")


class Groups(Feature):
    """Groups that an operator makes and changes: an answered change holds."""

    name = "groups"

    def use(self, cell: Cell) -> None:
        name = f"made-{cell.stage.value}"
        made = cell.calls.administer(lambda admin: admin.create_group(name, max_attempts=3))
        cell.told[name] = None if made is None else 3
        if cell.told.get("made-before") is not None:
            count = 4 + list(Stage).index(cell.stage)
            changed = cell.calls.administer(lambda admin: admin.update_group("made-before", max_attempts=count))
            cell.told["made-before"] = -1 if changed is None else count

    def judge(self, cell: Cell) -> None:
        found = cell.calls.administer(lambda admin: admin.list_groups()) or []
        counts = {group.name: group.max_attempts for group in found}
        for name, count in cell.told.items():
            if count is not None and (name not in counts or count not in (-1, counts[name])):
                cell.problems.append(f"group {name} has {counts.get(name)} attempts, not {count}")


FEATURES: Final[tuple[Feature, ...]] = (
    Send(),
    Batch(),
    Bulk(),
    Remoting(),
    Ordered(),
    Priority(),
    Lite(),
    Delay(),
    Level(),
    Recall(),
    Transaction(),
    Acknowledge(),
    Renew(),
    GiveBack(),
    DeadLetter(),
    DeletedLetters(),
    Purge(),
    Reset(),
    Pop(),
    Pull(),
    Offsets(),
    ReadRecords(),
    Query(),
    Topics(),
    Groups(),
    Backup(),
)
