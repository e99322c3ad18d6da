"""The Makefile: targets of one line, a help that lists them all, and signals that reach yard directly."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from tools.cli import yard

ROOT = Path(__file__).resolve().parents[2]
BARE = ("help", "ci", "clean", "purge", "bench-gpu")  # install nothing; bench-gpu takes the machine's own torch
JOB = yard.get_command(click.Context(yard), "job")
assert isinstance(JOB, click.Group)
TARGET = re.compile(r"^([a-z][a-z0-9%-]*):(?!=)")


def recipes() -> dict[str, list[str]]:
    """Return each target's recipe lines."""
    found: dict[str, list[str]] = {}
    target = ""
    for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines():
        match = TARGET.match(line)
        if match:
            target = match.group(1)
            found[target] = []
        elif line.startswith("\t"):
            found[target].append(line.strip())
    return found


class Made(NamedTuple):
    """A finished make."""

    pid: int
    code: int
    stdout: str
    stderr: str


def make(*arguments: str, where: Path = ROOT, **environment: str) -> Made:
    """Run make without the variables of an outer make."""
    outer = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")
    env = {name: value for name, value in os.environ.items() if name not in outer} | environment
    command = ["make", *arguments]
    with subprocess.Popen(
        command, cwd=where, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        stdout, stderr = process.communicate(timeout=180)
    return Made(process.pid, process.returncode, stdout, stderr)


def test_every_target_is_one_silent_line() -> None:
    """Logic belongs in yard, where it can be tested."""
    found = recipes()
    assert {"train", "test", "ci"} <= set(found)
    for target, lines in found.items():
        assert len(lines) == 1, f"{target}: {lines}"
        assert lines[0].startswith("@"), f"{target} echoes its command"


def test_help_lists_every_target_in_groups() -> None:
    """`make` without a target prints the help."""
    shown = make()
    assert shown.code == 0, shown.stderr
    listed = re.findall(r"(?m)^  ([a-z%-]+)  +\S", shown.stdout)
    assert sorted(listed) == sorted(recipes())
    assert len(re.findall(r"(?m)^[A-Z]\w.*$", shown.stdout)) >= 3, "no groups"


def test_every_target_is_phony() -> None:
    """A file called `test` must not disable a target. A pattern depends on `setup`, so it always runs."""
    phony = re.search(r"(?m)^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert phony is not None
    assert sorted(phony.group(1).split()) == sorted(target for target in recipes() if "%" not in target)


@pytest.mark.parametrize("target", sorted(recipes()))
def test_every_target_expands(target: str) -> None:
    """`make -n` expands a recipe without running it, and shows the lock that the target installs."""
    shown = make("-n", target.replace("%", "logs"))
    assert shown.code == 0, shown.stderr
    assert shown.stdout.strip()
    help_text = make().stdout
    ours = f"  {target} " in help_text[help_text.index("Work on trainyard") :]
    lock = (
        "requirements-track.lock"
        if target == "setup-track"
        else "requirements-dev.lock"
        if ours
        else "requirements.lock"
    )
    assert (f"tools/bootstrap.py {lock} " in shown.stdout) == (target not in BARE)


@pytest.mark.parametrize("command", JOB.list_commands(click.Context(JOB)))
def test_every_command_of_a_job_is_a_target(command: str) -> None:
    """`make job`, `make why`, or `make job-COMMAND`."""
    shown = make("-n", f"job-{command}", "JOB=a-job", "ARGS=-n team-a").stdout
    assert shown.splitlines()[-1].strip() == f"exec .venv/bin/yard job {command} a-job -n team-a"


def test_a_job_in_development_and_an_overlay() -> None:
    shown = make("-n", "job", "DEV=1", "MODEL=bert-tiny").stdout
    assert shown.splitlines()[-1].strip() == "exec .venv/bin/yard job submit overlays/cpu/bert-tiny --dev"
    shown = make("-n", "job", "KIND=trainjob").stdout
    assert shown.splitlines()[-1].strip() == "exec .venv/bin/yard job submit overlays/cpu/llama-tiny --feature trainjob"
    shown = make("-n", "image-overlay", "ON=r.example/mine:1").stdout
    command = 'exec .venv/bin/yard image overlay . --on "r.example/mine:1" --push'
    assert shown.splitlines()[-1].strip() == command


def test_arguments_reach_yard() -> None:
    """CELL and ARGS are part of the command line, unchanged."""
    shown = make("-n", "run", "CELL=overlays/p5/other", "ARGS=--set train.steps=5").stdout
    assert ".venv/bin/yard run overlays/p5/other --set train.steps=5" in shown


def test_the_environment_does_not_choose_the_cell() -> None:
    """A variable called MODEL or HW in a user's shell means something else."""
    shown = make("-n", "job", HW="gpu", MODEL="theirs").stdout
    assert shown.splitlines()[-1].strip() == "exec .venv/bin/yard job submit overlays/cpu/llama-tiny"


def test_yard_is_what_make_waits_for(tmp_path: Path) -> None:
    """make starts yard itself, without a shell in between that would not pass a signal on.

    A prompt with quotes arrives unchanged, and another project's PYTHONPATH does not arrive.
    """
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/bootstrap.py").write_text("")
    yard = tmp_path / ".venv/bin/yard"
    yard.parent.mkdir(parents=True)
    yard.write_text('#!/bin/sh\nprintf "%s|" "$PPID" "$@" "path=$PYTHONPATH"\nexit 3\n')
    yard.chmod(0o755)
    prompt = 'it\'s "quoted" & more'
    done = make("sample", "RUN=some-run", f"PROMPT={prompt}", where=tmp_path, PYTHONPATH="/elsewhere")
    assert done.stdout == f"{done.pid}|sample|some-run|--prompt|{prompt}|path=|"
    assert done.code == 2
    assert len(done.stderr.splitlines()) == 1, "one line of make's own, not more"
