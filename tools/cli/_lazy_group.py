"""A click group whose commands are the modules of a directory, each imported only when it is called."""

import importlib
import textwrap
from pathlib import Path
from typing import Any

import click

from tools.core import UserError, did_you_mean


class LazyGroup(click.Group):
    """Finds a command's module by its name: `rank0` is rank0.py in `directory`, and its function `command`.

    A package is a group of its modules. A dash in a name is an underscore in the file name. Modules that begin
    with an underscore are not commands. The help is the first line of the module's docstring, and what
    help.yaml in `directory` says below it: the text, the parameters, examples and exit codes.
    """

    def __init__(self, *arguments: Any, directory: Path, package: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.directory, self.package = directory, package

    def list_commands(self, ctx: click.Context) -> list[str]:
        files = [*self.directory.glob("*.py"), *(path.parent for path in self.directory.glob("*/__init__.py"))]
        return sorted(path.stem.replace("_", "-") for path in files if not path.stem.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command, or None when the module does not exist."""
        if cmd_name not in self.list_commands(ctx):
            return None
        from tools.cli import _parameters  # imported here, as is YAML: the list of commands needs neither
        from tools.core import tables

        module, directory = f"{self.package}.{_file(cmd_name)}", self.directory / _file(cmd_name)
        more = tables.load(str(self.directory / "help.yaml")).get(cmd_name, {})
        if directory.is_dir():
            command: click.Command = LazyGroup(cmd_name, directory=directory, package=module)
        else:
            found = importlib.import_module(module).command
            command = click.Command(cmd_name, callback=found, params=_parameters.of(found, more.get("options", {})))
        examples = "\b\nExamples:\n" + textwrap.indent(more["examples"], "  ") if "examples" in more else ""
        exits = f"Exit codes: {more['exits']}" if "exits" in more else ""
        parts = [self._summary(cmd_name), more.get("text", ""), examples, exits]
        if isinstance(command, click.Group):  # its examples stand below the list of its commands
            command.epilog = parts.pop(2)
        command.help = "\n\n".join(filter(None, parts))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of `args[0]`. The error for an unknown one names the nearest."""
        name = args[0]
        names = self.list_commands(ctx)
        if not name.startswith("-") and name not in names:
            hint = did_you_mean(name, names) or "commands: " + ", ".join(names)
            raise UserError(f"no such command: {name}", hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with the first line of each module's docstring, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(name)) for name in self.list_commands(ctx)])

    def _summary(self, name: str) -> str:
        path = self.directory / f"{_file(name)}.py"
        path = path if path.is_file() else self.directory / _file(name) / "__init__.py"
        with path.open(encoding="utf-8") as source:
            return source.readline().strip().strip('"')


def _file(name: str) -> str:
    return name.replace("-", "_")
