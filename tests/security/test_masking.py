"""No command prints a secret: tokens of every known shape go through every command that echoes its input."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.core.test_secret_patterns import AFTER, SAMPLES
from tests.job.conftest import Cluster, NewWorld, Yard
from tools import cli
from tools.aws import session
from tools.cells import kustomize
from tools.cli import invoke
from tools.core import output, repo

PLANTED = [f"{before}{value}{AFTER.get(kind, '')}" for kind, before, value in SAMPLES]
# What must not be printed: of a key with several lines, each line.
VALUES = [max(value.splitlines(), key=len) for _, _, value in SAMPLES]
ECHO = '#!/bin/sh\necho "no: $*" >&2\nhead -c 100000 >&2\nexit 1\n'
Print = Callable[..., str]
pytestmark = pytest.mark.timeout(600)  # the first test may build kustomize


Named = tuple[tuple[str, ...], click.Command]


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[Named]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        elif command is not None:
            yield (*words, name), command


COMMANDS = dict(commands(cli.yard))


def calls(words: tuple[str, ...], command: click.Command, texts: Iterator[str]) -> Iterator[list[str]]:
    """Yield calls of a command with a secret in one parameter, and in the name of an option."""
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    options = [one for one in command.params if isinstance(one, click.Option) and not one.is_flag]
    required = {one.opts[0]: "x" for one in options if one.required or one.opts[0] == "--cluster"}
    plain = ["x"] * len(arguments)
    for index in range(len(arguments)):
        yield [*words, *_pairs(required), "--", *plain[:index], next(texts), *plain[index + 1 :]]
    for option in options:
        yield [*words, *_pairs(required | {option.opts[0]: next(texts)}), "--", *plain]
    yield [*words, f"--{VALUES[0]}"]


def _pairs(options: dict[str, str]) -> list[str]:
    return [word for pair in options.items() for word in pair]


@pytest.fixture(scope="module")
def renderer() -> kustomize.Renderer:
    """What renders on this machine: the commands below do not find its kubectl."""
    return kustomize.ensure(repo.root(), print)


@pytest.fixture
def printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], renderer: kustomize.Renderer
) -> Print:
    """A function that runs a command and returns all that it and its children print.

    kubectl and the engines repeat their arguments and standard input, and then fail.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("kubectl", "docker", "podman", "aws", "eksctl", "cosign", "crane", "sops"):
        (folder / name).write_text(ECHO)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name, value in {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a",
                        "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-west-2"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(kustomize, "ensure", lambda root, say: renderer)
    monkeypatch.setattr(session, "ATTEMPTS", 1)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.chdir(tmp_path)

    def no_terminal(*_: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(os, "execvp", no_terminal)

    def run(*words: str, given: str = "") -> str:
        with monkeypatch.context() as patch, (tmp_path / "stdin").open("w+") as stdin:
            stdin.write(given)
            stdin.seek(0)
            patch.setattr(sys, "stdin", stdin)
            invoke(list(words))
        shown = capfd.readouterr()
        return shown.out + shown.err

    return run


def leaked(text: str) -> list[str]:
    return [kind for (kind, _, _), value in zip(SAMPLES, VALUES, strict=True) if value in text]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_echoes_a_secret_of_its_command_line(words: tuple[str, ...], printed: Print) -> None:
    start = len(" ".join(words)) + 7 * len(words)
    texts = itertools.islice(itertools.cycle(PLANTED), start % len(PLANTED), None)
    shown = ""
    for call in calls(words, COMMANDS[words], texts):
        shown = printed(*call)
        assert not leaked(shown), call
    assert "***" in shown, "control: the last call's option is echoed"


def manifest(text: str) -> str:
    """A job with a text in all places that rules read."""
    env = [
        {"name": "PLAIN", "value": text},
        {"name": "NCCL_DEBUG", "value": text},
        {"name": text, "value": "1"},
    ]
    container = {
        "name": "pytorch", "image": f"registry.example.com/{text}", "env": env, "workingDir": text,
        "command": ["sh", "-c", f"export A={text}; torchrun --rdzv-endpoint={text} train.py {text} | tee x"],
        "args": [text, f"--token={text}"],
        "ports": [{"name": text, "containerPort": text}],
        "resources": {"limits": {"nvidia.com/gpu": text, text: 1}},
        "volumeMounts": [{"name": text, "mountPath": text}],
    }  # fmt: skip
    spec = {"containers": [container], "restartPolicy": text, "serviceAccountName": text,
        "volumes": [{"name": text, "hostPath": {"path": text}}], "nodeSelector": {"a": text}}  # fmt: skip
    replica = {"replicas": 2, "restartPolicy": text, "template": {"spec": spec}}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "a", "labels": {"a": text}, "annotations": {"a": text}},
        "spec": {"pytorchReplicaSpecs": {"Worker": replica}, "nprocPerNode": text},
    }
    return json.dumps(job)


