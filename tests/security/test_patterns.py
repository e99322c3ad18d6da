"""Every regular expression of tools/ and training/ takes time in proportion to the text.

The patterns are found, not listed: in the globals, classes, tables and calls of every module. Each one is
searched in repetitions of what it repeats itself, and of fragments that patterns of logs stumble over.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import itertools
import math
import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from tools.core.tables import load
from tools.image import build_failures
from tools.job.diagnosis import cause, log_patterns, log_topics, signs

ROOT = Path(__file__).parents[2]
CALLS = {"compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
RE_CALLS = {f"re.{name}" for name in CALLS}
FIRST, SHORT, LONG = 2_000, 10_000, 40_000  # characters
RATIO = 8.0  # of the times at LONG and SHORT: 4 is linear, 16 is quadratic
NOTICEABLE = 0.03  # CPU seconds at LONG; less is not compared
HARMLESS = 0.000_075  # CPU seconds at FIRST: even the square of the length is not noticeable at LONG
PARTS = 4  # of the patterns, each a test of its own: several run at once, and none is long
LIMIT = 2.0  # CPU seconds for one search; the slowest pattern takes about an eighth
TRIES = 5  # measurements, with ever longer pauses: a machine that is held up for a moment is not a slow pattern
FRAGMENTS = (
    *(" ", "1", "a", ".", "-", ":", "a ", "1 ", "\t", "\n", "'", '"', "\\", '\\"', "/", "=", "{", "["),
    *("|", "é", "(", "a:", "1.1.1.", "( pid=1 ", "nan ", "](", "A_", "sk-", "0123456789abcdef", "1,", ",111"),
    *("{'loss': ", "step 1 ", "http://", "x@y", "-- ", "$(", "${a", "\r\n", "1e", "--a=b ", "a/b/", "#\n"),
    *("checkpoint ", "\n ", "a.", "-a"),
)  # fmt: skip
# Calls whose pattern is no constant, with the patterns that it can have; () if its variable part is escaped,
# or the user's own words. A new one belongs into this table.
GIVEN: dict[str, tuple[str, ...]] = {
    "tools/aws/session.py": tuple(
        row[key] for rows in load("aws/errors.yaml").values() for row in rows for key in ("said", "class") if key in row
    ),
    "tools/bootstrap.py": (),
    "tools/cells/knobs.py": (r"((?:--nnodes|--num_machines|NNODES)(?:=|\s+))([\w:]+)",),
    "tools/cells/renaming.py": (
        r"(?:(?<![\w./-])|(?<=//))(?:(?:a-worker-0|a)(?![\w-])|(?:b)(?=:\d+\b|\.[a-z0-9-]+\.svc\b))",
    ),
    "tools/cli/job/logs.py": (),  # --grep: the user's own
    "tools/cluster/cluster_env.py": ("(?m)^NAME=.*$",),
    "tools/cluster/inventory.py": (),
    "tools/cluster/ownership.py": ("eksctl-a-(cluster|nodegroup-.+)|trainyard-a",),
    "tools/core/programs.py": tuple(row["pattern"] for row in load("core/programs.yaml").values()),
    "tools/core/tables.py": tuple(
        "|".join(rows)
        for name, rows in load("image/patterns.yaml").items()
        if name != "repository"  # for a whole name of at most 512 characters
    ),
    "tools/gitops/git_secrets.py": (),  # the repository's .sops.yaml, checked before it is used
    "tools/gitops/new_run.py": (r"a-r(\d+)",),
    "tools/image/build_failures.py": (),  # below: its own rows
    "tools/image/dockerfile/dockerignore.py": (),  # wildcards are counted
    "tools/image/draft.py": (),
    "tools/image/pin.py": (r"(?m)^ *(?:- )?(?:newName|image): a/([a-z0-9-]+)",),
    "tools/image/rules/layers.py": (
        r"\bA=[\"']?([\w.-]+)",
        r"git\s+(?:-C\s+\S+\s+)?(?:checkout|reset --hard|switch|submodule|fetch)\b\s[^;&|\n]{0,300}[\d$]",
    ),
    "tools/image/rules/runtime.py": (
        r"(?m)^[ \t]*+(?:function\s++)?a\s*+(?:\(\))?\s*+\{",
        r"^arm(?:64v8|32v7)/|[-_:](?:arm64|aarch64)(?:[-_.]|$)",
    ),
    "tools/image/rules/versions.py": tuple(load("image/tables.yaml")["pythons of systems"]),
    "tools/image/rules/secrets.py": (r"\brm\b[^;&|]{0,300}a",),
    "tools/job/diagnosis/deleted_pods.py": (r"a-(?:(?:master|worker)-)?\d+(?:-\d+)?(?:-\w{5})?",),
    "tools/job/log_rules.py": (),  # the user's own, and ended after a minute
    "tools/new/component.py": (r"a:\s*(?:\s#.*)?",),
    "tools/new/trainjob.py": (r"training\.kubeflow\.org/[\w-]+|(?<![\w-])a-(?:master|worker)(?![a-z])",),
    "tools/job/diagnosis/log_causes.py": tuple(row["seen"] for row in cause.TRAINERS.values()),
    "tools/job/diagnosis/log_patterns.py": (
        *map("".join, load("job/diagnosis/log_forms.yaml").values()),
        *(
            row[part]
            for rows in log_patterns.document().values()
            for one in rows
            for row in one.get("patterns", [one])
            for part in ("match", "stack")
            if part in row
        ),
    ),
    "tools/job/diagnosis/log_topics.py": (
        log_topics.table("slips"),
        *(
            one
            for row in log_topics.table("topics")
            for value in row.values()
            for one in (value if isinstance(value, list) else [value])
            if isinstance(one, str)
        ),
    ),
    "tools/job/diagnosis/signs.py": tuple(
        sign.match.pattern for table in signs.tables().values() for sign in table
    ),
    "tools/preflight/repairs.py": (),  # a key, escaped
    "tools/preflight/rules/nodes.py": ("(?<![a-z0-9])amd64(?![a-z0-9])",),
    "tools/prove/claims/__init__.py": (load("prove/claims.yaml")["harmless"],),
    "tools/prove/observed.py": tuple(itertools.chain(*load("prove/claims.yaml")["needs"].values())),
    "tools/simulator/expansion.py": ("[A-Za-z_][A-Za-z0-9_]*",),  # and globs: length and text are bounded
    "tools/simulator/filters.py": (),  # made of a few parts, for texts of at most 128 characters
    "tools/simulator/shell_builtins.py": ("[A-Za-z_][A-Za-z0-9_]*",),
    "tools/simulator/shell_process.py": (r"\bbash\b",),
    "tools/simulator/local_pod.py": (r"(?<![\w.-])(?<!(?<!/)/)(?:a|b)(?:\.[a-z0-9.-]*[a-z0-9])?(?![\w-])",),
    "tools/simulator/volumes.py": (),
    "training/device/peaks.py": (r"\ba\b",),
    "training/pod/rendezvous.py": ("[0-9a-f]{32}",),
    "training/prove/view/tree.py": (),  # those of tools/core/secret_patterns.py, as the plan names them
    "training/run/trainer_logs.py": (),  # found in its tables
}  # fmt: skip
Found = dict[tuple[str, int], set[str]]  # pattern and flags: the methods that use it


class Late(Exception):
    """A search took longer than LIMIT."""


def sources() -> Iterator[tuple[str, ast.Module]]:
    for top in ("tools", "training"):
        for path in sorted((ROOT / top).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def calls_of(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in RE_CALLS:
            yield node


@dataclasses.dataclass(frozen=True)
class Module:
    """A module: the names that it imports, and the methods of patterns that it calls."""

    path: str
    tree: ast.Module
    imported: set[str]
    used: set[tuple[str, bool, str]]  # the name before the dot, whether it is no attribute itself, the method

    @classmethod
    def of(cls, path: str, tree: ast.Module) -> Module:
        nodes = list(ast.walk(tree))
        froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        imported = {f"{node.module}.{one.name}" for node in froms for one in node.names}
        used = set()
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr in CALLS - {"compile"}:
                value, plain = node.value, isinstance(node.value, ast.Name)
                name = value.id if isinstance(value, ast.Name) else getattr(value, "attr", "")
                used.add((name, plain, node.attr))
        return cls(path, tree, imported, used)


def dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def uses(modules: list[Module], path: str) -> dict[str, set[str]]:
    """Return the methods that are called on each name of a module, there and where it is imported."""
    found: dict[str, set[str]] = defaultdict(set)
    own = dotted(path)
    for module in modules:
        for name, plain, method in module.used:
            if module.path == path or not plain or f"{own}.{name}" in module.imported:
                found[name].add(method)
    return found


def patterns_in(
    value: Any, name: str, methods: dict[str, set[str]], seen: set[int]
) -> Iterator[tuple[re.Pattern[str], set[str]]]:
    """Yield the patterns of a value and of the tables and dataclasses in it."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, re.Pattern):
        yield value, methods.get(name) or {"search"}
    elif isinstance(value, dict | list | tuple | set | frozenset):
        for part in list(value.values() if isinstance(value, dict) else value):
            yield from patterns_in(part, "", methods, seen)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from patterns_in(getattr(value, field.name, None), field.name, methods, seen)
    elif isinstance(value, type):
        for key, part in list(vars(value).items()):
            yield from patterns_in(part, key, methods, seen)


