"""The use of the delivery journal: appends events, writes snapshots that limit a replay, and replays it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from aerobee_broker.config import Settings
from aerobee_broker.delivery.journal.event_log import (
    JOURNAL_GROUP,
    JOURNAL_QUEUE_ID,
    JOURNAL_TOPIC,
    VERSION,
    EventKind,
    Journal,
    JournalEntry,
    Removed,
    encode_reset,
    encode_state,
    highest_offset,
)
from aerobee_broker.delivery.state.events import Delivered, Reset, State, StateEntry, new_nonce
from aerobee_broker.delivery.state.queue_key import QueueKey
from aerobee_broker.delivery.state.stats import DeliveryStats
from aerobee_broker.delivery.state.subscriptions import DeliveryTables, Queue, Subscriptions
from aerobee_broker.limits.loop_share import Turns
from aerobee_store import MessageStore, SyncTimeoutError
from aerobee_store.clock import Clock
from aerobee_store.errors import StoreRefusalError

_log = logging.getLogger(__name__)
_UNSTORED_BYTES_MAX: Final = 1 << 20  # of a snapshot: more would delay other messages that wait for the disk


class History:
    """Makes the state of all queues durable. Event loop only, except for `replay`."""

    def __init__(
        self,
        store: MessageStore,
        tables: DeliveryTables,
        clock: Clock,
        settings: Settings,
        subscriptions: Subscriptions,
        stats: DeliveryStats,
    ) -> None:
        self._store = store
        self._tables = tables
        self._clock = clock
        self._settings = settings
        self._subscriptions = subscriptions
        self._stats = stats
        self._journal = Journal(store, store.config.body_size_max)
        self._snapshot_wake = asyncio.Event()
        self._snapshotting = asyncio.Lock()
        self._events_at_snapshot = 0

    # Events

    def append(self, kind: EventKind, events: Sequence[bytes], now_ms: int, *, version: int = VERSION) -> None:
        """Append events of one kind, in the step that changes the state. Raises StoreError."""
        self._journal.append(kind, events, now_ms, version=version)
        count_max = self._settings.current.delivery.snapshot_event_count
        if self._journal.event_count - self._events_at_snapshot >= count_max and not self._snapshotting.locked():
            self._snapshot_wake.set()

    def begin(self, keys: Iterable[QueueKey], *, is_limited: bool = True) -> bool:
        """Give groups a position in these queues where they have none; False if they have all. TableSpaceError,
        StoreError.

        A new position is written to the journal, so that after a crash a group that begins at the end does not begin at
        a later end. Not `is_limited`: also without space for them.
        """
        created = [
            self._subscriptions.create_queue(key)
            for key in keys
            if self._subscriptions.queue(key.topic, key.group, key.queue_id) is None
        ]
        if not created:
            return False
        new = [queue for queue in created if not self._subscriptions.has_committed(queue)]
        if is_limited:
            self._subscriptions.require_space(new)
        states = [encode_state(queue.encoded_key, state) for queue in new for state in queue.delivery.states()]
        if states:
            self.append(EventKind.STATE, states, self._clock.now_ms())
        for queue in created:
            self._subscriptions.add(queue)
            self._subscriptions.note_commit(queue, force=True)
        return True

    def reset(self, resets: Sequence[tuple[Queue, int]]) -> None:
        """Let each group continue at an offset within its queue. Raises StoreError, and nothing has changed then."""
        resets = [
            (queue, offset)
            for queue, offset in resets
            if not (queue.delivery.is_trivial and queue.delivery.commit_offset == offset)
        ]
        if not resets:
            return
        events = [encode_reset(queue.encoded_key, Reset(offset)) for queue, offset in resets]
        self.append(EventKind.RESET, events, self._clock.now_ms())
        for queue, offset in resets:
            if offset < queue.delivery.commit_offset or queue.reset_at is not None:
                queue.reset_at = self._journal.next_queue_offset - 1
                self._snapshot_wake.set()
            queue.delivery.reset(offset)
            self._subscriptions.note_commit(queue, force=True)

    def adopt(self, queue: Queue, times: Mapping[int, int], now_ms: int) -> None:
        """Make these finished offsets below the cursor unfinished: delivered once, and invisible until these times."""
        entries = {
            offset: StateEntry(offset, 1, new_nonce() if until_ms > now_ms else 0, until_ms, None)
            for offset, until_ms in times.items()
        }
        cursor = queue.delivery.cursor
        entries |= {entry.offset: entry for state in queue.delivery.states() for entry in state.entries}
        low = min(entries)
        self.reset([(queue, low)])
        size_max = self._journal.state_entry_count_max
        offsets = sorted(entries)
        for first in range(0, len(offsets), size_max):
            some = offsets[first : first + size_max]
            begin = some[0] if first else low
            end = offsets[first + size_max] if first + size_max < len(offsets) else cursor
            state = State(low, begin, end, tuple(entries[offset] for offset in some))
            self.append(EventKind.STATE, [encode_state(queue.encoded_key, state)], now_ms)
            queue.delivery.apply(state)

    async def wait_logged(self) -> None:
        """Return when all events so far are in the log, where they survive a crash of the process."""
        await self._store.wait_stored(self._journal.end, durable=False)

    async def wait_stored(self, *, replicas: bool = True) -> None:
        """Return when all events so far are as safe as a sent message; `replicas`: at the replicas, too."""
        await self._store.wait_stored(self._journal.end, replicas=replicas)

    # Snapshots

    @property
    def is_new_since_snapshot(self) -> bool:
        """Whether a replay from the latest snapshot would have work to do."""
        return self._journal.event_count != self._events_at_snapshot

    async def snapshot(self) -> None:
        """Write the whole state to the journal; once it is durable, a replay begins there.

        Other tasks run between the steps, and their events lie between the states of the snapshot. A state is appended
        in the step that reads it, so a replay applies both in the order in which they came about.
        """
        async with self._snapshotting:
            position, count_before = self._journal.next_queue_offset, self._journal.event_count
            count, stored, turns = 0, self._journal.end, Turns()
            events: list[bytes] = []
            for event in self._whole_state():
                events.append(event)
                if turns.is_over:
                    count += self._append_states(events)
                    if self._journal.end - stored > _UNSTORED_BYTES_MAX:
                        await self.wait_stored(replicas=False)
                        stored = self._journal.end
                    await turns.next()
            count += self._append_states(events)
            self._events_at_snapshot = count_before + count
            self._stats.snapshots += 1
            await self._store.wait_stored(self._journal.end, durable=True)
            self._tables.offsets.commit(JOURNAL_TOPIC, JOURNAL_GROUP, JOURNAL_QUEUE_ID, position)
            self._subscriptions.release_resets(position)  # in the same step: one save contains both

    def _whole_state(self) -> Iterator[bytes]:
        """The states of all queues as events. Append each before the next step of the event loop."""
        for queue in list(self._subscriptions):
            if not queue.delivery.is_trivial:
                yield from self._states(queue)
            if not queue.dropped:
                self._subscriptions.note_commit(queue)

    def _states(self, queue: Queue) -> Iterator[bytes]:
        for state in queue.delivery.states(self._journal.state_entry_count_max):
            if queue.dropped:
                return  # after its removal in the journal, a state would restore it
            yield encode_state(queue.encoded_key, state)

    def _append_states(self, events: list[bytes]) -> int:
        """Append and clear; returns their number."""
        count = len(events)
        if events:
            self._journal.append(EventKind.STATE, events, self._clock.now_ms())
            events.clear()
        return count

    async def try_snapshot(self) -> None:
        """Try to write a snapshot. A failure only makes the next start replay more."""
        try:
            await self.snapshot()
        except (StoreRefusalError, SyncTimeoutError) as error:
            _log.warning("delivery snapshot failed cause=%s", error)

    async def run(self) -> None:
        """Write a snapshot after every so many events, until cancelled."""
        while True:
            await self._snapshot_wake.wait()
            self._snapshot_wake.clear()
            await self.try_snapshot()
            await self._tables.save()  # the replay begins at the snapshot only if the table says so

    async def keep_from(self, end: int) -> int:
        """The physical offset from which the log must be kept, when everything before `end` is about to be removed.

        State that a replay would need from there is written again: the whole state to the journal, then the committed
        offsets, which are the only state of queues without messages in flight, to their file. Raises OSError,
        StoreError.
        """
        begin = self._replay_begin()
        if begin is not None and begin < end:
            await self.try_snapshot()
            begin = self._replay_begin()
        await self._tables.save()  # with a position that is at least as late as `begin`
        return end if begin is None else min(begin, end)

    def _replay_begin(self) -> int | None:
        """The physical offset of the first record that a replay would read; None if there is none."""
        low, high = self._store.queue_range(JOURNAL_TOPIC, JOURNAL_QUEUE_ID)
        start = self._tables.offsets.get(JOURNAL_TOPIC, JOURNAL_GROUP, JOURNAL_QUEUE_ID) or 0
        for queue_offset in range(max(start, low), high):
            found = self._store.physical_offset_at(JOURNAL_TOPIC, JOURNAL_QUEUE_ID, queue_offset)
            if found is not None:  # damaged records have no place in the log
                return found
        return None

    # Replay

    def replay(self) -> int:
        """Apply the journal to the committed offsets; returns the number of events. JournalFormatError."""
        start = self._tables.offsets.get(JOURNAL_TOPIC, JOURNAL_GROUP, JOURNAL_QUEUE_ID)
        ends: dict[QueueKey, int] = {}
        count = ignored = 0
        for entry in self._journal.replay(start):
            count += 1
            if not self._replay(entry, ends):
                ignored += 1
        if ignored:  # usually of a topic that was deleted later
            _log.warning("journal events ignored count=%d cause=%r", ignored, "their messages are not in the log")
        if any(queue.reset_at is not None for queue in self._subscriptions):
            self._snapshot_wake.set()
        self._events_at_snapshot = -count  # they count for the next snapshot: a replay stays bounded over restarts
        return count

    def _replay(self, entry: JournalEntry, ends: dict[QueueKey, int]) -> bool:
        """Apply one event; False if its messages are not in the log."""
        if isinstance(entry.event, Removed):
            self._subscriptions.drop(entry.event.topic, entry.event.group)
            return True
        key, event = entry.key, entry.event
        assert key is not None, "only Removed has no queue"
        end = ends.get(key)
        if end is None:
            end = ends[key] = self._store.queue_range(key.topic, key.queue_id)[1]
        if highest_offset(event) > end:
            return False
        queue = self._subscriptions.queue(key.topic, key.group, key.queue_id)
        if queue is None:
            commit_offset = self._tables.offsets.get(key.topic, key.group, key.queue_id)
            if commit_offset is None:
                # The time before the oldest event is unknown: assuming delivery is safe only where the event itself
                # says so.
                match event:
                    case State():
                        commit_offset = event.commit_offset
                    case Delivered():
                        commit_offset = event.begin
                    case Reset():
                        commit_offset = event.offset
                    case _:
                        commit_offset = 0
            queue = self._subscriptions.add(Queue(key, min(commit_offset, end)))
        if isinstance(event, Reset) and event.offset < queue.delivery.commit_offset:
            queue.reset_at = entry.queue_offset
        queue.delivery.apply(event)
        return True
