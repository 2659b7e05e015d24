"""Makes the blocking forms of the client's classes from the asynchronous ones.

python -m tests.support.blocking_wrappers             write client/aerobee_client/blocking/wrappers.py
python -m tests.support.blocking_wrappers --check     fail if that file differs from the classes

Each public method becomes one with the same arguments and the same docstring that runs in the client's thread:

    async def f(...) -> T                         def f(...) -> T
    async def f(...) -> AsyncIterator[T], yield   def f(...) -> Iterator[T]; the same of AsyncGenerator[T, None]
    @asynccontextmanager async def f(...)         @contextmanager def f(...)
    def f(...) -> T, @property                    the same, called in the thread

The classes below name what is left out, because it has another form in blocking programs (`faces.py`).
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "client/aerobee_client"
OUTPUT = CLIENT / "blocking/wrappers.py"

_HEAD = '''"""The calls of producers, consumers and administration, blocking. Made by `make map`; do not edit."""

from __future__ import annotations

'''
_LEFT_OUT = ("__init__", "__aenter__", "__aexit__", "close")  # the base classes of `loop_thread.py` have them
_SYNCHRONOUS = {"AsyncIterator": "Iterator", "AsyncGenerator": "Iterator", "__aiter__": "__iter__"}


class Wrapped(NamedTuple):
    """A class of the client, and the one to be made of it."""

    module: str
    name: str
    made: str
    base: str
    about: str
    left_out: frozenset[str] = frozenset()


CLASSES = (
    Wrapped("admin", "Admin", "BlockingAdmin", "Wrapper", "The administration calls of `BlockingClient.admin`."),
    Wrapped(
        "producer",
        "Producer",
        "ProducerCalls",
        "ClosingWrapper",
        "The calls of a producer.",
        frozenset({"submit", "transaction", "send_half", "end_half"}),
    ),
    Wrapped("simple_consumer", "SimpleConsumer", "SimpleConsumerCalls", "ClosingWrapper", "The calls of a consumer."),
    Wrapped(
        "push_consumer",
        "PushConsumer",
        "PushConsumerCalls",
        "ClosingWrapper",
        "The calls of a push consumer.",
        frozenset({"wait"}),
    ),
    Wrapped("pull_consumer", "PullConsumer", "PullConsumerCalls", "ClosingWrapper", "The calls of a pull consumer."),
)


class Source:
    """One module of the client: its class, and where the names of its annotations come from."""

    def __init__(self, wrapped: Wrapped) -> None:
        self._wrapped = wrapped
        tree = ast.parse((CLIENT / f"{wrapped.module}.py").read_text(encoding="utf-8"))
        self._imports = dict(self._imported(tree))
        classes = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == wrapped.name)
        self._methods = [
            node for node in next(classes).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        self.imports = {self._imports[wrapped.name], f"from aerobee_client.blocking.loop_thread import {wrapped.base}"}

    def code(self) -> str:
        """The text of the class that is made. Afterwards `imports` has what it needs."""
        wrapped = self._wrapped
        methods = "\n".join(self._method(node) for node in self._methods if self._public(node.name))
        return f'\n\nclass {wrapped.made}({wrapped.base}[{wrapped.name}]):\n    """{wrapped.about}"""\n\n{methods}'

    def _public(self, name: str) -> bool:
        hidden = name.startswith("_") and name != "__aiter__"
        return not hidden and name not in _LEFT_OUT and name not in self._wrapped.left_out

    def _imported(self, tree: ast.Module) -> list[tuple[str, str]]:
        """The names of a module, each with the statement that imports it elsewhere."""
        names = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                names += [(alias.name, f"from {node.module} import {alias.name}") for alias in node.names]
            elif isinstance(node, ast.Import):
                names += [(alias.name, f"import {alias.name}") for alias in node.names]
        own = f"from aerobee_client.{self._wrapped.module} import "
        names += [(node.name, own + node.name) for node in tree.body if isinstance(node, ast.ClassDef)]
        for node in tree.body:
            if isinstance(node, ast.Assign):
                names += [(target.id, own + target.id) for target in node.targets if isinstance(target, ast.Name)]
        return names

    def _method(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
        decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
        call = f"self.asynchronous.{node.name}"
        if node.name == "__aiter__":
            call = "aiter(self.asynchronous)"
        elif "property" not in decorators:
            call += f"({', '.join(_passed(node.args))})"
        if "asynccontextmanager" in decorators:
            decorators = ["contextmanager"]
            body = f"with self._loop_thread.entered({call}) as value:\n            yield value"
            self.imports.add("from contextlib import contextmanager")
        elif _yields(node):
            body = f"yield from self._loop_thread.iterate({call})"
        elif isinstance(node, ast.AsyncFunctionDef):
            body = f"return self._loop_thread.run({call})"
        else:
            body = f"return self._loop_thread.call(lambda: {call})"
        docstring = ast.get_docstring(node, clean=False)
        lines = [f"    @{decorator}" for decorator in decorators]
        name = _SYNCHRONOUS.get(node.name, node.name)
        lines += [f"    def {name}({self._text(node.args)}) -> {self._text(node.returns)}:"]
        lines += [f'        """{docstring}"""'] if docstring else []
        return "\n".join([*lines, f"        {body}", ""])

    def _text(self, node: ast.arguments | ast.expr | None) -> str:
        """Arguments or an annotation as text, with the synchronous forms of asynchronous types."""
        assert node is not None, "the type checker wants every argument and result annotated"
        for generator in (child for child in ast.walk(node) if isinstance(child, ast.Subscript)):
            if isinstance(generator.value, ast.Name) and generator.value.id == "AsyncGenerator":
                assert isinstance(generator.slice, ast.Tuple), "AsyncGenerator has two arguments"
                generator.slice = generator.slice.elts[0]  # nothing is sent into it
        for name in (child for child in ast.walk(node) if isinstance(child, ast.Name)):
            if statement := self._imports.get(name.id):
                name.id = _SYNCHRONOUS.get(name.id, name.id)
                module, _, imported = statement.rpartition(" ")
                self.imports.add(f"{module} {_SYNCHRONOUS.get(imported, imported)}")
        return ast.unparse(node)


def _yields(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(child, ast.Yield) for child in ast.walk(node))


def _passed(arguments: ast.arguments) -> list[str]:
    """How a function that has these arguments, `self` first, passes them on."""
    texts = [argument.arg for argument in arguments.args[1:]]
    texts += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    texts += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    return texts


def generated() -> str:
    """The text of wrappers.py, formatted."""
    sources = [Source(wrapped) for wrapped in CLASSES]
    classes = "".join(source.code() for source in sources)
    imports = sorted({statement for source in sources for statement in source.imports})
    text = _HEAD + "\n".join(imports) + "\n" + classes
    for command in (("check", "--select", "I,F401", "--fix", "--quiet"), ("format",)):
        ruff = [str(Path(sys.executable).with_name("ruff")), *command, "--stdin-filename", str(OUTPUT), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def main(arguments: list[str]) -> int:
    """Write the file, or with `--check` compare it; the exit status."""
    text = generated()
    if arguments == ["--check"]:
        if OUTPUT.read_text(encoding="utf-8") == text:
            return 0
        print(f"{OUTPUT.relative_to(ROOT)} differs from the asynchronous classes; run `make map`", file=sys.stderr)
        return 1
    OUTPUT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
