"""The parts of a recovered broker in one object, for code that uses most of them."""

from __future__ import annotations

from msgspec import Struct

from aerobee_broker.clients.accounts import Accounts
from aerobee_broker.clients.registry import ClientRegistry
from aerobee_broker.config import Settings
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.counters.loop_delay import LoopDelay
from aerobee_broker.delivery.deliveries import Deliveries
from aerobee_broker.filters.consumer_filters import ConsumerFilters
from aerobee_broker.limits.ledger import Ledger
from aerobee_broker.messages.admission import Admission
from aerobee_broker.statistics.broker_stats import BrokerStats
from aerobee_broker.tables.deleted_letters import DeletedLetters
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.timer.level_delay import LevelDelay
from aerobee_broker.timer.wheel_timer import Timer
from aerobee_broker.transactions.coordinator import Transactions
from aerobee_broker.transactions.producers import Producers
from aerobee_store import MessageStore
from aerobee_store.clock import Clock


class BrokerParts(Struct, frozen=True, kw_only=True):
    """Made once by `server`. A part that needs only a few of them takes those."""

    settings: Settings
    clock: Clock
    store: MessageStore
    tables: Tables
    admission: Admission
    clients: ClientRegistry
    accounts: Accounts | None
    """None: every caller may do everything."""
    deliveries: Deliveries
    consumer_filters: ConsumerFilters | None
    """None: new messages get no filter bitmaps."""
    timer: Timer
    level_delay: LevelDelay
    producers: Producers
    transactions: Transactions
    deleted_letters: DeletedLetters
    counters: BrokerCounters
    broker_stats: BrokerStats
    loop_delay: LoopDelay
    ledger: Ledger
    """Memory that waits on behalf of peers."""
