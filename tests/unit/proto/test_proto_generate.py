"""`python -m aerobee_proto.generate`: the checked-in code matches the .proto files, and differences are reported."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import aerobee_proto
from aerobee_proto.generate import GenerateError, differences, generate

PACKAGE = Path(aerobee_proto.__file__).parent


def run(source_root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command on the copy of the package under `source_root`."""
    return subprocess.run(
        [sys.executable, "-m", "aerobee_proto.generate", *arguments],
        cwd=source_root,
        env={**os.environ, "PYTHONPATH": str(source_root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def source_root(tmp_path: Path) -> Path:
    """A copy of the package that tests may change."""
    shutil.copytree(PACKAGE, tmp_path / "aerobee_proto", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_checked_in_code_is_up_to_date() -> None:
    """`--check` finds no difference between the .proto files and the generated code."""
    result = run(PACKAGE.parent, "--check")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_check_lists_differences_and_generating_removes_them(source_root: Path) -> None:
    """`--check` names a changed, a missing and an orphaned file and changes nothing; generating repairs all."""
    v2 = source_root / "aerobee_proto/apache/rocketmq/v2"
    edited, deleted, orphan = v2 / "service_pb2.py", v2 / "definition_pb2.pyi", v2 / "gone_pb2.py"
    edited.write_text(edited.read_text() + "\n")
    deleted.unlink()
    orphan.write_text("")

    result = run(source_root, "--check")
    assert result.returncode == 1
    assert result.stdout.splitlines() == [
        "aerobee_proto/apache/rocketmq/v2/definition_pb2.pyi: missing",
        "aerobee_proto/apache/rocketmq/v2/gone_pb2.py: has no .proto file any more",
        "aerobee_proto/apache/rocketmq/v2/service_pb2.py: differs from its .proto file",
    ]
    assert "make proto" in result.stderr
    assert not deleted.exists()

    assert run(source_root).returncode == 0
    assert not orphan.exists()
    assert edited.read_bytes() == (PACKAGE / "apache/rocketmq/v2/service_pb2.py").read_bytes()
    assert differences(source_root) == []


def test_a_new_field_is_noticed(source_root: Path) -> None:
    """A changed .proto file is reported for its Python code and its types."""
    proto = source_root / "aerobee_proto/aerobee/v1/admin.proto"
    proto.write_text(
        proto.read_text().replace("message DeleteTopicRequest {", "message DeleteTopicRequest {\n bool x = 9;")
    )
    assert differences(source_root) == [
        "aerobee_proto/aerobee/v1/admin_pb2.py: differs from its .proto file",
        "aerobee_proto/aerobee/v1/admin_pb2.pyi: differs from its .proto file",
    ]


def test_nothing_generated_uses_the_default_pool_or_googles_types(tmp_path: Path) -> None:
    """Every module uses our descriptor pool, and no stub has a Timestamp that the runtime would refuse."""
    written = generate(tmp_path)
    assert len(written) == 18
    for path in written:
        code = path.read_text()
        assert "descriptor_pool" not in code, path
        assert "timestamp_pb2" not in code, path


def test_a_faulty_file_is_named_with_its_line(source_root: Path) -> None:
    """The output has protoc's error, and the exit status is 2."""
    (source_root / "aerobee_proto/faulty.proto").write_text('syntax = "proto3";\nmessage Faulty { Absent name = 1; }\n')
    result = run(source_root, "--check")
    assert result.returncode == 2
    assert "aerobee_proto/faulty.proto:2:18" in result.stderr
    assert "Absent" in result.stderr


def test_a_folder_without_sources_is_refused(tmp_path: Path) -> None:
    """A source folder without .proto files is an error, because its empty result would pass every check."""
    with pytest.raises(GenerateError, match=r"no \.proto files"):
        generate(tmp_path / "output", tmp_path)
