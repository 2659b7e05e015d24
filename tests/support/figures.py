"""`python -m tests.support.figures [ROOT]`: the code sizes that docs/adr/0006-sub-packages.md states.

Lines and functions include docstrings. Generated code (`proto/`) is excluded. Callbacks are arguments of constructors
and fields of dataclasses whose type is a Callable.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("store/aerobee_store", "broker/aerobee_broker", "client/aerobee_client", "pipeline/aerobee_pipeline")
LINES_MAX = 40
ARGUMENTS_MAX = 9

Function = ast.FunctionDef | ast.AsyncFunctionDef


def arguments(function: Function) -> list[ast.arg]:
    """The arguments without self and cls."""
    found = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [argument for argument in found if argument.arg not in ("self", "cls")]


def callbacks(node: ast.AST) -> Iterator[str]:
    """The names of callbacks that a constructor or a dataclass takes."""
    if isinstance(node, Function) and node.name == "__init__":
        typed = [(argument.arg, argument.annotation) for argument in arguments(node)]
    elif isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in node.decorator_list):
        typed = [(ast.unparse(each.target), each.annotation) for each in node.body if isinstance(each, ast.AnnAssign)]
    else:
        return
    for name, annotation in typed:
        if annotation is not None and "Callable" in ast.unparse(annotation):
            yield name


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    totals: Counter[str] = Counter()
    for package in PACKAGES:
        files = sorted((root / package).rglob("*.py"))
        folders = Counter(path.parent for path in files if path.name != "__init__.py")
        lines = 0
        for path in files:
            source = path.read_text()
            lines += source.count("\n")
            for node in ast.walk(ast.parse(source)):
                totals["callbacks"] += len(list(callbacks(node)))
                if isinstance(node, Function):
                    totals[f"functions over {LINES_MAX} lines"] += (node.end_lineno or 0) - node.lineno >= LINES_MAX
                    totals[f"functions with more than {ARGUMENTS_MAX} arguments"] += (
                        len(arguments(node)) > ARGUMENTS_MAX
                    )
        totals["lines"] += lines
        largest = ", ".join(f"{path.relative_to(root / package)} {count}" for path, count in folders.most_common(3))
        print(f"{package}: {len(files)} modules, {lines} lines; largest folders: {largest}")
    for name, count in totals.items():
        print(f"{name}: {count}")


if __name__ == "__main__":
    main()
