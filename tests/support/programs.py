"""Programs that tests need and that are no Python packages: where they are, what brings them, and what happens without.

A test whose program is missing is skipped, with the reason; with AEROBEE_PROGRAMS=required, as in CI, it fails.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import pytest

DEBIAN: Final = {
    "bash": "bash",
    "chromium": "chromium",
    "etcd": "etcd-server",
    "faketime": "faketime",
    "fish": "fish",
    "nginx": "nginx-light",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "strace": "strace",
    "zsh": "zsh",
}
"""The package that brings each program."""
HELM: Final = "helm.sh/helm/v3/cmd/helm@v3.19.0"
GRPCURL: Final = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3"
KUBERNETES: Final = "1.33.4"
_PLACES: Final = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/opt/prometheus")
_BUILD_SECONDS: Final = 3000.0  # the largest program, on a busy machine


def program(name: str) -> Path:
    """The path of one of DEBIAN's programs."""
    path = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *_PLACES)))
    if path is None:
        without(f"needs {name} (Debian's package {DEBIAN[name]})")
    return Path(path)


def without(reason: str) -> NoReturn:
    """Skip the test that cannot run here; fail where all programs have to be here."""
    if os.environ.get("AEROBEE_PROGRAMS") == "required":
        pytest.fail(f"{reason}, and AEROBEE_PROGRAMS=required says that every program is here")
    pytest.skip(reason)


def go_program(package: str) -> Path:
    """The program of a Go package with its version, built once and kept in the user's cache."""
    path, version = package.split("@")
    return _built(_name(path), version, lambda folder: _go(["install", package], folder, GOBIN=str(folder)))


def kube_apiserver() -> Path | None:
    """Kubernetes' API server: named in AEROBEE_KUBE_APISERVER, on PATH, or built by `make kube-apiserver`."""
    named = os.environ.get("AEROBEE_KUBE_APISERVER") or shutil.which("kube-apiserver")
    path = Path(named) if named else _kept("kube-apiserver", KUBERNETES)
    return path if path.exists() else None


def build_kube_apiserver() -> Path:
    """Build it with Go, in minutes the first time."""
    return _built("kube-apiserver", KUBERNETES, _build_kube_apiserver)


def _build_kube_apiserver(folder: Path) -> None:
    """A program that imports the server's main package, as Go installs none whose modules are replaced.

    Kubernetes replaces its parts by folders of its repository; each is published with the same version, 0 before 1.
    """
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (source / "go.mod").write_text("module apiserver\n\ngo 1.24.0\n")
    (source / "tools.go").write_text('package tools\n\nimport _ "k8s.io/kubernetes/cmd/kube-apiserver/app"\n')
    main = f"k8s.io/kubernetes@v{KUBERNETES}"
    module = Path(json.loads(_go(["mod", "download", "-json", main], source))["GoMod"]).read_text()
    parts = re.findall(r"^\s*(k8s\.io/\S+) => \./staging", module, re.MULTILINE)
    published = KUBERNETES.replace("1.", "0.", 1)
    replaced = [f"-replace={part}={part}@v{published}" for part in parts]
    _go(["mod", "edit", f"-require={main}", *replaced], source)
    _go(["mod", "tidy"], source)
    major, minor, _ = KUBERNETES.split(".")
    given = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in given.items())
    _go(["build", "-ldflags", f"-s -w {flags}", "-o", str(folder), "k8s.io/kubernetes/cmd/kube-apiserver"], source)


def _built(name: str, version: str, build: Callable[[Path], object]) -> Path:
    """The program, built if it is not kept yet; other processes wait for one that builds."""
    path = _kept(name, version)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            build(path.parent)
    return path


def _kept(name: str, version: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "aerobee-tests" / f"{name}-{version}" / name


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _go(arguments: list[str], folder: Path, **environment: str) -> str:
    """What Go prints."""
    go = shutil.which("go")
    if go is None:
        without("needs Go on the PATH")
    done = subprocess.run(
        [go, *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        without(f"Go cannot build {folder.name}: {done.stderr.strip()[-500:]}")
    return done.stdout


if __name__ == "__main__":
    print(build_kube_apiserver())
