"""Shell scripts as trees, without running or expanding anything.

shfmt parses them, as bash does. A node is an object of `shfmt --to-json`: `Type` names its struct in
https://pkg.go.dev/mvdan.cc/sh/v3/syntax, whose fields it has, except empty ones. A statement (`Stmt`) is a command
with its redirections. Two more keys lead to a node's text: `of`, the whole script, and `Pos` and `End` in it.
"""

import functools
import itertools
import json
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.core import UserError, command_line, repo

SHELLS = ("sh", "bash", "dash", "ash")
NAME = r"[A-Za-z_][A-Za-z0-9_]*"
ASSIGNMENT = re.compile(rf"({NAME})(\+?)=")
LONGEST = 131_072  # characters of a script; Linux takes no longer argument (MAX_ARG_STRLEN)
DEEPEST = 200  # brackets inside each other
LARGEST_TREE = 2**26  # bytes of JSON
SECONDS = 20.0
_DEEPER = {"(": 1, "{": 1, ")": -1, "}": -1}
# Marks of unknown values have NUL characters, which shells and shfmt drop. This character is in no text.
_NUL = "\ufdd0"

Node = dict[str, Any]


class Unreadable(Exception):
    """The text is not a script that can be followed. The message says why."""


@functools.lru_cache(maxsize=256)
def parse(text: str) -> Node:
    """Return a script's tree: its statements are in `Stmts`. Raises Unreadable, and UserError without shfmt."""
    if len(text) > LONGEST:
        raise Unreadable(f"it is longer than {LONGEST:,} characters, the limit of Linux")
    if max(itertools.accumulate(_DEEPER.get(char, 0) for char in text), default=0) > DEEPEST:
        raise Unreadable("it is nested too deeply")
    script = text.replace("\0", _NUL).encode(errors="replace")
    argv = [str(Path(sysconfig.get_path("scripts")) / "shfmt"), "-ln=bash", "--to-json"]
    try:
        done = command_line.captured(argv, stdin=script, seconds=SECONDS, largest=LARGEST_TREE)
    except OSError as problem:
        raise UserError(
            f"shfmt, which parses shell scripts: {problem.strerror}", repo.how_to_install("train")
        ) from None
    except (subprocess.TimeoutExpired, command_line.TooLarge):
        raise Unreadable("its syntax tree is too large") from None
    if done.returncode != 0:
        line, _, reason = done.stderr.decode(errors="replace").strip().partition(": ")
        raise Unreadable(f"line {line.partition(':')[0]}: {reason}" if reason else f"it is not a script: {line}")

    def node(found: Node) -> Node:
        if isinstance(found.get("Value"), str):
            found["Value"] = found["Value"].replace(_NUL, "\0")
        return found | ({"of": script} if "Pos" in found else {})

    tree: Node = json.loads(done.stdout, object_hook=node)
    return tree


def statements(node: Node, key: str = "Stmts") -> list[Node]:
    found: list[Node] = node.get(key) or []
    return found


def written(first: Node, last: Node | None = None) -> str:
    """Return a node, or all from one to another, as the script has it."""
    text: bytes = first["of"][first["Pos"]["Offset"] : (last or first)["End"]["Offset"]]
    return text.decode(errors="replace").replace(_NUL, "\0")


def beginning(*nodes: Node) -> str:
    """Return the beginning of statements on one line."""
    return " ".join(written(nodes[0], nodes[-1]).rstrip(" ;&\n").split())[:60] if nodes else ""


def joined(statement: Node) -> list[tuple[str, Node]]:
    """Return the pipelines that && and || join, each with the operator before it."""
    command = statement.get("Cmd") or {}
    if command.get("Type") == "BinaryCmd" and command["Op"] in ("&&", "||"):
        (_, first), *others = joined(command["Y"])
        return [*joined(command["X"]), (command["Op"], first), *others]
    return [("", statement)]


def piped(statement: Node) -> list[Node]:
    """Return the statements of a pipeline."""
    command = statement.get("Cmd") or {}
    if command.get("Type") == "BinaryCmd" and command["Op"] in ("|", "|&"):
        return [*piped(command["X"]), *piped(command["Y"])]
    return [statement]


def simple_commands(node: Any) -> Iterator[list[str]]:
    """Yield the words of each simple command as they are written, also in functions and in $(...)."""
    if isinstance(node, list):
        for one in node:
            yield from simple_commands(one)
    elif isinstance(node, dict):
        if node.get("Type") in ("CallExpr", "DeclClause"):
            before = [node["Variant"]] if "Variant" in node else []
            yield [written(one) for one in (*before, *node.get("Assigns", ()), *node.get("Args", ()))]
        for inner in node.values():
            yield from simple_commands(inner)


def final(script: Node) -> Node | None:
    """Return the statement by which `bash -c` replaces itself, if there are no traps.

    It is the last command of the text: simple, without redirections, and joined to what stands before it on
    its line by one ; && or ||. At most one newline follows it. Measured with bash 5.2.
    """
    *before, last = statements(script) or [{}]
    end = script["of"].decode(errors="replace").removesuffix("\n").rpartition("\n")[2].strip()
    if not last or not end or end.startswith("#") or last.get("Background"):
        return None
    pipelines = joined(last)
    same_line = bool(before) and before[-1]["End"]["Line"] == last["Pos"]["Line"]
    if same_line and (before[-1].get("Background") or len(pipelines) > 1):
        return None
    found = pipelines[-1][1]
    is_simple = (found.get("Cmd") or {}).get("Type") == "CallExpr"
    return found if is_simple and not found.get("Redirs") and not found.get("Negated") else None
