"""Generates the Python code beside the .proto files: `python -m aerobee_proto.generate [--check]`.

protoc writes messages (`_pb2.py`), services (`_pb2_grpc.py`, only where there are any) and their types (`.pyi`).
The result is then changed in one respect, because protoc cannot: it registers in our private pool instead of
protobuf's default pool, and takes Timestamp and Duration from there (`pool.py` says why).

The base classes in `_pb2_grpc.py` answer UNIMPLEMENTED for what a server made of them leaves out. Fakes in tests are
made of them; the broker is not: it registers a coroutine of its own for each call, and without one it does not start.

Needs the development tools of this project: grpcio-tools and mypy-protobuf in the environment that runs it.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

__all__ = ["GenerateError", "differences", "generate", "main"]

SOURCE_ROOT = Path(__file__).resolve().parent.parent
"""The folder that imports in .proto files start from: the one that holds `aerobee_proto/`."""

_GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")
_PLUGINS = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")

_POOL_IMPORT = (
    "from google.protobuf import descriptor_pool as _descriptor_pool\n",
    "from aerobee_proto import pool as _pool\n",
)
_REGISTRATION = ("_descriptor_pool.Default().AddSerializedFile(", "_pool.POOL.AddSerializedFile(")
_WELL_KNOWN_IMPORT = re.compile(r"^from google\.protobuf import (?:timestamp|duration)_pb2 as \w+\n", re.MULTILINE)
_WELL_KNOWN_TYPE = re.compile(r"\b_(?:timestamp|duration)_pb2\.(?=Timestamp\b|Duration\b)")


class GenerateError(Exception):
    """The code could not be generated; the message says why and what to do."""


def generate(output: Path, source_root: Path = SOURCE_ROOT) -> list[Path]:
    """Write the code of every .proto file under `source_root` into `output`, which mirrors it; return the files.

    Files in `output` without a source are left alone. Raises GenerateError.
    """
    sources = sorted(path.relative_to(source_root) for path in source_root.glob("aerobee_proto/**/*.proto"))
    if not sources:
        raise GenerateError(f"{source_root}: no .proto files under aerobee_proto/; is this the source root?")
    with_service = [path for path in sources if re.search(r"^service ", (source_root / path).read_text(), re.MULTILINE)]
    output.mkdir(parents=True, exist_ok=True)
    _protoc(source_root, sources, [f"--python_out={output}", f"--mypy_out=quiet:{output}"])
    if with_service:
        _protoc(source_root, with_service, [f"--grpc_python_out={output}", f"--mypy_grpc_out=quiet:{output}"])

    written = []
    for source in sources:
        module = output / source.with_suffix("")
        _rewrite(module.with_name(module.name + "_pb2.py"), _privately_registered)
        _rewrite(module.with_name(module.name + "_pb2.pyi"), _privately_typed)
        suffixes = ["_pb2.py", "_pb2.pyi"] + (["_pb2_grpc.py", "_pb2_grpc.pyi"] if source in with_service else [])
        written += [module.with_name(module.name + suffix) for suffix in suffixes]
    return written


def differences(source_root: Path = SOURCE_ROOT) -> list[str]:
    """What `generate` would change under `source_root`, one sentence a file, in order of paths; empty if nothing."""
    with tempfile.TemporaryDirectory(prefix="aerobee-proto-") as directory:
        output = Path(directory)
        fresh = {path.relative_to(output): path.read_bytes() for path in generate(output, source_root)}
    present = {path.relative_to(source_root): path.read_bytes() for path in _generated_files(source_root)}
    found = []
    for path in sorted(fresh.keys() | present.keys()):
        if path not in present:
            found.append(f"{path}: missing")
        elif path not in fresh:
            found.append(f"{path}: has no .proto file any more")
        elif present[path] != fresh[path]:
            found.append(f"{path}: differs from its .proto file")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Exit status 0: generated, or nothing to change; 1: files differ; 2: could not generate."""
    parser = argparse.ArgumentParser(prog="python -m aerobee_proto.generate", description="Generate the protobuf code.")
    parser.add_argument("--check", action="store_true", help="change nothing; list the files that are not up to date")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            stale = differences()
            for line in stale:
                print(line)
            if stale:
                print("run `make proto` and commit the result", file=sys.stderr)
            return 1 if stale else 0
        written = generate(SOURCE_ROOT)
        for leftover in sorted(set(_generated_files(SOURCE_ROOT)) - set(written)):
            leftover.unlink()
            print(f"removed {leftover.relative_to(SOURCE_ROOT)}")
        print(f"generated {len(written)} files")
    except GenerateError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _generated_files(source_root: Path) -> Iterator[Path]:
    for pattern in _GENERATED:
        yield from (source_root / "aerobee_proto").rglob(pattern)


def _protoc(source_root: Path, sources: Sequence[Path], outputs: Sequence[str]) -> None:
    plugins = []
    for name in _PLUGINS:
        # Beside the interpreter and not from PATH: the versions that this environment pins.
        path = Path(sys.executable).parent / name
        if not path.exists():
            raise GenerateError(f"{path} is missing; install mypy-protobuf into this environment (extra `dev`)")
        plugins.append(f"--plugin={name}={path}")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{source_root}", *plugins, *outputs, *map(str, sources)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own arguments
    if "No module named" in result.stderr and "grpc_tools" in result.stderr:
        raise GenerateError("grpcio-tools is missing; install it into this environment (extra `dev`)")
    if result.returncode:
        raise GenerateError(f"protoc failed with status {result.returncode}:\n{result.stderr.strip()}")


def _rewrite(path: Path, change: Callable[[str], str]) -> None:
    try:
        path.write_text(change(path.read_text()))
    except GenerateError as error:
        raise GenerateError(f"{path.name}: {error}") from None


def _privately_registered(code: str) -> str:
    """A `_pb2.py` that registers in our pool."""
    for before, after in (_POOL_IMPORT, _REGISTRATION):
        if code.count(before) != 1:
            raise GenerateError(
                f"expected one {before.strip()!r}; this protoc writes other code, adapt generate.py to it"
            )
        code = code.replace(before, after)
    code = _WELL_KNOWN_IMPORT.sub("", code)
    if "_descriptor_pool" in code:
        raise GenerateError("another use of the default pool; this protoc writes other code, adapt generate.py to it")
    return code


def _privately_typed(stub: str) -> str:
    """A `_pb2.pyi` whose Timestamp and Duration are those of our pool."""
    first = True

    def once(_: re.Match[str]) -> str:
        nonlocal first
        line, first = ("from aerobee_proto import pool as _pool\n" if first else ""), False
        return line

    stub = _WELL_KNOWN_TYPE.sub("_pool.", _WELL_KNOWN_IMPORT.sub(once, stub))
    if re.search(r"\b_(timestamp|duration)_pb2\b", stub):
        raise GenerateError(
            "another use of Google's types; this mypy-protobuf writes other code, adapt generate.py to it"
        )
    return stub


if __name__ == "__main__":
    sys.exit(main())
