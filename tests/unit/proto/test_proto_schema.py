"""Our .proto files match the published protocol, field by field, and the official client's files."""

import base64
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from tests.support.official_sdks import PYTHON

from aerobee_proto import pool

PACKAGE = "apache.rocketmq.v2"
FILES = ("definition", "service", "admin")

Schema = dict[str, list[str]]
"""`message Settings`, `enum Code`, `service Admin` -> its fields, values or calls, each as one line of text."""

_SCALARS = {
    FieldDescriptorProto.TYPE_DOUBLE: "double",
    FieldDescriptorProto.TYPE_FLOAT: "float",
    FieldDescriptorProto.TYPE_INT64: "int64",
    FieldDescriptorProto.TYPE_INT32: "int32",
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_STRING: "string",
    FieldDescriptorProto.TYPE_BYTES: "bytes",
}
_KINDS = {
    (False, False): "unary",
    (False, True): "server stream",
    (True, False): "client stream",
    (True, True): "bidirectional stream",
}


def published() -> dict[str, Schema]:
    """The published schema by file, from wire_schema.txt."""
    files: dict[str, Schema] = {}
    schema: Schema = {}
    lines: list[str] = []
    for line in (Path(__file__).parent / "wire_schema.txt").read_text().splitlines():
        if line.startswith("file "):
            schema = files.setdefault(line.removeprefix("file "), {})
        elif line.startswith("    "):
            lines.append(line.strip())
        elif line and not line.startswith("#"):
            lines = schema.setdefault(line, [])
    return files


def described(file: FileDescriptorProto) -> Schema:
    """A descriptor in the notation of wire_schema.txt."""
    schema: Schema = {}
    for name, message in _messages("", file.message_type):
        schema[f"message {name}"] = [_field(message, field) for field in message.field]
        schema.update(_enums(f"{name}.", message.enum_type))
    schema.update(_enums("", file.enum_type))
    for service in file.service:
        schema[f"service {service.name}"] = [
            f"{method.name} {_relative(method.input_type)} {_relative(method.output_type)} "
            f"{_KINDS[method.client_streaming, method.server_streaming]}"
            for method in service.method
        ]
    return schema


def _messages(prefix: str, messages: Iterable[DescriptorProto]) -> Iterator[tuple[str, DescriptorProto]]:
    for message in messages:
        if not message.options.map_entry:
            yield prefix + message.name, message
            yield from _messages(f"{prefix}{message.name}.", message.nested_type)


def _enums(prefix: str, enums: Iterable[EnumDescriptorProto]) -> Schema:
    return {f"enum {prefix}{enum.name}": [f"{value.name} {value.number}" for value in enum.value] for enum in enums}


def _field(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    words = [str(field.number), field.name]
    entry = next((nested for nested in message.nested_type if field.type_name.endswith(f".{nested.name}")), None)
    if entry is not None and entry.options.map_entry:
        return " ".join([*words, f"map<{_type(entry.field[0])},{_type(entry.field[1])}>"])
    if field.proto3_optional:
        words.append("opt")
    elif field.HasField("oneof_index"):
        words.append(f"({message.oneof_decl[field.oneof_index].name})")
    elif field.label == FieldDescriptorProto.LABEL_REPEATED:
        words.append("rep")
    return " ".join([*words, _type(field)])


def _type(field: FieldDescriptorProto) -> str:
    return _relative(field.type_name) if field.type_name else _SCALARS[field.type]


def _relative(type_name: str) -> str:
    return type_name.removeprefix(f".{PACKAGE}.").removeprefix(".google.protobuf.")


def ours(name: str) -> FileDescriptorProto:
    """One of our files, by its name without the suffix."""
    from aerobee_proto import v2  # noqa: F401 - loads the files into the pool

    file = FileDescriptorProto()
    pool.POOL.FindFileByName(f"aerobee_proto/apache/rocketmq/v2/{name}.proto").CopyToProto(file)
    return file


@pytest.mark.parametrize("name", FILES)
def test_the_package_and_syntax_are_the_protocols(name: str) -> None:
    """The package is part of every gRPC path, and proto3 determines field presence."""
    assert (ours(name).package, ours(name).syntax) == (PACKAGE, "proto3")


@pytest.mark.parametrize("name", FILES)
def test_a_file_declares_exactly_the_published_names(name: str) -> None:
    """Messages, enums and services are exactly the published ones."""
    assert sorted(described(ours(name))) == sorted(published()[name])


@pytest.mark.parametrize(("file", "what"), [(file, what) for file in FILES for what in published()[file]])
def test_a_declaration_is_as_published(file: str, what: str) -> None:
    """Numbers, names, types, presence, oneofs, values and streaming kinds match the protocol."""
    assert sorted(described(ours(file))[what]) == sorted(published()[file][what])


@PYTHON.mark
def test_our_files_declare_everything_in_the_official_clients_files(tmp_path: Path) -> None:
    """The descriptors of the released Python client match ours."""
    script = (
        "import base64\n"
        "from rocketmq.grpc_protocol import definition_pb2, service_pb2, admin_pb2\n"
        "for module in (definition_pb2, service_pb2, admin_pb2):\n"
        "    print(base64.b64encode(module.DESCRIPTOR.serialized_pb).decode())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    theirs = [FileDescriptorProto.FromString(base64.b64decode(line)) for line in result.stdout.split()]
    assert len(theirs) == len(FILES)
    compared = 0
    for name, file in zip(FILES, theirs, strict=True):
        own = described(ours(name))
        for what, lines in described(file).items():
            assert set(lines) <= set(own[what]), what
            compared += len(lines)
    assert compared > 300, "the client's files were read"
