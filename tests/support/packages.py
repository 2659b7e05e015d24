"""Builds the wheel and the source archive, and checks them in an environment that has nothing else: `make packages`.

python -m tests.support.packages            write dist/; the environment takes dependencies from the index
python -m tests.support.packages FOLDER     write FOLDER
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_SECONDS: Final = 600.0
_PROGRAM: Final = """
import pathlib, sys, tempfile
import aerobee_broker, aerobee_client, aerobee_pipeline, aerobee_proto, aerobee_store, pyspark_aerobee
from aerobee_client import Message, blocking
from aerobee_client.testing import run_broker

for package in (aerobee_broker, aerobee_client, aerobee_pipeline, aerobee_proto, aerobee_store, pyspark_aerobee):
    assert pathlib.Path(package.__file__).is_relative_to(sys.prefix), package.__file__
with run_broker(memory=True) as broker, blocking.connect(broker.endpoint) as client:
    client.producer().send(Message(topic="orders", body=b"hello"))
    with client.simple_consumer("billing", "orders") as consumer:
        (message,) = consumer.receive()
        consumer.ack(message)
print(message.body.decode())
"""


def build(folder: Path) -> tuple[Path, Path]:
    """Write the wheel and the source archive; the tools are those of this environment."""
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)])
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def expected() -> set[str]:
    """The files of the packages that git knows, as the wheel names them."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    known = _run(["git", "-C", str(ROOT), "ls-files", "-z", *folders]).split("\0")
    return {name.partition("/")[2] for name in known if name}


def wheel_files(wheel: Path) -> set[str]:
    """The files of a wheel besides its metadata."""
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def source_files(source: Path) -> set[str]:
    """The files of a source archive, relative to its folder."""
    with tarfile.open(source) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def environment(folder: Path, wheel: Path, *, dependencies: bool) -> Path:
    """A new environment with the wheel; returns its Python. Without `dependencies` it has nothing but the wheel."""
    venv.create(folder, with_pip=False, clear=True)
    python = folder / "bin" / "python"
    options = [] if dependencies else ["--no-deps"]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python)]
    _run([*pip, "install", *options, str(wheel)])
    return python


def try_out(python: Path, folder: Path, **variables: str) -> str:
    """Send and receive a message, and ask the command for its version, far from the source; returns the output."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    said = _run([str(python), "-c", _PROGRAM], cwd=folder, env=inherited | variables)
    return said + _run([str(python.parent / "aerobee"), "version"], cwd=folder, env=inherited | variables)


def _run(command: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:6])} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main() -> int:
    """Build and check, with dependencies from the index."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("aerobee-*.whl"), *folder.glob("aerobee-*.tar.gz")):
        old.unlink()
    wheel, source = build(folder)
    missing = expected() ^ wheel_files(wheel)
    if missing:
        print("the wheel and the packages differ:", *sorted(missing), file=sys.stderr)
        return 1
    python = environment(folder / "environment", wheel, dependencies=True)
    print(try_out(python, folder).strip())
    for path in (wheel, source):
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
