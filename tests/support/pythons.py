"""`python -m tests.support.pythons [pytest arguments]`: run the tests on every supported Python of this machine.

Looks for interpreters in PATH, in /usr/bin and among pyenv's versions. Each gets its own environment in
`.venv-pythons`. The exit code is 1 if the tests fail on one of them, or none was found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

MINIMUM = (3, 11)
ENVIRONMENTS = Path(".venv-pythons")


def interpreters() -> dict[str, Path]:
    """Full version -> interpreter, for versions that `requires-python` allows."""
    names = [f"python3.{minor}" for minor in range(MINIMUM[1], MINIMUM[1] + 10)]
    candidates = [Path(there) for name in ("python3", *names) if (there := shutil.which(name))]
    candidates += [Path("/usr/bin") / name for name in ("python3", *names)]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += sorted(root.glob("versions/*/bin/python3"))
    found: dict[str, Path] = {}
    for path in candidates:
        if not path.exists() or Path(sys.prefix) in path.parents:
            continue
        asked = subprocess.run([path, "-c", "import platform; print(platform.python_version())"], capture_output=True)
        version = asked.stdout.decode().strip()
        if asked.returncode == 0 and tuple(int(part) for part in version.split(".")[:2]) >= MINIMUM:
            found.setdefault(version, path)
    return found


def run(version: str, interpreter: Path, arguments: list[str]) -> bool:
    """Create the environment if necessary, and run the tests in it."""
    environment = ENVIRONMENTS / version
    python = environment / "bin" / "python"
    print(f"Python {version} ({interpreter})", flush=True)
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", environment], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-e", ".[dev,examples]"]
    subprocess.run(install, check=True)
    return subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]).returncode == 0


def main() -> int:
    found = interpreters()
    if not found:
        print(f"no Python {MINIMUM[0]}.{MINIMUM[1]} or newer was found")
        return 1
    results = {version: run(version, path, sys.argv[1:]) for version, path in found.items()}
    for version, passed in results.items():
        print(f"Python {version}: {'passed' if passed else 'FAILED'}")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
