"""Class paths of released RocketMQ code and of Java programs compiled against it.

Downloads stay in Maven's repository; a target directory has the names of the jars and the compiled classes.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

_COMPILE_SECONDS: Final = 120.0
_MAVEN_SECONDS: Final = 600.0  # a first run downloads a hundred files


def java_classes(version: str, target: Path, pom: Path, sources: Sequence[Path] = ()) -> tuple[str, str]:
    """The path of java, and the class path of the release with `sources` compiled.

    `pom` names the jars of the release. Skips the test if Java, Maven or its registry is missing.
    """
    java, javac, maven = (shutil.which(name) for name in ("java", "javac", "mvn"))
    if java is None or maven is None:
        pytest.skip("needs java and mvn on the PATH")
    target.mkdir(parents=True, exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one test run builds while others wait
        jars = _jars(maven, version, target, pom)
        if not sources:
            return java, jars
        if javac is None:
            pytest.skip("needs javac on the PATH (a JDK of version 11 or later)")
        _compile(javac, sources, target, jars)
    return java, f"{target / 'classes'}:{jars}"


def _jars(maven: str, version: str, target: Path, pom: Path) -> str:
    listed = target / "class-path"
    if listed.exists():
        found = listed.read_text().strip()
        if all(Path(path).exists() for path in found.split(":")):
            return found
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={listed}", f"-Drocketmq.version={version}"]
    command = [maven, "--quiet", "--batch-mode", "--file", str(pom), *goal]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_MAVEN_SECONDS, check=False)
    if done.returncode:
        cause = next((line for line in done.stdout.splitlines() if "ERROR" in line), done.stdout[-300:])
        pytest.skip(f"Maven cannot fetch RocketMQ {version}: {cause}")
    return listed.read_text().strip()


def _compile(javac: str, sources: Sequence[Path], target: Path, jars: str) -> None:
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    stamp = target / "compiled"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    command = [javac, "-nowarn", "-d", str(target / "classes"), "-cp", jars, *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    stamp.write_text(wanted)
