"""Java packages from Maven's registry, for tests and benchmarks that can do without them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_MAVEN_SECONDS = 240


def maven_jars(pom: Path, profile: str, **properties: str) -> tuple[Path, ...] | str:
    """The jars of a POM's profile with these properties, or the reason why they are unavailable.

    They stay in build/.
    """
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
