"""`aerobee.v1.RecordService`, messages in bulk as records of the store, under one name.

    from aerobee_proto import records_v1, v2

    stub = records_v1.RecordServiceStub(channel)
    response = stub.QueueOffsets(
        records_v1.QueueOffsetsRequest(
            topics=[records_v1.QueueOffsetsRequest.TopicQueues(topic=v2.Resource(name="orders"))]
        )
    )
    assert response.status.code == v2.Code.OK

The messages, their defaults and their errors are documented in `aerobee/v1/records.proto`.
"""

from typing import TYPE_CHECKING

from aerobee_proto.aerobee.v1.records_pb2 import (
    AppendRecordsRequest,
    AppendRecordsResponse,
    QueryRecordsRequest,
    QueryRecordsResponse,
    QueueOffsetsRequest,
    QueueOffsetsResponse,
    ReadRecordsRequest,
    ReadRecordsResponse,
)
from aerobee_proto.lazy_names import names_of

if TYPE_CHECKING:
    from aerobee_proto.aerobee.v1.records_pb2_grpc import (
        RecordServiceAsyncStub as RecordServiceAsyncStub,
    )
    from aerobee_proto.aerobee.v1.records_pb2_grpc import (
        RecordServiceServicer as RecordServiceServicer,
    )
    from aerobee_proto.aerobee.v1.records_pb2_grpc import (
        RecordServiceStub as RecordServiceStub,
    )
    from aerobee_proto.aerobee.v1.records_pb2_grpc import (
        add_RecordServiceServicer_to_server as add_RecordServiceServicer_to_server,
    )
else:  # gRPC is imported when one of these is named
    __getattr__ = names_of(
        "aerobee_proto.aerobee.v1.records_pb2_grpc",
    )

__all__ = [
    "AppendRecordsRequest",
    "AppendRecordsResponse",
    "QueryRecordsRequest",
    "QueryRecordsResponse",
    "QueueOffsetsRequest",
    "QueueOffsetsResponse",
    "ReadRecordsRequest",
    "ReadRecordsResponse",
    "RecordServiceServicer",
    "RecordServiceStub",
    "add_RecordServiceServicer_to_server",
]
