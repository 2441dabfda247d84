"""Completion scripts for bash, zsh and fish, made from the command line's own parser."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator

__all__ = ["SHELLS", "completion_script"]

SHELLS = ("bash", "zsh", "fish")

_BASH = """\
_ort_castlike() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command= word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $word in {commands}) command=$word; break ;; esac
    done
    local words=
    case "$command $previous" in
{choices}
    *) case $command in
{options}
       esac
       if [[ $current != -* && -n $command ]]; then
           COMPREPLY=($(compgen -f -- "$current"))
           compopt -o filenames 2> /dev/null
           return
       fi ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -F _ort_castlike {program}
"""


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script that a shell reads to complete a program's commands, options and their choices.

    Args:
        parser: The parser of the program, with its commands.
        shell: "bash", "zsh" or "fish".
    """
    commands = _commands(parser)
    if shell == "fish":
        return _fish(parser, commands)
    script = _bash(parser, commands)
    return script if shell == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{script}"


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    return (action for action in parser._actions if action.option_strings)


def _bash(parser: argparse.ArgumentParser, commands: dict[str, argparse.ArgumentParser]) -> str:
    choices, options = [], []
    for command, inner in [("", parser), *commands.items()]:
        words = [word for action in _options(inner) for word in action.option_strings]
        words += commands if not command else []
        pattern = command or '""'
        options.append(f'       {pattern}) words="{" ".join(words)}" ;;')
        for action in _options(inner):
            if action.choices:
                patterns = "|".join(f'"{command} {option}"' for option in action.option_strings)
                choices.append(f'    {patterns}) words="{_listed(action.choices)}" ;;')
    return _BASH.format(
        commands="|".join(commands), choices="\n".join(choices), options="\n".join(options), program=parser.prog
    )


def _fish(parser: argparse.ArgumentParser, commands: dict[str, argparse.ArgumentParser]) -> str:
    lines = []
    for command, inner in commands.items():
        line = ["complete", "-c", parser.prog, "-n", "__fish_use_subcommand", "-f", "-a", command]
        lines.append(shlex.join([*line, "-d", inner.description or ""]))
    for command, inner in [("", parser), *commands.items()]:
        condition = f"__fish_seen_subcommand_from {command}" if command else "__fish_use_subcommand"
        for action in _options(inner):
            line = ["complete", "-c", parser.prog, "-n", condition]
            for option in action.option_strings:
                line += ["-l", option[2:]] if option.startswith("--") else ["-s", option[1:]]
            if action.choices:
                line += ["-x", "-a", _listed(action.choices)]
            elif action.nargs != 0:
                line.append("-r")
            lines.append(shlex.join([*line, "-d", action.help or ""]))
    return "\n".join(lines) + "\n"


def _listed(choices: Iterable[object]) -> str:
    return " ".join(map(str, choices))
