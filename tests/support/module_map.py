"""Makes the maps of rooms and modules in the documentation from the docstrings of the packages and modules.

python -m tests.support.module_map             write docs/modules.md and the map in docs/ARCHITECTURE.md
python -m tests.support.module_map --check     fail if one of them differs from the code
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.support.imports import PACKAGES, ROOT

_BEGIN, _END = "<!-- made by `make map` -->", "<!-- end of what `make map` makes -->"
_HEAD = """# Modules

Every room and module with the first sentence of its docstring; `make map` writes this page.
"""


def sentence(path: Path) -> str:
    """The first sentence of a module's docstring, on one line; empty without a docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[^.]\.) (?=[A-Z`])", paragraph)[0]


def rooms(package: Path) -> Iterator[Path]:
    """The folders of a package that have modules, the package first."""
    for folder in sorted([package, *(path for path in package.rglob("*") if path.is_dir())]):
        if modules(folder):
            yield folder


def modules(folder: Path) -> list[Path]:
    """The modules of a folder, without generated ones."""
    return [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py" and "_pb2" not in path.name]


def module_page() -> str:
    """The text of docs/modules.md."""
    parts = [_HEAD]
    for package in PACKAGES:
        for room in rooms(ROOT / package):
            parts.append(f"## {room.relative_to(ROOT)}\n")
            if about := sentence(room / "__init__.py"):
                parts.append(f"{about}\n")
            rows = [f"| [{path.name}](../{path.relative_to(ROOT)}) | {sentence(path)} |" for path in modules(room)]
            parts.append("\n".join(["| Module | What it does |", "| --- | --- |", *rows]) + "\n")
    return "\n".join(parts)


def room_map() -> str:
    """The map of rooms in docs/ARCHITECTURE.md."""
    lines = []
    for package in PACKAGES:
        for room in rooms(ROOT / package):
            depth = len(room.relative_to(ROOT / package).parts)
            name = "    " * depth + (package if depth == 0 else f"{room.name}/")
            about = f"{sentence(room / '__init__.py')} [{len(modules(room))}]".strip()
            lines += textwrap.wrap(about, 130, initial_indent=f"{name:<30} ", subsequent_indent=" " * 31)
    return "\n".join([_BEGIN, "", *(f"    {line}" for line in lines), "", _END])


def main() -> int:
    """Write or check both. Returns the exit code."""
    architecture = ROOT / "docs" / "ARCHITECTURE.md"
    text = architecture.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert end, "ARCHITECTURE.md has the place of the map"
    made = {architecture: f"{before}{room_map()}{after}", ROOT / "docs" / "modules.md": module_page()}
    differing = [path for path, new in made.items() if not path.exists() or path.read_text(encoding="utf-8") != new]
    if "--check" in sys.argv:
        for path in differing:
            print(f"{path.relative_to(ROOT)} differs from the code; run `make map`", file=sys.stderr)
        return 1 if differing else 0
    for path in differing:
        path.write_text(made[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
