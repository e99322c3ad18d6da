"""The parameters of a command: their types from the signature of its function, their words from help.yaml."""

import functools
import inspect
import math
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from tools.cli import _completion
from tools.core.tables import load

Command = Callable[..., Any]


def of(function: Command, rows: Mapping[str, Any]) -> list[click.Parameter]:
    """Return the parameters that decorators have given a function, and those of its rows in help.yaml by name."""
    hints = typing.get_type_hints(inspect.unwrap(function))
    decorated: list[click.Parameter] = getattr(function, "__click_params__", [])
    return [*reversed(decorated), *(_parameter(name, row, hints[name]) for name, row in rows.items())]


def shared(make: Callable[..., dict[str, Any]]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command what `make` returns of its parameters. options.yaml has their lines."""
    rows = load("cli/options.yaml")[make.__name__]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def given(**values: Any) -> Any:
            own = {name: values.pop(name) for name in rows}
            return command(**make(**own), **values)

        earlier = getattr(command, "__click_params__", [])
        given.__click_params__ = [*earlier, *reversed(of(make, rows))]  # type: ignore[attr-defined]
        return given

    return decorate


def _parameter(name: str, row: Any, hint: Any) -> click.Parameter:
    """Return one parameter. Its row is the line that `--help` prints, or has it as `is` beside limits and a default."""
    row = row if isinstance(row, dict) else {"is": row}
    shown, _, text = row["is"].partition("  ")
    parts, several = typing.get_args(hint), typing.get_origin(hint) is tuple
    kind = parts[0] if parts else hint
    settings: dict[str, Any] = {"type": _type(kind, row)}
    may_lack = kind is bool or several or type(None) in parts or "default" in row
    required = row.get("required", not may_lack)
    if shown.startswith("-- ") or not shown.startswith("-"):
        settings["shell_complete"] = _completion.of(shown)
        return click.Argument([name], metavar=shown, nargs=-1 if several else 1, required=required, **settings)
    words = shown.split()
    flags = [word.rstrip(",") for word in words if word.startswith("-")]
    settings |= {"metavar": words[-1]} if not words[-1].startswith("-") else {}
    settings |= {"is_flag": False, "flag_value": ""} if words[-1].startswith("[") else {}  # its value may be left out
    settings |= {"default": row["default"], "show_default": row["default"] != ""} if "default" in row else {}
    settings |= {"is_flag": True} if kind is bool else {"multiple": several}
    return click.Option([*flags, name], help=text, required=required, **settings)


class _Finite(click.FloatRange):
    """Numbers in a range, which nan and inf are not."""

    name = "number"  # in messages

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


def _type(kind: Any, row: Mapping[str, Any]) -> click.ParamType[Any, Any]:
    if "choices" in row:
        return click.Choice(row["choices"])
    if "least" in row:
        limits = (row["least"], row.get("most"))
        return _Finite(*limits, min_open=row.get("open", False)) if kind is float else click.IntRange(*limits)
    if kind is Path:
        return click.Path(path_type=Path, **row.get("path", {}))
    found: click.ParamType[Any, Any] = click.types.convert_type(kind)
    return found
