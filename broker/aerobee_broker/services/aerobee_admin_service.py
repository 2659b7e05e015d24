"""aerobee.v1.AdminService: what an operator does, through `aerobee topic`, `aerobee group` or any gRPC client."""

from __future__ import annotations

from typing import Any, Final

import grpc

from aerobee_broker.counters import BrokerCounters
from aerobee_broker.processors.administration import Administration
from aerobee_broker.services.rpc import anonymous, service_handler

SERVICE: Final = "aerobee.v1.AdminService"


def aerobee_admin_handler(administration: Administration, counters: BrokerCounters) -> grpc.GenericRpcHandler[Any, Any]:
    """One line a method."""
    return service_handler(
        SERVICE,
        anonymous,
        counters,
        unary={
            "CreateTopic": administration.create_topic,
            "UpdateTopic": administration.update_topic,
            "DeleteTopic": administration.delete_topic,
            "ListTopics": administration.list_topics,
            "DescribeTopic": administration.describe_topic,
            "CreateGroup": administration.create_group,
            "UpdateGroup": administration.update_group,
            "DeleteGroup": administration.delete_group,
            "ListGroups": administration.list_groups,
            "DescribeGroup": administration.describe_group,
            "GetBrokerStatus": administration.get_broker_status,
            "GetStoreStatus": administration.get_store_status,
        },
    )
