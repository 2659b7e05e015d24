"""The private descriptor pool: its contents, its separation from the default pool, and its messages' functions."""

import pickle
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from aerobee_proto import admin_v1, pool, v2


def test_importing_leaves_the_default_pool_alone() -> None:
    """In a fresh process, importing our package adds nothing to the default pool."""
    script = (
        "from aerobee_proto import admin_v1, pool, v2\n"
        "from google.protobuf import descriptor_pool\n"
        "pool.reflection_pool()\n"
        "assert pool.POOL.FindMessageTypeByName('apache.rocketmq.v2.Message') is v2.Message.DESCRIPTOR\n"
        "for name in ('apache.rocketmq.v2.Message', 'apache.rocketmq.v2.Code', 'aerobee.v1.Topic'):\n"
        "    try:\n"
        "        descriptor_pool.Default().FindFileContainingSymbol(name)\n"
        "    except KeyError:\n"
        "        print('absent', name)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "absent apache.rocketmq.v2.Message",
        "absent apache.rocketmq.v2.Code",
        "absent aerobee.v1.Topic",
    ]


def test_timestamps_and_durations_keep_their_conveniences() -> None:
    """Well-known types convert to and from milliseconds, datetime and timedelta."""
    properties = v2.SystemProperties()
    properties.born_timestamp.FromMilliseconds(1_500)
    properties.delivery_timestamp.FromDatetime(datetime(2030, 1, 1, tzinfo=UTC))
    properties.invisible_duration.FromTimedelta(timedelta(milliseconds=250))
    assert (properties.born_timestamp.seconds, properties.born_timestamp.nanos) == (1, 500_000_000)
    assert properties.delivery_timestamp.ToDatetime(tzinfo=UTC) == datetime(2030, 1, 1, tzinfo=UTC)
    assert properties.invisible_duration.ToTimedelta() == timedelta(milliseconds=250)
    assert properties.invisible_duration.ToMilliseconds() == 250


def test_fields_take_the_timestamp_of_the_pool_and_refuse_googles() -> None:
    """Every Timestamp field takes `pool.Timestamp`; Google's class, from another pool, is a TypeError."""
    assert type(v2.SystemProperties().born_timestamp) is pool.Timestamp
    assert type(admin_v1.GetBrokerStatusResponse().uptime) is pool.Duration
    assert (v2.Timestamp, v2.Duration) == (pool.Timestamp, pool.Duration)
    response = v2.ReceiveMessageResponse(delivery_timestamp=pool.Timestamp(seconds=9))
    assert response.WhichOneof("content") == "delivery_timestamp"
    google_timestamp = timestamp_pb2.Timestamp(seconds=9)
    assert google_timestamp.SerializeToString() == response.delivery_timestamp.SerializeToString()
    with pytest.raises(TypeError):
        v2.ReceiveMessageResponse(delivery_timestamp=google_timestamp)  # type: ignore[arg-type] # what is tested


def test_messages_can_be_pickled() -> None:
    """Messages and well-known types can be sent between processes."""
    message = v2.Message(topic=v2.Resource(name="orders"), body=b"x")
    message.system_properties.born_timestamp.seconds = 5
    assert pickle.loads(pickle.dumps(message)) == message
    assert pickle.loads(pickle.dumps(pool.Duration(seconds=5))) == pool.Duration(seconds=5)


@pytest.mark.parametrize(
    ("module", "files"),
    [
        (v2, [f"aerobee_proto/apache/rocketmq/v2/{name}.proto" for name in ("definition", "service", "admin")]),
        (admin_v1, ["aerobee_proto/aerobee/v1/admin.proto"]),
    ],
    ids=["v2", "admin_v1"],
)
def test_the_short_modules_offer_everything(module: object, files: list[str]) -> None:
    """`__all__` has every message and enum, and each service's stub, servicer and registration."""
    expected: set[str] = set()
    for name in files:
        file = pool.POOL.FindFileByName(name)
        expected |= {*file.message_types_by_name, *file.enum_types_by_name}
        for service in file.services_by_name:
            expected |= {f"{service}Stub", f"{service}Servicer", f"add_{service}Servicer_to_server"}
    names: list[str] = module.__all__  # type: ignore[attr-defined] # both modules have one
    assert expected <= set(names)
    assert set(names) - expected <= {"Timestamp", "Duration"}
    assert all(hasattr(module, name) for name in names)


def test_every_response_of_the_admin_service_starts_with_a_status() -> None:
    """Field 1 of every response is the v2 Status; TailMessages alone answers with a stream."""
    service = pool.POOL.FindServiceByName("aerobee.v1.AdminService")
    assert service.methods
    for method in service.methods:
        status = method.output_type.fields_by_number[1]
        assert status.message_type is v2.Status.DESCRIPTOR
        assert status.name == "status"
        assert not method.client_streaming
        assert method.server_streaming == (method.name == "TailMessages")


class _Echo(v2.AdminServicer):
    """Implements ChangeLogLevel."""

    async def ChangeLogLevel(self, request: v2.ChangeLogLevelRequest, context: object) -> v2.ChangeLogLevelResponse:
        return v2.ChangeLogLevelResponse(remark=v2.ChangeLogLevelRequest.Level.Name(request.level))


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """The address of a server with one of our services and reflection over the private pool."""
    server = grpc.aio.server()
    v2.add_AdminServicer_to_server(_Echo(), server)  # type: ignore[abstract] # one call of the service is enough here
    reflection.enable_server_reflection(["apache.rocketmq.v2.Admin"], server, pool=pool.reflection_pool())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(grace=None)


async def test_a_call_travels_through_the_stubs(address: str) -> None:
    """Stub and servicer of the private pool work over a real connection."""
    async with grpc.aio.insecure_channel(address) as channel:
        request = v2.ChangeLogLevelRequest(level=v2.ChangeLogLevelRequest.WARN)
        response = await v2.AdminStub(channel).ChangeLogLevel(request, timeout=60)
    assert response == v2.ChangeLogLevelResponse(remark="WARN")


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("apache.rocketmq.v2.MessagingService", "aerobee_proto/apache/rocketmq/v2/service.proto"),
        ("apache.rocketmq.v2.Admin", "aerobee_proto/apache/rocketmq/v2/admin.proto"),
        ("aerobee.v1.AdminService", "aerobee_proto/aerobee/v1/admin.proto"),
        ("google.protobuf.Timestamp", "google/protobuf/timestamp.proto"),
        ("grpc.health.v1.Health", "grpc_health/v1/health.proto"),
        ("grpc.reflection.v1alpha.ServerReflection", "grpc_reflection/v1alpha/reflection.proto"),
        ("grpc.reflection.v1.ServerReflection", "grpc/reflection/v1/reflection.proto"),
    ],
)
async def test_reflection_describes_every_service_of_a_server(address: str, symbol: str, file: str) -> None:
    """Reflection returns the file of each service and all files that it imports."""
    async with grpc.aio.insecure_channel(address) as channel:
        question = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([question]), timeout=60)
        answers = [answer async for answer in call]
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(data)
        for data in answers[0].file_descriptor_response.file_descriptor_proto
    ]
    names = {found.name for found in files}
    assert file in names
    assert {dependency for found in files for dependency in found.dependency} <= names
