"""`aerobee completion`: completion of commands, options and names for bash, zsh and fish.

The scripts ask `aerobee completion words -- WORD...` for what may follow. Topics, groups and contexts are asked of the
broker in use, for at most a second.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from aerobee_broker.commands.terminal import options
from aerobee_broker.commands.terminal.options import new_command

if TYPE_CHECKING:
    from aerobee_broker.commands.terminal.options import Commands

_EXAMPLES = """\
  source <(aerobee completion bash)                     in ~/.bashrc
  source <(aerobee completion zsh)                      in ~/.zshrc, after compinit
  aerobee completion fish | source                      in ~/.config/fish/config.fish
"""
_SCRIPTS = {
    "bash": """\
_aerobee() {
    local IFS=$'\\n'
    COMPREPLY=($(compgen -W "$(aerobee completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" \\
        -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _aerobee aerobee
""",
    "zsh": """\
_aerobee() {
    local -a found
    found=("${(@f)$(aerobee completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -a found
}
compdef _aerobee aerobee
""",
    "fish": """\
function __aerobee_words
    set -l words (commandline -opc) (commandline -ct)
    aerobee completion words -- $words[2..-1] 2>/dev/null
end
complete -c aerobee -f -a '(__aerobee_words)'
""",
}
_SECONDS = 1.0


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "completion", "print completion for a shell", examples=_EXAMPLES)
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for shell in _SCRIPTS:
        action = new_command(
            actions, shell, f"print the script for {shell}", _script, examples=f"  aerobee completion {shell}"
        )
        action.set_defaults(shell=shell)
    words = new_command(
        actions,
        "words",
        "print what may follow these words, for the scripts",
        _words,
        examples="  aerobee completion words -- topic de",
    )
    words.add_argument("words", metavar="WORD", nargs="*")
    options.add_endpoint(words)


def _script(arguments: argparse.Namespace) -> int:
    sys.stdout.write(_SCRIPTS[arguments.shell])
    return 0


def _words(arguments: argparse.Namespace) -> int:
    *before, current = arguments.words or [""]
    for word in candidates(before, current, arguments):
        print(word)
    return 0


def candidates(before: list[str], current: str, arguments: argparse.Namespace) -> list[str]:
    """What may stand in place of `current` after these words of the command line, without `aerobee` itself.

    `arguments` have the names of all commands and what builds their parsers, from `cli.main`.
    """
    if not before:
        return [name for name in sorted(arguments.command_names) if name.startswith(current)]
    if before[0] not in arguments.command_names:
        return []
    parser: argparse.ArgumentParser = arguments.build_parser(before[0])
    taken = 0  # positional arguments of the command
    pending: argparse.Action | None = None  # an option that waits for its value
    for word in before:
        if pending is not None:
            pending = None
            continue
        subparsers = _subparsers(parser)
        if word.startswith("-"):
            action = parser._option_string_actions.get(word)
            pending = action if action is not None and action.nargs != 0 else None
        elif subparsers is not None:
            if word not in subparsers.choices:
                return []
            parser, taken = subparsers.choices[word], 0
        else:
            taken += 1
    if pending is not None:
        found = _values(pending, arguments)
    elif current.startswith("-"):
        found = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
    elif (subparsers := _subparsers(parser)) is not None:
        found = list(subparsers.choices)
    else:
        positional = [action for action in parser._actions if not action.option_strings]
        found = _values(positional[taken], arguments) if taken < len(positional) else []
    return sorted({word for word in found if word.startswith(current)})


def _subparsers(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser] | None:
    return next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)


def _values(action: argparse.Action, arguments: argparse.Namespace) -> list[str]:
    """The values that an argument may have, as far as they can be known."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    if action.dest in ("topic", "group"):
        return _names(action.dest, arguments)
    if action.dest == "name":
        from aerobee_broker.commands.terminal import contexts

        return list(contexts.load().contexts)
    return []


def _names(kind: str, arguments: argparse.Namespace) -> list[str]:
    from aerobee_broker.commands.terminal.options import with_client
    from aerobee_client import Client, ClientError

    async def work(client: Client) -> list[str]:
        if kind == "topic":
            return [topic.name for topic in await client.admin.list_topics()]
        return [group.name for group in await client.admin.list_groups()]

    arguments.timeout = _SECONDS
    try:
        return with_client(arguments, work)
    except ClientError:
        return []
