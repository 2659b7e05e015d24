"""The imports among the modules of the packages, wherever they stand: at the top, in functions, or for types only."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "proto/aerobee_proto",
    "store/aerobee_store",
    "broker/aerobee_broker",
    "client/aerobee_client",
    "pipeline/aerobee_pipeline",
)
Imports = Mapping[str, set[str]]
"""The modules that each module imports, of our own packages."""


def imported_modules(root: Path = ROOT, packages: Sequence[str] = PACKAGES) -> dict[str, set[str]]:
    """All modules of the packages with their imports. A package's own names belong to its module `__init__`."""
    paths = {}
    for package in packages:
        source = (root / package).parent
        for path in sorted((root / package).rglob("*.py")):
            if "_pb2" not in path.name:
                paths[".".join(path.relative_to(source).with_suffix("").parts)] = path

    def module_of(name: str, within: str) -> str | None:
        return next(
            (found for found in (name, f"{name}.__init__", within, f"{within}.__init__") if found in paths), None
        )

    def imports_of(path: Path) -> Iterator[str | None]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (module_of(alias.name, "") for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                yield from (module_of(f"{node.module}.{alias.name}", node.module) for alias in node.names)

    return {
        module: {name for name in imports_of(path) if name is not None and name != module}
        for module, path in paths.items()
    }


def children_of(folder: str, imports: Imports) -> dict[str, set[str]]:
    """The rooms and modules directly in a folder, with those beside them that they import."""

    def child(module: str) -> str:
        return folder + "." + module.removeprefix(folder + ".").partition(".")[0]

    inside = {module for module in imports if module.startswith(folder + ".")}
    children: dict[str, set[str]] = {child(module): set() for module in inside}
    for module in inside:
        children[child(module)] |= {child(name) for name in imports[module] & inside} - {child(module)}
    return children


def circles_of(imports: Imports) -> list[list[str]]:
    """One circle, as its sorted members; none if there is no circle."""
    try:
        TopologicalSorter({module: sorted(names) for module, names in sorted(imports.items())}).prepare()
    except CycleError as error:
        return [sorted(set(error.args[1]))]
    return []
