"""Health checks of a broker that leaves."""

from __future__ import annotations

from typing import Any

import pytest
from grpc_health.v1 import health_pb2

from aerobee_broker.front.methods import Unary
from aerobee_broker.limits.wakes import Gate, Wakes
from aerobee_broker.services.standard_services import HEALTH, health_methods


@pytest.mark.parametrize("service", ["", "apache.rocketmq.v2.MessagingService"])
async def test_a_check_while_the_broker_leaves(service: str) -> None:
    """It serves on for a while, but load balancers are told to send nobody any more."""
    leaving = Gate(Wakes(), is_open=False)
    check = health_methods([service], leaving)[f"/{HEALTH}/Check"]
    assert isinstance(check, Unary)
    request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    context: Any = None  # a check does not look at it
    statuses = []
    for _ in range(2):
        answer = health_pb2.HealthCheckResponse.FromString(await check.call(request, context))
        statuses.append(answer.status)
        leaving.set()
    assert statuses == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]
