"""aerobee.v1.AdminService: administration by `aerobee topic`, `aerobee group` or any gRPC client."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from aerobee_broker.clients.accounts import Accounts
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.front.methods import Method
from aerobee_broker.processors.administration.accounts import AccountAdministration
from aerobee_broker.processors.administration.accumulation import Accumulation
from aerobee_broker.processors.administration.browse import MessageBrowser
from aerobee_broker.processors.administration.clients import ClientAdministration
from aerobee_broker.processors.administration.configuration import ConfigurationAdministration
from aerobee_broker.processors.administration.dead_letters import DeadLetterAdministration
from aerobee_broker.processors.administration.groups import GroupAdministration
from aerobee_broker.processors.administration.inventory import Inventory
from aerobee_broker.processors.administration.messages import MessageAdministration
from aerobee_broker.processors.administration.overview import Overview
from aerobee_broker.processors.administration.status import StatusAdministration
from aerobee_broker.processors.administration.tail import MessageTail
from aerobee_broker.processors.administration.topics import TopicAdministration
from aerobee_broker.processors.administration.trends import Trends
from aerobee_broker.processors.administration.waiting import WaitingMessages
from aerobee_broker.services.audit import audited
from aerobee_broker.services.listings import Listings
from aerobee_broker.services.requests import RequestLimits
from aerobee_broker.services.rpc import AnonymousIdentity, service_methods
from aerobee_broker.tables.operations import Operations

SERVICE: Final = "aerobee.v1.AdminService"


class Administration(Struct, frozen=True, kw_only=True):
    """The processors of the two administration services."""

    topics: TopicAdministration
    groups: GroupAdministration
    clients: ClientAdministration
    accumulation: Accumulation
    accounts: AccountAdministration
    messages: MessageAdministration
    dead_letters: DeadLetterAdministration
    configuration: ConfigurationAdministration
    overview: Overview
    browser: MessageBrowser
    tail: MessageTail
    trends: Trends
    waiting: WaitingMessages
    inventory: Inventory
    status: StatusAdministration


def aerobee_admin_methods(
    administration: Administration,
    counters: BrokerCounters,
    limits: RequestLimits,
    accounts: Accounts | None,
    operations: Operations,
    listings: Listings,
) -> dict[str, Method]:
    """One line per method."""
    return service_methods(
        SERVICE,
        AnonymousIdentity(accounts),
        counters,
        limits,
        unary={
            **listings.in_order(
                {
                    "ListTopics": administration.topics.list_topics,
                    "DescribeTopic": administration.topics.describe_topic,
                    "ListGroups": administration.groups.list_groups,
                    "DescribeGroup": administration.groups.describe_group,
                    "ListTraffic": administration.status.list_traffic,
                    "ListConnections": administration.clients.list_connections,
                    "ListDeadLetterQueues": administration.dead_letters.list_queues,
                    "ListTopicStatus": administration.overview.list_topics,
                    "ListGroupStatus": administration.overview.list_groups,
                }
            ),
            "GetBrokerStatus": administration.status.broker_status,
            "GetStoreStatus": administration.status.store_status,
            "ListBrokers": administration.status.list_brokers,
            "DescribeMessage": administration.messages.describe,
            "ListDeadLetters": administration.dead_letters.list_letters,
            "GetConfiguration": administration.configuration.get,
            "ListDelayedMessages": administration.waiting.list_delayed,
            "ListTransactions": administration.waiting.list_transactions,
            "ListOperations": administration.inventory.list_operations,
            "ListSegments": administration.inventory.list_segments,
            "GetHistory": administration.trends.history,
            "GetProblems": administration.trends.problems,
            "BrowseMessages": administration.browser.browse,
            "WhoAmI": administration.accounts.who_am_i,
            "ListAccounts": administration.accounts.list_accounts,
            **audited(
                {
                    "CreateTopic": administration.topics.create_topic,
                    "UpdateTopic": administration.topics.update_topic,
                    "DeleteTopic": administration.topics.delete_topic,
                    "CreateGroup": administration.groups.create_group,
                    "UpdateGroup": administration.groups.update_group,
                    "DeleteGroup": administration.groups.delete_group,
                    "ResetOffsets": administration.groups.reset_offsets,
                    "PurgeTopic": administration.topics.purge_topic,
                    "DeleteDeadLetters": administration.dead_letters.delete,
                    "DisconnectClient": administration.clients.disconnect,
                    "RecallDelayedMessages": administration.waiting.recall,
                    "DecideTransactions": administration.waiting.decide,
                    "ReconnectClient": administration.clients.reconnect,
                    "ResendDeadLetters": administration.dead_letters.resend,
                    "UpdateConfiguration": administration.configuration.update,
                },
                operations,
            ),
        },
        streams={"TailMessages": administration.tail.tail},
    )