def every() -> tuple[Found, set[str]]:
    """Return all patterns, and the files that make patterns of variable text in functions."""
    modules = [Module.of(path, tree) for path, tree in sources()]
    found: Found = defaultdict(set)
    variable = set()
    for module in modules:
        calls = list(calls_of(module.tree))
        functions = [f for f in ast.walk(module.tree) if calls and isinstance(f, ast.FunctionDef | ast.Lambda)]
        inside = {id(call) for function in functions for call in calls_of(function)}
        for call in calls:
            flags = [word.value for word in call.keywords if word.arg == "flags"]
            value = eval(compile(ast.Expression(flags[0]), module.path, "eval"), {"re": re}) if flags else 0
            if isinstance(call.args[0], ast.Constant):
                if isinstance(text := call.args[0].value, str) and call.func.attr != "compile":  # type: ignore[attr-defined]
                    pattern = re.compile(text, value)
                    found[pattern.pattern, pattern.flags].add(call.func.attr)  # type: ignore[attr-defined]
            elif id(call) in inside:
                variable.add(module.path)
        if calls and module.path != "tools/bootstrap.py":
            methods = uses(modules, module.path)
            for pattern, used in in_module(importlib.import_module(dotted(module.path)), methods):
                found[pattern.pattern, pattern.flags] |= used
    for text in (text for texts in GIVEN.values() for text in texts):
        found[text, re.compile(text).flags].add("search")
    for row in build_failures.patterns():
        found[row.lines.pattern, row.lines.flags].add("search")
    return found, variable


