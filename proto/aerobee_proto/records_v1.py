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
from aerobee_proto.aerobee.v1.records_pb2_grpc import (
    RecordServiceServicer,
    RecordServiceStub,
    add_RecordServiceServicer_to_server,
)

if TYPE_CHECKING:  # the stub file has it, the module does not
    from aerobee_proto.aerobee.v1.records_pb2_grpc import RecordServiceAsyncStub as RecordServiceAsyncStub

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
