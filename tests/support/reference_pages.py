"""Makes the reference pages of the site: docs/settings.md, docs/command-reference.md, docs/python-api.md.

    python -m tests.support.reference_pages             write the pages
    python -m tests.support.reference_pages --check     fail if one differs from the code

Settings come from deploy/aerobee.example.toml, which a test compares with the configuration's classes; commands from
their parsers; the Python API from signatures and docstrings.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import aerobee_client
from aerobee_broker.cli import build_parser
from aerobee_client import blocking, testing

ROOT: Final = Path(__file__).parents[2]
_MADE: Final = "`make map` writes this page from the code."
_SETTING: Final = re.compile(r"#?([a-z_]+) = (.*)")
_COMMON: Final = {"help", "debug"}
_FIXED: Final = (type(None), bool, int, float, str, tuple)


def settings_page() -> str:
    """Every setting with its default and what it is for."""
    parts = [
        "# Settings\n",
        f"{_MADE} The text is that of `deploy/aerobee.example.toml`. The ten that operators change are in\n"
        '[operating.md](operating.md), "Configuration". A setting `section.name` is a key of a TOML file\n'
        "(`--config`), or the variable `AEROBEE_SECTION_NAME`. `aerobee config show` prints the values in force.\n",
    ]
    comment: list[str] = []
    for line in (ROOT / "deploy" / "aerobee.example.toml").read_text(encoding="utf-8").splitlines():
        if section := re.fullmatch(r"\[(\w+)\]", line):
            parts.append(f"## {section[1]}\n\n")
            comment = []
        elif setting := _SETTING.fullmatch(line):
            text = f": {' '.join(comment)}" if comment else ""
            parts.append(f"- `{setting[1]}` = `{setting[2]}`{text}")
            comment = []
        elif line.startswith("#"):
            comment.append(line.lstrip("# "))
        elif len(parts) > 2:
            parts.append("")
            comment = []
    text = re.sub(r"(?m)(^- .*\n)\n+(?=- )", r"\1", "\n".join(parts).replace("\n## ", "\n\n## "))
    return re.sub(r"\n{3,}", "\n\n", text) + "\n"


def commands_page() -> str:
    """Every command with its arguments and options."""
    parts = [
        "# Commands, one by one\n",
        f"{_MADE} [commands.md](commands.md) says how they are used. All take `--help` and `--debug`;\n"
        "those that call a broker take `--endpoint`, `--timeout` and the options of TLS and credentials.\n",
    ]
    shared = {"endpoint", "tls", "tls_ca", "tls_cert", "tls_key", "credentials", "access_key", "secret_key", "timeout"}
    for name, parser in _leaves(build_parser(), ""):
        words = [action.metavar or action.dest for action in parser._actions if not action.option_strings]
        parts.append(f"## {' '.join(['aerobee', name, *map(str, words)])}\n")
        parts.append(f"{_cell(parser.description or '')}\n")
        rows = [
            f"| `{', '.join(action.option_strings)}{_value(action)}` | {_cell(_help(parser, action))} |"
            for action in parser._actions
            if action.option_strings and action.dest not in _COMMON | shared and action.help != argparse.SUPPRESS
        ]
        if rows:
            parts.append("\n".join(["| Option | |", "| --- | --- |", *rows]) + "\n")
    return "\n".join(parts)


def _leaves(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The commands without commands below them."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield name, parser
    for action in below:
        for word, sub in action.choices.items():
            yield from _leaves(sub, f"{name} {word}".strip())


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.choices:
        return f" {' or '.join(map(str, action.choices))}"
    return f" {action.metavar or action.dest.upper()}"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return (action.help or "") % {**vars(action), "prog": parser.prog}


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def api_page() -> str:
    """The public names of the client with signatures and docstrings."""
    parts = [
        "# Python API\n",
        f"{_MADE} [client.md](client.md) is the manual, with examples.\n",
    ]
    for module, names in (
        (aerobee_client, aerobee_client.__all__),
        (testing, ("run_broker", "BrokerProcess", "Namespace")),
        (blocking, ("connect", "BlockingClient")),
    ):
        parts.append(f"## {module.__name__}\n")
        for name in names:
            parts += _described(f"{module.__name__}.{name}", getattr(module, name))
    return "\n".join(parts)


def _described(name: str, value: Any) -> list[str]:
    """The entry of a class or function; nothing for aliases of types."""
    if not inspect.isclass(value) and not inspect.isfunction(value):
        return []
    kind = "class " if inspect.isclass(value) else "async " if inspect.iscoroutinefunction(value) else ""
    parts = [f"### {name.rpartition('.')[2]}\n", f"`{kind}{name}{_signature(value)}`\n", f"{_documentation(value)}\n"]
    if inspect.isclass(value):
        parts += [
            f"- **{member}**`{_signature(function)}`{_property(function)}: {_first(function)}"
            for member, function in vars(value).items()
            if not member.startswith("_") and inspect.getdoc(function) and _is_method(function)
        ]
        parts.append("")
    return parts


def _is_method(member: Any) -> bool:
    return inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)


def _property(member: Any) -> str:
    return " (a property)" if isinstance(member, property) else ""


def _signature(value: Callable[..., Any] | property | type) -> str:
    if isinstance(value, property) or (inspect.isclass(value) and issubclass(value, BaseException)):
        return ""
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    signature = inspect.signature(function)
    parameters = [_with_fixed_default(parameter) for parameter in signature.parameters.values()]
    text = str(signature.replace(parameters=parameters)).replace("(self, ", "(").replace("(self)", "()")
    text = text.replace("= Ellipsis", "= ...")
    text = re.sub(r"\b(?:aerobee_client|collections\.abc|typing|pathlib|asyncio)(?:\.[a-z_]\w*)*\.(?=[A-Z])", "", text)
    return re.sub(r"(?<!')'(\w[\w.\[\], |]*)'", r"\1", text).replace(" -> None", "")


def _with_fixed_default(parameter: inspect.Parameter) -> inspect.Parameter:
    """The parameter, with `...` for a default that is another text on each machine, such as the environment."""
    is_fixed = parameter.default is parameter.empty or isinstance(parameter.default, _FIXED)
    return parameter if is_fixed else parameter.replace(default=...)


def _documentation(value: Any) -> str:
    """A docstring as Markdown: indented examples are code already."""
    return re.sub(r"(?m)^(?=\S)(.*)\n(?=- )", r"\1\n\n", textwrap.dedent(inspect.getdoc(value) or "")).replace(
        "<", "&lt;"
    )


def _first(value: Any) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split()).replace("<", "&lt;")


PAGES: Final = {"settings.md": settings_page, "command-reference.md": commands_page, "python-api.md": api_page}


def main() -> int:
    """Write or check."""
    stale = []
    for name, make in PAGES.items():
        page, text = ROOT / "docs" / name, make()
        if "--check" not in sys.argv:
            page.write_text(text, encoding="utf-8")
        elif not page.exists() or page.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        print(f"docs/{', docs/'.join(stale)} differ from the code: make map", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