@pytest.mark.parametrize("number", range(len(SAMPLES)), ids=[str(kind) for kind, _, _ in SAMPLES])
def test_no_check_of_a_file_prints_a_secret_in_it(number: int, printed: Print, tmp_path: Path) -> None:
    text = PLANTED[number]
    files = {
        "job.yaml": manifest(text),
        "pod.yaml": json.dumps({"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": text}}),
        "broken.yaml": f"a:\n  b: [{text}\n  c: '{text}\n",
        "tag.yaml": f"kind: !<{text}> x\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    for name in files:
        for command in (["preflight", "-f"], ["wiring", "-f"]):
            for option in ([], ["--json"]):
                assert not leaked(printed(*command, name, *option)), (command, name)
    shown = printed("preflight", "-f", "-", "-v", given=manifest(text))
    assert "***" in shown, "control: the manifest is read and quoted"
    assert not leaked(shown)
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": "{text}"}}\nstep {text} loss: {text}\n')
    assert not leaked(printed("job", "metrics", "metrics.jsonl"))


def test_no_check_of_a_dockerfile_prints_a_secret_in_it(printed: Print, tmp_path: Path) -> None:
    lines = ["FROM python:3.12-slim"]
    for text in (text.replace("\n", "\\n") for text in PLANTED):
        lines += [
            f"ARG A={text}",
            f"ENV B={text}",
            f"RUN curl {text} && pip install {text}",
            f"COPY {text} /",
        ]
        lines += [
            f"LABEL c={text}",
            f"{text} is not an instruction",
            f"FROM {text}",
            f'CMD ["{text}"]',
            f"USER {text}",
        ]
    (tmp_path / "Dockerfile").write_text("\n".join(lines))
    for words in (("check", "-v"), ("check", "--json"), ("fix",), ("fix", "--json")):
        shown = printed("image", words[0], ".", *words[1:])
        assert not leaked(shown), words
        assert "***" in shown


@pytest.mark.parametrize("kind", ["logs", "first failure", "json", "why"])
def test_logs_are_masked_unless_asked_for(kind: str, world: NewWorld, cluster: Cluster, yard: Yard) -> None:
    made = world()
    made.crash_looping(1, 1, *PLANTED[:-14], f"RuntimeError: {PLANTED[0]}")
    cluster(made)
    words = ["why"] if kind == "why" else ["logs", *(["--" + kind.replace(" ", "-")] if kind != "logs" else [])]
    shown = yard.out(*words, code=1 if kind == "why" else 3)
    assert "***" in shown
    assert not leaked(shown)
    if kind != "why":
        assert VALUES[0] in yard.out(*words, "--no-mask", code=3)


@pytest.mark.parametrize("number", range(len(SAMPLES)), ids=[str(kind) for kind, _, _ in SAMPLES])
def test_no_unexpected_error_prints_a_secret(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise KeyError(f"before\n{PLANTED[number]}\nafter")
    except KeyError as problem:
        output.exception(type(problem), problem, problem.__traceback__)
    printed = capsys.readouterr().err
    assert "***" in printed
    assert not leaked(printed)


def test_data_is_printed_as_it_is_and_messages_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    """A manifest on standard output is applied by kubectl. Everything else is read by people."""
    token = VALUES[0]
    output.block(f"value: {token}\n", raw=True)
    output.data({"value": token}, raw=True)
    output.line(token, raw=True)
    assert capsys.readouterr().out.count(token) == 3
    output.block(f"value: {token}\n")
    output.data({"value": (token, Path(token))})
    output.line(f"{output.short('x' * 80 + token)} {token}")
    output.table([["a", token]])
    output.notes(token)
    printed = capsys.readouterr()
    assert token[:12] not in printed.out + printed.err
    assert "this text differs" in printed.err
