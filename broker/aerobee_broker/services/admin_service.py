"""apache.rocketmq.v2.Admin: the calls of consoles."""

from __future__ import annotations

import logging
from typing import Final

from aerobee_broker.clients.accounts import Accounts
from aerobee_broker.clients.registry import Client
from aerobee_broker.counters.broker_counters import BrokerCounters
from aerobee_broker.front.methods import Method
from aerobee_broker.processors.query import QueryProcessor
from aerobee_broker.services.aerobee_admin_service import Administration
from aerobee_broker.services.audit import audited
from aerobee_broker.services.listings import Listings
from aerobee_broker.services.requests import RequestLimits
from aerobee_broker.services.rpc import AnonymousIdentity, service_methods
from aerobee_broker.tables.operations import Operations
from aerobee_proto import v2

SERVICE: Final = "apache.rocketmq.v2.Admin"
_LEVELS: Final = ("DEBUG", "DEBUG", "INFO", "WARNING", "ERROR")  # TRACE becomes DEBUG: Python has nothing below


class AdminService:
    """One line per method."""

    def __init__(
        self,
        *,
        accounts: Accounts | None,
        counters: BrokerCounters,
        limits: RequestLimits,
        administration: Administration,
        query: QueryProcessor,
        operations: Operations,
        listings: Listings,
    ) -> None:
        self._identify = AnonymousIdentity(accounts)
        self._counters = counters
        self._limits = limits
        self._administration = administration
        self._query = query
        self._operations = operations
        self._listings = listings

    def methods(self) -> dict[str, Method]:
        administration = self._administration
        return service_methods(
            SERVICE,
            self._identify,
            self._counters,
            self._limits,
            unary={
                **self._listings.in_order(
                    {
                        "ListSubscription": administration.clients.list_subscriptions,
                        "DescribeSubscription": administration.clients.describe_subscriptions,
                        "DescribeGroupAccumulation": administration.accumulation.describe,
                        "ListConsumerConnection": administration.clients.list_consumer_connections,
                        "GetConsumerRunningInfo": administration.clients.consumer_running_info,
                        "QueryTimeSpan": administration.accumulation.time_span,
                    }
                ),
                "DescribeTopicStatus": administration.topics.describe_topic_status,
                "QueryMessage": self._query_message,
                "GetTopicRoute": administration.topics.topic_route,
                "GetProxyRuntimeStats": administration.status.runtime_stats,
                **audited(
                    {
                        "DeleteSubscription": administration.clients.delete_subscription,
                        "ResetGroupOffset": administration.groups.reset_group_offset,
                        "PrintThreadStackTrace": administration.clients.print_thread_stack_trace,
                        "VerifyMessage": administration.clients.verify_message,
                        "AdminSendMessage": administration.messages.send,
                        "ChangeLogLevel": self._change_log_level,
                    },
                    self._operations,
                ),
            },
        )

    async def _query_message(self, request: v2.ListMessageRequest, client: Client) -> v2.ListMessageResponse:
        return await self._query.process(request, client)

    async def _change_log_level(self, request: v2.ChangeLogLevelRequest, client: Client) -> v2.ChangeLogLevelResponse:
        level = _LEVELS[request.level] if 0 <= request.level < len(_LEVELS) else "INFO"
        for package in ("aerobee_broker", "aerobee_store"):
            logging.getLogger(package).setLevel(level)
        return v2.ChangeLogLevelResponse(remark=f"the log level is {level}")