def in_module(module: ModuleType, methods: dict[str, set[str]]) -> Iterator[tuple[re.Pattern[str], set[str]]]:
    for name, value in list(vars(module).items()):
        if not isinstance(value, type) or value.__module__ == module.__name__:
            for pattern, used in patterns_in(value, name, methods, set()):
                if isinstance(pattern.pattern, str):
                    yield pattern, used


def sample(tree: Any) -> str:
    """Return a short text that the pattern may match."""
    return "".join(_one(code, value) for code, value in tree)


def _one(code: Any, value: Any) -> str:
    if code is codes.LITERAL:
        return chr(value)
    if code is codes.IN:
        kind, inner = value[0]
        return "~" if kind is codes.NEGATE else chr(inner[0]) if kind is codes.RANGE else _one(kind, inner)
    if code is codes.CATEGORY:
        return "1" if "DIGIT" in str(value) else " " if str(value).endswith("CATEGORY_SPACE") else "a"
    if code is codes.BRANCH:
        return sample(value[1][0])
    if code is codes.SUBPATTERN:
        return sample(value[3])
    if code is codes.ATOMIC_GROUP:
        return sample(value)
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        return sample(value[2]) * max(1, min(value[0], 50))
    return "a" if code in (codes.ANY, codes.NOT_LITERAL) else ""


