"""The command reference: each command's help, from click."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

import click

from docs.generated.markdown import escaped, head
from docs.links import slug
from tools import cli


@dataclass(frozen=True)
class Entry:
    """One command of `yard` with the context that knows its path."""

    path: str
    command: click.Command
    context: click.Context


def entries() -> Iterator[Entry]:
    """Yield every command and group below `yard`, in the order of the help."""

    def below(group: click.Group, context: click.Context) -> Iterator[Entry]:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            inner = click.Context(command, info_name=name, parent=context)
            yield Entry(inner.command_path, command, inner)
            if isinstance(command, click.Group):
                yield from below(command, inner)

    yield from below(cli.yard, click.Context(cli.yard, info_name="yard"))


def page() -> str:
    """Return docs/reference/commands.md."""
    found = list(entries())
    listed = [entry for entry in found if not isinstance(entry.command, click.Group)]
    rows = [f"| [`{entry.path}`](#{slug(entry.path)}) | {_summary(entry)} |" for entry in listed]
    return "\n\n".join([head("commands") + "\n".join(rows), *map(_command, found)]) + "\n"


def _command(entry: Entry) -> str:
    is_group = isinstance(entry.command, click.Group)
    usage = " ".join([entry.path, *entry.command.collect_usage_pieces(entry.context)])
    help_text = "\n\n".join(filter(None, (entry.command.help, entry.command.epilog)))
    parts = [f"{'##' if entry.path.count(' ') == 1 else '###'} {entry.path}", f"```text\n{usage}\n```"]
    parts += _paragraphs(help_text)
    options = [
        record
        for option in entry.command.get_params(entry.context)
        if isinstance(option, click.Option) and "--help" not in option.opts
        if (record := option.get_help_record(entry.context)) is not None
    ]
    if options:
        rows = [f"| `{names.replace('|', chr(92) + '|')}` | {escaped(text)} |" for names, text in options]
        parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]))
    if not is_group and "Exit codes:" not in help_text:
        parts.append("Exit codes: [the common ones](#exit-codes).")
    return "\n\n".join(parts)


def _paragraphs(text: str) -> Iterator[str]:
    """Turn click's help text into Markdown: what follows `Examples:` becomes a fenced block."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        prose, commands, is_block = list[str](), list[str](), False
        for line in paragraph.splitlines():
            name, colon, rest = line.strip().partition(":")
            if line.strip() == "\b":
                is_block = True
            elif colon and name in ("Example", "Examples"):
                commands += [rest.strip()] if rest.strip() else []
            elif is_block and line.startswith("  "):
                commands.append(line)
            elif is_block and prose and line[:1].isupper():
                yield escaped(" ".join(prose))
                prose = [line.strip()]
            else:
                prose.append(line.strip())
        if prose:
            yield escaped(" ".join(prose))
        if commands:
            yield "Examples:"
            yield "```sh\n" + "\n".join(map(_commented, commands)) + "\n```"


def _commented(line: str) -> str:
    """Set a remark that follows an example's command after two blanks off with #."""
    command, blanks, remark = re.fullmatch(r"\s*(.*?)(?:(\s{2,})(\S.*))?", line).groups()  # type: ignore[union-attr]
    return command if remark is None else f"{command}{blanks}# {remark.removeprefix('# ')}"


def _summary(entry: Entry) -> str:
    first = re.split(r"\n\s*\n", inspect.cleandoc(entry.command.help or ""))[0]
    return escaped(" ".join(first.split()))
