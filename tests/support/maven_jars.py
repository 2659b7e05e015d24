"""Java packages from Maven's registry, for tests and benchmarks that go without where it cannot be reached."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_MAVEN_SECONDS = 240


def maven_jars(pom: Path, profile: str, **properties: str) -> tuple[Path, ...] | str:
    """The jars of a profile of a POM with these properties, or why they cannot be had. They stay in build/."""
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        return "it needs java and mvn on the PATH"
    target = Path("build") / pom.stem / "-".join([profile, *properties.values()])
    if not (target / "complete").exists():
        command = [maven, "--quiet", "--batch-mode", "--file", str(pom), f"-P{profile}", "dependency:copy-dependencies"]
        command += [f"-DoutputDirectory={target.absolute()}", *_definitions(properties)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_MAVEN_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return "Maven takes too long"
        if done.returncode:
            cause = next((line for line in done.stdout.splitlines() if "ERROR" in line), done.stdout[-300:])
            return f"Maven cannot fetch it: {cause}"
        (target / "complete").touch()
    return tuple(sorted(target.absolute().glob("*.jar")))


def _definitions(properties: Mapping[str, str]) -> list[str]:
    return [f"-D{name.replace('_', '.')}={value}" for name, value in properties.items()]