def attacks(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield what comes before, and what is repeated: each repetition of the pattern, and each branch."""
    for code, value in tree:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            if value[1] >= 20:
                yield from ((before, text) for text in (sample(value[2]), " ", "1", "a"))
            yield from attacks(value[2], before)
        elif code is codes.BRANCH:
            for branch in value[1]:
                yield from (("", sample(branch)), ("", sample(branch) + " "))
                yield from attacks(branch, before)
        elif code in (codes.SUBPATTERN, codes.ATOMIC_GROUP, codes.ASSERT, codes.ASSERT_NOT):
            yield from attacks(
                value[3] if code is codes.SUBPATTERN else value if code is codes.ATOMIC_GROUP else value[1],
                before,
            )
        before += _one(code, value)
    yield from (("", before), ("", before + " "))


def cpu(run: Callable[[str], object], text: str) -> float:
    start = time.thread_time()
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        run(text)
    except Late:
        return 4 * LIMIT
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return time.thread_time() - start


def is_linear(run: Callable[[str], object], before: str, repeated: str) -> bool:
    def text(length: int) -> str:
        return (before + repeated * (length // len(repeated) + 1))[:length] + "\0"

    # Another process may make a measurement longer, never shorter: the shortest of several counts.
    first = min(cpu(run, text(FIRST)) for _ in range(3))
    if first < HARMLESS or first > LIMIT:
        return first < HARMLESS
    short = long = math.inf
    for attempt in range(TRIES):
        time.sleep(0.2 * attempt)
        short = min(short, cpu(run, text(SHORT)))
        long = min(long, cpu(run, text(LONG)))
        if long < NOTICEABLE or (long < LIMIT and long < RATIO * short):
            return True
    return False


def slow(pattern: re.Pattern[str], methods: set[str]) -> Iterator[str]:
    """Yield the attacks that take more than linear time."""
    whole = {"sub", "subn", "split", "findall", "finditer"}
    found = {one for one in attacks(parser.parse(pattern.pattern, pattern.flags)) if one[1]}
    for before, repeated in sorted(found | {("", text) for text in FRAGMENTS}):
        for method in sorted({"findall" if name in whole else name for name in methods}):
            if not is_linear(getattr(pattern, method), before, repeated):
                yield f"{method} of {pattern.pattern[:80]!r} in {before[:40]!r} + n * {repeated[:40]!r}"


def _late(number: int, frame: FrameType | None) -> None:
    raise Late


@pytest.fixture(autouse=True)
def _timer() -> Iterator[None]:
    before = signal.signal(signal.SIGPROF, _late)
    yield
    signal.signal(signal.SIGPROF, before)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_pattern_is_linear(part: int) -> None:
    found, variable = every()
    assert len(found) > 300
    assert variable <= set(GIVEN), "patterns of variable text; add to GIVEN what they can be"
    patterns = sorted(found.items(), key=lambda one: one[0])[part::PARTS]
    late = (one for (text, flags), used in patterns for one in slow(re.compile(text, flags), used))
    assert not list(itertools.islice(late, 20))


@pytest.mark.parametrize(
    "text",
    [r"(a+)+$", r"\w+Error", r"loss\s*[:=]?\s*\[?\s*\d", r"checkpoint.*(?:missing|corrupt)"],
)  # fmt: skip
def test_control_finds_slow_patterns(text: str) -> None:
    assert next(slow(re.compile(text), {"search"}), None) is not None
