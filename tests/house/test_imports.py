"""Imports follow the table of arrows: a package imports from lower levels only."""

from __future__ import annotations

import ast
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tools.cli import yard
from tools.cli._lazy_group import LazyGroup

ROOT = Path(__file__).resolve().parents[2]
# Packages from the highest level to the lowest. Packages of one level do not import each other.
TOOLS = """cli | gitops job | prove | cluster image preflight local new stage | cells simulator | plan | workload
    | kube aws facts | core"""
TRAINING = """pretrain finetune bert entrypoint precompile checkpoints compare agent | prove | pod | trainer | upload
    | export | prepare sample stage track | trackers | weights | data models | task | distributed | device | neuron
    | config checkpoint | run remote"""
LEVELS = [
    *(("tools", names) for names in TOOLS.split("|")),
    *(("training", names) for names in TRAINING.split("|")),
]
LEVEL = {f"{top}.{name}": number for number, (top, names) in enumerate(LEVELS) for name in names.split()}
# What tools may import of training: modules that do not load torch. Two places need more.
SHARED = (
    *("training.config.", "training.models.published.", "training.run."),
    *("training.checkpoint.layout.", "training.checkpoint.errors.", "training.checkpoints.", "training.remote."),
    *("training.agent.build.", "training.stage.offer."),
    *("training.prove.plan.", "training.prove.records."),
)
EXTRA = {
    "tools.cli.data.": ("training.data.",),
    "tools.cli.job.metrics.": ("training.neuron.compile_log.",),
}


COMMAND = "training.agent.trainyard.__main__"  # the yard command of a wheel


def imports(path: Path, known: dict[str, Path]) -> Iterator[tuple[str, str | None]]:
    """Yield our modules that a file imports, in functions too, each with its alias."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for name in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            full = f"{node.module}.{name.name}" if isinstance(node, ast.ImportFrom) else name.name
            if full.startswith(("tools.", "training.")):
                is_module = full in known or isinstance(node, ast.Import)
                yield (full, name.asname) if is_module else (full.rpartition(".")[0], None)


def fault(source: str, target: str, alias: str | None) -> str:
    """Return why `source` may not import `target` under this alias, or an empty text."""
    package, _, name = target.rpartition(".")
    user, used = f"{source}.", f"{target}."
    here, there = (".".join(one.split(".")[:2]) for one in (source, target))
    if alias and not alias.startswith(name) and alias != f"{package.rpartition('.')[2]}_{name}":
        return f"the alias {alias} hides the module's name"
    if user.startswith(("tools.job.snapshot.", "tools.job.metrics.")) and "job.diagnosis." in used:
        return "only diagnosis imports diagnosis"
    if user.startswith("tools.") and used.startswith("training."):
        extra = (packages for name, packages in EXTRA.items() if user.startswith(name))
        return "" if used.startswith(sum(extra, SHARED)) else "not what tools may use of training"
    if here == there or "." not in here or "." not in there or source == COMMAND:
        return ""
    if not {here, there} <= set(LEVEL):
        return "not in the table"
    return "" if LEVEL[here] < LEVEL[there] else "the arrow points up or sideways"


def violations(root: Path) -> list[str]:
    """Return every import that the table does not allow, and the first cycle between files."""
    files = [path for top in ("tools", "training") for path in (root / top).rglob("*.py")]
    names = (".".join(path.relative_to(root).with_suffix("").parts) for path in files)
    known = {name.removesuffix(".__init__"): path for name, path in zip(names, files, strict=True)}
    edges = {name: set(imports(path, known)) for name, path in known.items()}
    pairs = [(name, target, fault(name, target, alias)) for name in edges for target, alias in edges[name]]
    found = [f"{source} -> {target}: {reason}" for source, target, reason in pairs if reason]
    graph = {name: {target for target, _ in edges[name]} - {name} for name in edges}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as problem:
        found.append(f"cycle: {' -> '.join(problem.args[1])}")
    return sorted(found)


def test_imports_follow_the_table() -> None:
    assert "\n".join(violations(ROOT)) == ""


@pytest.mark.parametrize(
    ("path", "line", "reason"),
    [
        ("tools/core/a.py", "from tools.facts.eks import a", "up or sideways"),
        ("tools/kube/a.py", "def f():\n    import tools.aws.session", "up or sideways"),
        ("tools/job/metrics/a.py", "import tools.job.diagnosis", "only diagnosis imports"),
        ("tools/image/a.py", "from training.trainer import x", "not what tools may use"),
        ("training/run/a.py", "import tools.core.repo", "up or sideways"),
        ("tools/mine/a.py", "import tools.core.repo", "not in the table"),
        ("tools/job/a.py", "from tools.core import repo as house", "hides the module's name"),
        ("tools/core/output.py", "from tools.core import repo", "cycle: "),
    ],
)
def test_a_planted_violation_is_found(path: str, line: str, reason: str, tmp_path: Path) -> None:
    for name, text in (("tools/core/repo.py", "import tools.core.output"), (path, line)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (found,) = violations(tmp_path)
    assert reason in found


def misplaced(group: click.Group, package: str) -> Iterator[str]:
    """Yield the commands of a group that are not in the file of their name."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        module = f"{package}.{name.replace('-', '_')}"
        if isinstance(command, LazyGroup):
            yield from misplaced(command, module) if command.package == module else (module,)
            continue
        own = getattr(sys.modules.get(module), "command", None)
        if own is None or command is None or own is not command.callback:
            yield module


def test_each_command_is_in_the_file_of_its_name() -> None:
    """`yard A B` is tools/cli/A/B.py."""
    planted = click.Group(commands={"a": click.Command("a")})
    assert list(misplaced(yard, "tools.cli")) == []
    assert list(misplaced(planted, "tools.cli")) == ["tools.cli.a"]
