"""The wheel and the source archive, as users get them."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support import packages

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", autouse=True)
def _needs_build() -> None:
    pytest.importorskip("build", reason="needs build: make setup")
    pytest.importorskip("hatchling", reason="needs hatchling: make setup")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and source archive."""
    return packages.build(tmp_path_factory.mktemp("dist"))


def test_the_wheel_has_the_packages_and_nothing_else(built: tuple[Path, Path]) -> None:
    """Each file of the packages, `py.typed` and the .proto files included; no test and no file of a build."""
    files = packages.wheel_files(built[0])
    assert files == packages.expected()
    for package in ("aerobee_store", "aerobee_client", "aerobee_broker", "aerobee_proto", "aerobee_pipeline"):
        assert f"{package}/py.typed" in files


def test_the_source_archive_builds_the_same_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    """It has the packages, the licence and the readme, and stays small: no store of a test."""
    files = packages.source_files(built[1])
    assert {"LICENSE", "README.md", "pyproject.toml"} <= files
    assert packages.expected() <= {name.partition("/")[2] for name in files}
    assert built[1].stat().st_size < 20_000_000


def test_the_wheel_works_without_the_source(built: tuple[Path, Path], tmp_path: Path) -> None:
    """In a new environment a message is sent and received, and the command runs. The modules are those of the wheel;
    the dependencies are lent by this environment, whose own Aerobee is not seen that way."""
    python = packages.environment(tmp_path / "environment", built[0], dependencies=False)
    said = packages.try_out(python, tmp_path, PYTHONPATH=sysconfig.get_path("purelib"))
    assert said.startswith("hello\n")
    assert "0.1.0" in said


def test_the_list_of_packages_names_what_is_installed() -> None:
    """deploy/sbom.py: a CycloneDX document with each distribution once, the same at every run."""
    command = [sys.executable, str(packages.ROOT / "deploy" / "sbom.py")]
    first, again = (subprocess.run(command, capture_output=True, check=True, timeout=60).stdout for _ in range(2))
    assert first == again
    document = json.loads(first)
    assert (document["bomFormat"], document["metadata"]["component"]["name"]) == ("CycloneDX", "aerobee")
    listed = {each["name"]: each.get("purl") for each in document["components"]}
    assert len(listed) == len(document["components"])
    for name in ("grpcio", "numpy", "msgspec"):
        assert listed[name] == f"pkg:pypi/{name}@{importlib.metadata.version(name)}"
