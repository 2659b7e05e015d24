"""The descriptor pool of everything in this package, apart from protobuf's default pool.

An application may import the official RocketMQ client beside ours. Both generate `apache.rocketmq.v2` from files with
different names, and one pool refuses to hold the same names twice, so ours keep to themselves.

A pool is isolated: its Timestamp is a different class from `google.protobuf.timestamp_pb2.Timestamp`. The
classes below have the same methods (`FromMilliseconds`, `ToDatetime`, `ToTimedelta` ...) and the same bytes, but
assigning Google's to a field of ours raises TypeError, at run time and in mypy. Fill the field in place
(`properties.born_timestamp.FromMilliseconds(now)`) or build one of these.
"""

from functools import cache
from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal import builder

if TYPE_CHECKING:
    from google.protobuf.internal import well_known_types
    from google.protobuf.message import Message

    class Timestamp(Message, well_known_types.Timestamp):
        """A moment: seconds since the Unix epoch and nanoseconds (0..999,999,999) after them."""

        seconds: int
        nanos: int

        def __init__(self, *, seconds: int = ..., nanos: int = ...) -> None: ...

    class Duration(Message, well_known_types.Duration):
        """A span: seconds and nanoseconds, both of one sign."""

        seconds: int
        nanos: int

        def __init__(self, *, seconds: int = ..., nanos: int = ...) -> None: ...


__all__ = ["POOL", "Duration", "Timestamp", "reflection_pool"]

POOL = DescriptorPool()

for _file in (timestamp_pb2.DESCRIPTOR, duration_pb2.DESCRIPTOR):
    # As generated code does it: defines `Timestamp` and `Duration` in this module, so that messages can be pickled.
    builder.BuildTopDescriptorsAndMessages(POOL.AddSerializedFile(_file.serialized_pb), __name__, globals())


@cache
def reflection_pool() -> DescriptorPool:
    """POOL, after adding what a server offers besides our services: health, reflection v1alpha and v1.

    For `grpc_reflection`'s servicer, which describes every service from one pool. Apart from POOL because nobody
    else should pay for importing grpc_health and grpc_reflection.
    """
    from grpc_health.v1 import health_pb2
    from grpc_reflection.v1alpha import reflection_pb2

    POOL.AddSerializedFile(health_pb2.DESCRIPTOR.serialized_pb)
    POOL.AddSerializedFile(reflection_pb2.DESCRIPTOR.serialized_pb)
    # grpcio ships v1alpha only. Version 1 is the same file under another name (grpc/grpc-proto, reflection/v1).
    POOL.AddSerializedFile(_as_reflection_v1(reflection_pb2.DESCRIPTOR.serialized_pb))
    return POOL


def _as_reflection_v1(v1alpha: bytes) -> bytes:
    """The descriptor of reflection v1, made from that of v1alpha."""

    def renamed(name: str) -> str:
        return name.replace("grpc.reflection.v1alpha", "grpc.reflection.v1")

    file = descriptor_pb2.FileDescriptorProto.FromString(v1alpha)
    file.name = "grpc/reflection/v1/reflection.proto"
    file.package = renamed(file.package)
    for message in file.message_type:
        for field in message.field:
            if field.type_name:  # set on messages and enums only
                field.type_name = renamed(field.type_name)
    for method in (method for service in file.service for method in service.method):
        method.input_type, method.output_type = renamed(method.input_type), renamed(method.output_type)
    return file.SerializeToString()
