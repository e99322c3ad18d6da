"""Launch commands: what a shell text and torchrun's options mean, without running them."""

from __future__ import annotations

import pytest

from tools.simulator import torchrun
from tools.simulator.shell import NotSimple, simple_command
from tools.simulator.torchrun import BadOptions


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("torchrun a.py", ["torchrun", "a.py"]),
        ("exec torchrun \\\n  --nnodes $N \\\n  a.py\n", ["torchrun", "--nnodes", "2", "a.py"]),
        ("torchrun '--x=$N' \"--y=${N}\" a\\ b", ["torchrun", "--x=$N", "--y=2", "a b"]),
        ('torchrun ${NONE:-c10d} $NONE "$NONE" ${N:-9}', ["torchrun", "c10d", "", "2"]),
        ("torchrun $MANY x", ["torchrun", "--a", "--b", "x"]),
        ("torchrun a.py # the end", ["torchrun", "a.py"]),
        ("K=v torchrun a.py", ["torchrun", "a.py"]),
    ],
)
def test_one_simple_command(text: str, words: list[str]) -> None:
    found, values = simple_command(text, {"N": "2", "MANY": " --a  --b"})
    assert found == words
    assert ("K" in values) == text.startswith("K=")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cd /app && torchrun a.py", "the operator &"),
        ("torchrun a.py; echo done", "the operator ;"),
        ("torchrun a.py\necho done", "several commands"),
        ("torchrun a.py > log", "the operator >"),
        ("torchrun $(hostname)", "an expansion"),
        ('torchrun "`hostname`"', "runs another command"),
        ("torchrun 'a", "a quote is not closed"),
        ("torchrun ${N%x}", "an expansion"),
        ("torchrun *.py", "a file pattern"),
        ("exec", "no command"),
    ],
)
def test_more_than_a_simple_command(text: str, reason: str) -> None:
    with pytest.raises(NotSimple, match=reason):
        simple_command(text, {})


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "--nnodes=3", "-m", "a.b", "--nnodes=9"],
        ["/opt/conda/bin/torchrun", "--nnodes", "3", "a.py"],
        ["python3.11", "-u", "-X", "dev", "-m", "torch.distributed.run", "--nnodes=3", "a.py"],
        ["python", "-m", "torch.distributed.launch", "--use_env", "--nnodes=3", "a.py"],
        ["bash", "-euc", "exec torchrun --nnodes=3 a.py"],
        ["/bin/sh", "-c", "torchrun --nno=$THREE a.py"],
    ],
)
def test_known_launchers(command: list[str]) -> None:
    found = torchrun.read(command, {"PET_NNODES": "1:2", "PET_MAX_RESTARTS": "5", "THREE": "3"})
    assert found.torchrun is not None
    assert found.torchrun.nodes() == (3, 3)  # the command line wins over PET_NNODES
    assert found.torchrun.values["max-restarts"] == "5"
    assert "a.py" not in found.torchrun.words


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["accelerate", "launch", "a.py"], "neither torchrun nor python"),
        (["python", "-m", "deepspeed.launcher", "a.py"], "another launcher"),
        (["bash", "/app/start.sh"], "it runs a file"),
        (["bash", "-c", "pip install x && torchrun a.py"], "the operator &"),
    ],
)
def test_unknown_launchers_say_what_was_looked_at(command: list[str], reason: str) -> None:
    found = torchrun.read(command, {})
    assert reason in found.unknown
    assert found.shown == " ".join(command)


def test_plain_python_is_no_launcher() -> None:
    for command in (
        ["python", "train.py"],
        ["python", "-m", "pkg.train"],
        ["bash", "-c", "exec python train.py"],
    ):
        found = torchrun.read(command, {})
        assert (found.torchrun, found.unknown) == (None, "")


@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        (["--nnodes=a"], {}, "neither N nor MIN:MAX"),
        (["--nnodes=3:2"], {}, "MIN <= MAX"),
        (["--no-such"], {}, "torchrun: "),
        ([], {"PET_STANDALONE": ""}, "PET_STANDALONE is ''"),
        ([], {"PET_NODE_RANK": "x"}, "--node-rank 'x' is not an integer"),
    ],
)
def test_what_torchrun_would_refuse(words: list[str], variables: dict[str, str], message: str) -> None:
    def nodes() -> None:
        found = torchrun.read(["torchrun", *words, "a.py"], variables).torchrun
        assert found is not None
        found.nodes()

    with pytest.raises(BadOptions, match=message):
        nodes()


def test_options_are_those_of_the_installed_torchrun() -> None:
    from torch.distributed.run import get_args_parser

    known = {f"--{name}" for name in (*torchrun.OPTIONS, *torchrun.FLAGS)} | set(torchrun.SHORT.values())
    for action in get_args_parser()._actions:
        names = [text for text in action.option_strings if text not in ("-h", "--help")]
        for text in names:
            assert text.replace("_", "-") in known, f"torchrun has an option that is not known here: {text}"
        long = next((text[2:] for text in names if text.startswith("--")), None)
        if long is not None:
            takes_value = action.nargs != 0
            assert takes_value == (long in torchrun.OPTIONS), long
        if long in torchrun.OPTIONS and isinstance(action.default, str):
            assert torchrun.OPTIONS[long] == action.default, long


@pytest.mark.parametrize(
    "command",
    [
        ["python", "-m", "training.entrypoint", "torchrun", "--nnodes=3", "a.py"],
        ["/venv/bin/python3", "-u", "-m", "training.entrypoint", "torchrun", "--nnodes=3", "a.py"],
        ["sh", "-c", "exec python -m training.entrypoint torchrun --nnodes=3 a.py"],
        ["python", "-m", "training.entrypoint", "sh", "-c", "exec torchrun --nnodes=3 a.py"],
    ],
)
def test_the_entrypoint_is_seen_through(command: list[str]) -> None:
    found = torchrun.read(command, {})
    assert found.torchrun is not None
    assert found.torchrun.nodes() == (3, 3)
    assert found.behind_entrypoint


def test_the_entrypoint_alone_starts_nothing() -> None:
    assert torchrun.read(["python", "-m", "training.entrypoint"], {}).unknown == "an empty command"
    assert not torchrun.read(["torchrun", "a.py"], {}).behind_entrypoint
