"""`aerobee.v1`, what an operator does beyond the RocketMQ protocol, under one name.

    from aerobee_proto import admin_v1, v2

    stub = admin_v1.AdminServiceStub(channel)
    response = stub.CreateTopic(admin_v1.CreateTopicRequest(topic=admin_v1.Topic(name="orders", read_queue_count=8)))
    assert response.status.code == v2.Code.OK

The messages, their defaults and their errors are documented in `aerobee/v1/admin.proto`.
"""

from typing import TYPE_CHECKING

from aerobee_proto.aerobee.v1.admin_pb2 import (
    CreateGroupRequest,
    CreateGroupResponse,
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteGroupRequest,
    DeleteGroupResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
    DescribeGroupRequest,
    DescribeGroupResponse,
    DescribeTopicRequest,
    DescribeTopicResponse,
    FlushMode,
    GetBrokerStatusRequest,
    GetBrokerStatusResponse,
    GetStoreStatusRequest,
    GetStoreStatusResponse,
    Group,
    GroupClient,
    GroupQueueStatus,
    ListGroupsRequest,
    ListGroupsResponse,
    ListTopicsRequest,
    ListTopicsResponse,
    QueueStatus,
    StoreState,
    Topic,
    UpdateGroupRequest,
    UpdateGroupResponse,
    UpdateTopicRequest,
    UpdateTopicResponse,
)
from aerobee_proto.aerobee.v1.admin_pb2_grpc import (
    AdminServiceServicer,
    AdminServiceStub,
    add_AdminServiceServicer_to_server,
)

if TYPE_CHECKING:  # the stub file has it, the module does not
    from aerobee_proto.aerobee.v1.admin_pb2_grpc import AdminServiceAsyncStub as AdminServiceAsyncStub

__all__ = [
    "AdminServiceServicer",
    "AdminServiceStub",
    "CreateGroupRequest",
    "CreateGroupResponse",
    "CreateTopicRequest",
    "CreateTopicResponse",
    "DeleteGroupRequest",
    "DeleteGroupResponse",
    "DeleteTopicRequest",
    "DeleteTopicResponse",
    "DescribeGroupRequest",
    "DescribeGroupResponse",
    "DescribeTopicRequest",
    "DescribeTopicResponse",
    "FlushMode",
    "GetBrokerStatusRequest",
    "GetBrokerStatusResponse",
    "GetStoreStatusRequest",
    "GetStoreStatusResponse",
    "Group",
    "GroupClient",
    "GroupQueueStatus",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListTopicsRequest",
    "ListTopicsResponse",
    "QueueStatus",
    "StoreState",
    "Topic",
    "UpdateGroupRequest",
    "UpdateGroupResponse",
    "UpdateTopicRequest",
    "UpdateTopicResponse",
    "add_AdminServiceServicer_to_server",
]
