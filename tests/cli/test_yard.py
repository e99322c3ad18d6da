"""The `yard` command itself: imports, errors, exit codes; and how `yard sample` finds a run."""

from __future__ import annotations

import errno
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tools import cli
from tools.core import output, repo
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict
from tools.local import preconditions

HEAVY = ("torch", "pydantic", "transformers", "ruamel", "numpy", "kubernetes", "boto3")


def test_help_imports_no_command_and_nothing_heavy() -> None:
    code = (
        "import json, sys; from tools.cli import invoke; invoke(['--help']);"
        "print('\\n' + json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repo.root(), capture_output=True, text=True, check=True)
    shown, _, names = done.stdout.rstrip().rpartition("\n")
    assert not set(HEAVY) & set(json.loads(names))
    for command in cli.COMMANDS.glob("[a-z]*.py"):
        assert f"  {command.stem} " in shown
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("command", sorted(path.stem for path in cli.COMMANDS.glob("[a-z]*.py")))
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"yard {command}" in text.partition("\n")[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "error: no such command: rnu\n  hint: did you mean run?"),
        (["run", "--dryrun", "x"], "error: no such option: --dryrun\n  hint: did you mean --dry-run?"),
        (["run"], "error: give a cell, or a file with -f"),
        (["run", "x", "--nodes", "0"], "error: Invalid value for '--nodes'"),
        (["wiring"], "error: give a cell, or a file with -f"),
        (["wiring", "-f", "/no/such.yaml"], "error: /no/such.yaml: No such file or directory"),
        (["wiring", "x", "--operator-version", "2.0.0"], "error: Invalid value for '--operator-version'"),
        (
            ["run", "x", "--stpes", "5"],
            "error: no such option: --stpes\n  hint: a key of the configuration is set with --set train.steps=VALUE",
        ),
        (
            ["prove", "python", "train.py", "--lr", "3"],
            "error: no such option: --lr\n  hint: did you mean --only?; if COMMAND has it, write -- before COMMAND",
        ),
        (["prove", "--stps", "3", "--", "python", "train.py"], "error: no such option: --stps\n  hint: a key of the"),
        (["sample", "no-such-run", "--prompt", "x"], "error: no such run: no-such-run"),
        (["checkpoint", "list", "./nothere"], "error: ./nothere: no such directory"),
    ],
)
def test_wrong_usage_is_one_error_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.invoke(arguments) == 2
    out, err = capsys.readouterr()
    assert err.startswith(message)
    assert out == ""


def test_a_config_error_is_an_error_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from training.config import ConfigError

    def fail(**_: Any) -> None:
        raise ConfigError("model.yaml:3: wrong")

    monkeypatch.setattr(cli.yard, "main", fail)
    assert cli.invoke([]) == 2
    assert capsys.readouterr().err == "error: model.yaml:3: wrong\n"


def test_what_the_file_system_refuses_is_an_error_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The controls are errors that only a fault of this program can have."""

    def fail(problem: OSError) -> None:
        def main(**_: Any) -> None:
            raise problem

        monkeypatch.setattr(cli.yard, "main", main)

    fail(PermissionError(errno.EACCES, os.strerror(errno.EACCES), "runs/theirs\x1b[31m"))
    assert cli.invoke([]) == 3
    assert capsys.readouterr().err == "error: runs/theirs\\x1b[31m: Permission denied\n"
    fail(OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), "kind: Job\n" * 1000))
    assert cli.invoke([]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: kind: Job\\n")
    assert told.endswith("kind: Job\\n: File name too long\n")
    assert len(told) < 4000
    for fault in (PermissionError(errno.EACCES, "no file is named"), FileNotFoundError(errno.ENOENT, "gone", "x")):
        fail(fault)
        with pytest.raises(type(fault)):
            cli.invoke([])


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.yard, "main", interrupt)
    assert cli.invoke([]) == 130


def test_a_closed_pipe_is_no_traceback() -> None:
    command = f"{sys.executable} -m tools.cli --help | true"
    done = subprocess.run(["bash", "-c", command], cwd=repo.root(), capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_verdicts_print_their_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = Verdict(State.CANNOT_TELL, "who knows", ["looked here"], "look there", {"n": 1})
    output.verdict(verdict)
    assert capsys.readouterr().out == "CANNOT TELL: who knows\n  looked here\n  fix: look there\n"
    output.verdict(verdict, as_json=True)
    assert json.loads(capsys.readouterr().out)["n"] == 1
    assert [state.exit_code for state in (State.PASS, State.FAIL, State.CANNOT_TELL)] == [0, 1, 3]


@pytest.mark.parametrize(("number", "shown"), [
    (0, "0 bytes"), (1, "1 byte"), (1023, "1,023 bytes"), (1024, "1.0 KiB"), (1_500_000, "1.4 MiB"),
    (3 << 30, "3.0 GiB"), (5 << 50, "5,120.0 TiB"),
])  # fmt: skip
def test_bytes_have_binary_units(number: int, shown: str) -> None:
    assert output.size(number) == shown


def test_no_room_on_the_disk_names_both_numbers(tmp_path: Path) -> None:
    preconditions.check_disk(tmp_path / "not" / "yet", parameters=1)
    with pytest.raises(UserError, match=rf"{tmp_path}: [\d.,]+ .iB free, 43,655\.7 TiB are needed"):
        preconditions.check_disk(tmp_path / "not" / "yet", parameters=10**15)


def test_sample_takes_a_run_by_name_and_names_the_nearest(checkout: Any) -> None:
    runs = checkout.root / "local" / "runs"
    assert "error: no run yet" in checkout.yard("sample", "--prompt", "x").stderr
    (runs / "cpu-tiny").mkdir(parents=True)
    wrong = checkout.yard("sample", "cpu-tinny", "--prompt", "x")
    assert (wrong.returncode, "did you mean cpu-tiny?" in wrong.stderr) == (2, True)
    (runs / "other").mkdir()
    several = checkout.yard("sample", "--prompt", "x")
    assert "hint: runs: cpu-tiny, other" in several.stderr
    empty = checkout.yard("sample", "other", "--prompt", "x")
    assert "no committed checkpoint yet" in empty.stderr
    assert "Traceback" not in empty.stderr


def commands(group: click.Group, context: click.Context) -> Iterator[click.Command]:
    """Yield the commands of a group and of the groups below it."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield from commands(command, context) if isinstance(command, click.Group) else (command,)


def test_each_parameter_of_a_command_has_its_words() -> None:
    given = {"kubectl", "spec", "session", "knobs", "options", "place"}  # what decorators make of their own options
    for command in commands(cli.yard, click.Context(cli.yard)):
        assert command.callback is not None
        wanted = set(inspect.signature(inspect.unwrap(command.callback)).parameters) - given
        assert wanted <= {parameter.name for parameter in command.params}, command.name
        assert all(one.help for one in command.params if isinstance(one, click.Option)), command.name
