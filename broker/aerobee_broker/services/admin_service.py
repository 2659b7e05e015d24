"""apache.rocketmq.v2.Admin: what consoles call."""

from __future__ import annotations

import logging
from typing import Any, Final

import grpc

from aerobee_broker.accounts import Accounts
from aerobee_broker.clients import Client
from aerobee_broker.counters import BrokerCounters
from aerobee_broker.processors.query import QueryProcessor
from aerobee_broker.services.aerobee_admin_service import Administration
from aerobee_broker.services.rpc import AnonymousIdentity, service_handler
from aerobee_proto import v2

SERVICE: Final = "apache.rocketmq.v2.Admin"
_LEVELS: Final = ("DEBUG", "DEBUG", "INFO", "WARNING", "ERROR")  # TRACE is DEBUG: Python has nothing below
_log = logging.getLogger(__name__)


class AdminService:
    """One line a method."""

    def __init__(
        self,
        *,
        accounts: Accounts | None,
        counters: BrokerCounters,
        administration: Administration,
        query: QueryProcessor,
    ) -> None:
        self._identify = AnonymousIdentity(accounts)
        self._counters = counters
        self._administration = administration
        self._query = query

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        administration = self._administration
        return service_handler(
            SERVICE,
            self._identify,
            self._counters,
            unary={
                "ChangeLogLevel": self._change_log_level,
                "DescribeTopicStatus": administration.topics.describe_topic_status,
                "ListSubscription": administration.clients.list_subscriptions,
                "DescribeSubscription": administration.clients.describe_subscriptions,
                "DeleteSubscription": administration.clients.delete_subscription,
                "DescribeGroupAccumulation": administration.accumulation.describe,
                "ListConsumerConnection": administration.clients.list_consumer_connections,
                "ResetGroupOffset": administration.groups.reset_group_offset,
                "QueryMessage": self._query_message,
                "PrintThreadStackTrace": administration.clients.print_thread_stack_trace,
                "VerifyMessage": administration.clients.verify_message,
                "AdminSendMessage": administration.messages.send,
                "GetConsumerRunningInfo": administration.clients.consumer_running_info,
                "GetTopicRoute": administration.topics.topic_route,
                "QueryTimeSpan": administration.accumulation.time_span,
                "GetProxyRuntimeStats": administration.status.runtime_stats,
            },
        )

    async def _query_message(self, request: v2.ListMessageRequest, client: Client) -> v2.ListMessageResponse:
        return self._query.process(request, client)

    async def _change_log_level(self, request: v2.ChangeLogLevelRequest, client: Client) -> v2.ChangeLogLevelResponse:
        level = _LEVELS[request.level] if 0 <= request.level < len(_LEVELS) else "INFO"
        for package in ("aerobee_broker", "aerobee_store"):
            logging.getLogger(package).setLevel(level)
        _log.warning("log level changed level=%s", level)  # whatever the level is now, this belongs into the log
        return v2.ChangeLogLevelResponse(remark=f"the log level is {level}")
