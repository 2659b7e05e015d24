"""apache.rocketmq.v2.Admin: what consoles call."""

from __future__ import annotations

import logging
from typing import Any, Final

import grpc

from aerobee_broker.clients import Client
from aerobee_broker.counters import BrokerCounters
from aerobee_broker.processors.naming import topic_name
from aerobee_broker.processors.query import QueryProcessor
from aerobee_broker.processors.route import ACCEPTED_TYPES
from aerobee_broker.services.rpc import anonymous, service_handler
from aerobee_broker.tables import Tables
from aerobee_proto import v2

SERVICE: Final = "apache.rocketmq.v2.Admin"
_LEVELS: Final = ("DEBUG", "DEBUG", "INFO", "WARNING", "ERROR")  # TRACE is DEBUG: Python has nothing below


class AdminService:
    """One line a method; those without one answer NOT_IMPLEMENTED."""

    def __init__(self, *, counters: BrokerCounters, tables: Tables, query: QueryProcessor) -> None:
        self._counters = counters
        self._tables = tables
        self._query = query

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        return service_handler(
            SERVICE,
            anonymous,
            self._counters,
            unary={
                "QueryMessage": self._query_message,
                "ChangeLogLevel": self._change_log_level,
                "DescribeTopicStatus": self._describe_topic_status,
            },
        )

    async def _query_message(self, request: v2.ListMessageRequest, client: Client) -> v2.ListMessageResponse:
        return self._query.process(request, client)

    async def _change_log_level(self, request: v2.ChangeLogLevelRequest, client: Client) -> v2.ChangeLogLevelResponse:
        level = _LEVELS[request.level] if request.level < len(_LEVELS) else "INFO"
        for package in ("aerobee_broker", "aerobee_store"):
            logging.getLogger(package).setLevel(level)
        return v2.ChangeLogLevelResponse(remark=f"the log level is {level}")

    async def _describe_topic_status(
        self, request: v2.DescribeTopicStatusRequest, client: Client
    ) -> v2.DescribeTopicStatusResponse:
        topic = self._tables.topics.require(topic_name(request.topic, client))
        return v2.DescribeTopicStatusResponse(
            status=v2.Status(code=v2.Code.OK, message="OK"),
            topic_message_type=ACCEPTED_TYPES[topic.message_type][0],
        )
