"""Cluster facts: what is filled in, what is refused with its place, and that Flux fills in the same."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.parts.alone import alone
from tools import cli
from tools.cells.kustomize import Renderer
from tools.cluster import cluster_env, platform
from tools.cluster.cluster_env import Fact
from tools.core import go_build, repo
from tools.core.errors import UserError

Parse = Callable[[str], list[dict[str, Any]]]

CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: one\ndata:\n"
# Text, facts, and the result.
CASES = [
    ("a ${X} b", {"X": "1"}, "a 1 b"),
    ("${X}${X}", {"X": "1"}, "11"),
    ("$${X}", {"X": "1"}, "${X}"),
    ("$$${X}", {"X": "1"}, "$1"),
    ("$$$${X}", {"X": "1"}, "$${X}"),
    ("$X $(X) $", {"X": "1"}, "$X $(X) $"),
    ("$$(X) $$X x$$", {"X": "1"}, "$(X) $X x$"),
    ("${P}", {"P": "p$a$$s${X}w\\d", "X": "1"}, "p$a$$s${X}w\\d"),
    ("${_a1}", {"_a1": "é"}, "é"),
]


def make(root: Path, data: str, env: str, part: str = "storage") -> None:
    """Write a cluster `c` with one part, a ConfigMap with `data` (indented lines) in base/storage/x."""
    for path, text in {
        f"clusters/c/{part}/kustomization.yaml": "resources: [../../../base/storage/x]\n",
        "base/storage/x/kustomization.yaml": "resources: [one.yaml]\n",
        "base/storage/x/one.yaml": CONFIG_MAP + data,
        "clusters/c/cluster.env": env,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")


def rendered(root: Path, renderer: Renderer) -> str:
    return platform.render(root, platform.load(root, "c"), renderer)


def refused(root: Path, renderer: Renderer) -> UserError:
    with pytest.raises(UserError) as caught:
        rendered(root, renderer)
    return caught.value


@pytest.mark.parametrize(("text", "values", "expected"), CASES)
def test_substitution(text: str, values: dict[str, str], expected: str) -> None:
    facts = {name: Fact(value, 1) for name, value in values.items()}
    assert platform.substitute(text, facts) == expected


def test_flux_makes_the_same_of_each_text(
    flux: Callable[[list[dict[str, Any]]], list[dict[str, str]]],
) -> None:
    """The module of Flux's kustomize-controller gives the same results."""
    answers = flux([{"text": text, "vars": values} for text, values, _ in CASES])
    assert [answer["text"] for answer in answers] == [expected for _, _, expected in CASES]
    (unset,) = flux([{"text": "${Y}", "vars": {}}])
    assert "not set" in unset["error"]


def test_flux_makes_the_same_of_the_example(
    flux: Callable[[list[dict[str, Any]]], list[dict[str, str]]], renderer: Renderer
) -> None:
    """The output of the command equals Flux's substitution of the same build byte for byte."""
    found = platform.load(repo.root(), "example")
    values = {name: fact.value for name, fact in found.facts.items()}
    parts = [part for part in found.parts if part.name != "plugins"]  # test_plugins_and_storage.py has those
    assert len(parts) == 2
    for part in parts:
        (answer,) = flux([{"text": renderer.build(part), "vars": values}])
        ours = platform.render(repo.root(), platform.load(repo.root(), f"example/{part.name}"), renderer)
        assert ours == answer["text"]
        assert "${" not in ours


def test_values_arrive_whole(tmp_path: Path, renderer: Renderer, objects: Parse) -> None:
    """A `$` in a password stays, and a name in a value is not replaced."""
    password = "p$a$$s${OTHER}w$(x)"
    make(tmp_path, "  password: ${PASSWORD}\n  text: $${OTHER} $HOME\n", f"PASSWORD={password}\nOTHER=1\n")
    (one,) = objects(rendered(tmp_path, renderer))
    assert one["data"] == {"password": password, "text": "${OTHER} $HOME"}


def test_only_listed_names_are_known(tmp_path: Path, renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the process are not facts."""
    monkeypatch.setenv("FROM_OUTSIDE", "value")
    make(tmp_path, "  a: x\n  b: ${FROM_OUTSIDE}\n", "OTHER=1\n")
    problem = refused(tmp_path, renderer)
    assert problem.message.endswith("one.yaml:7: ${FROM_OUTSIDE} is not set in " + str(env(tmp_path)))


def env(root: Path) -> Path:
    return root / "clusters/c/cluster.env"


def test_unset_names_variable_place_and_nearest(tmp_path: Path, renderer: Renderer) -> None:
    make(tmp_path, "  a: ${REGOIN}\n  b: ${ZONE}\n", "REGION=x\n")
    problem = refused(tmp_path, renderer)
    assert "one.yaml:6: ${REGOIN} is not set" in problem.message
    assert problem.hint is not None
    assert "did you mean REGION?" in problem.hint
    assert "one.yaml:7: ${ZONE} is not set" in problem.hint
    assert problem.code == 2


@pytest.mark.parametrize("value", ["", "  "])
def test_empty_names_both_places(tmp_path: Path, renderer: Renderer, value: str) -> None:
    make(tmp_path, "  a: ${REGION}\n", f"# first line\nREGION={value}\n")
    message = refused(tmp_path, renderer).message
    assert "one.yaml:6: ${REGION} is empty in" in message
    assert message.endswith("cluster.env:2")


def test_an_empty_fact_that_is_not_used_is_not_an_error(tmp_path: Path, renderer: Renderer) -> None:
    make(tmp_path, "  a: ${REGION}\n", "REGION=x\nUNUSED=\n")
    assert "a: x" in rendered(tmp_path, renderer)


@pytest.mark.parametrize("reference", ["${REGION:=x}", "${1A}", "${ REGION}", "${}", "${REGION"])
def test_anything_but_a_plain_name_is_refused(tmp_path: Path, renderer: Renderer, reference: str) -> None:
    make(tmp_path, f"  a: 'b {reference}'\n", "REGION=x\n")
    problem = refused(tmp_path, renderer)
    assert f"one.yaml:6: {reference.split('}')[0]}" in problem.message
    assert "is not ${NAME}" in problem.message


@pytest.mark.parametrize("value", ["a #b", "a: b", "true", "0x10", "012", "'a", "{a: b}", "null"])
def test_a_value_that_yaml_would_change_is_refused(tmp_path: Path, renderer: Renderer, value: str) -> None:
    """Kustomize drops the quotes around the reference, so YAML would change such a value."""
    make(tmp_path, '  a: "${REGION}"\n', f"REGION={value}\n")
    assert "YAML" in refused(tmp_path, renderer).message


def test_comments_are_ignored_and_an_object_may_opt_out(tmp_path: Path, renderer: Renderer, objects: Parse) -> None:
    make(tmp_path, "  a: ${NOT_A_FACT} $$\n  # ${NOR_THIS}\n", "A=1\n")
    path = tmp_path / "base/storage/x/one.yaml"
    annotation = "\n  annotations:\n    kustomize.toolkit.fluxcd.io/substitute: disabled\ndata:"
    path.write_text(path.read_text(encoding="utf-8").replace("\ndata:", annotation), encoding="utf-8")
    (one,) = objects(rendered(tmp_path, renderer))
    assert one["data"] == {"a": "${NOT_A_FACT} $$"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A=1\nB 2\n", "cluster.env:2: not NAME=value: B 2"),
        ("A = 1\n", "cluster.env:1: not NAME=value: A = 1"),
        ("export A=1\n", "cluster.env:1: not NAME=value: export A=1"),
        ("A=1\n\nA=2\n", "cluster.env:3: A is set a second time, first on line 1"),
        ("1A=1\n", "cluster.env:1: not NAME=value: 1A=1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "cluster.env"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        cluster_env.read(path)
    assert caught.value.message.endswith(said)


def test_facts_are_read_as_kustomize_reads_them(tmp_path: Path, renderer: Renderer, objects: Parse) -> None:
    """Flux reads the values from a ConfigMap that kustomize generates from the same file."""
    text = "\ufeff# c\n  A=1\nB=a=b c \nC=\"q\" 'q'\nD=x # no comment\r\nE=$A ${A}\n\n#F=1\nG=\n"
    (tmp_path / "cluster.env").write_text(text, encoding="utf-8", newline="")
    kustomization = "configMapGenerator: [{name: facts, envs: [cluster.env]}]\n"
    (tmp_path / "kustomization.yaml").write_text(kustomization, encoding="utf-8")
    (made,) = objects(renderer.build(tmp_path))
    ours = {name: fact.value for name, fact in cluster_env.read(tmp_path / "cluster.env").items()}
    assert ours == made["data"]
    assert len(ours) == 6


def test_unknown_cluster_and_part_name_the_nearest() -> None:
    for text, near in {"exmaple": "example", "example/storge": "storage"}.items():
        with pytest.raises(UserError) as caught:
            platform.load(repo.root(), text)
        assert caught.value.hint == f"did you mean {near}?"


def test_the_command_prints_yaml_or_json_and_the_next_step(capsys: pytest.CaptureFixture[str], objects: Parse) -> None:
    assert cli.invoke(["platform", "example/storage"]) == 0
    text, said = capsys.readouterr()
    assert "kubectl apply --server-side -f -" in said
    assert cli.invoke(["platform", "example/storage", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == objects(text)


def test_the_command_has_one_line_for_a_wrong_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["platform", "exampel"]) == 2
    text, said = capsys.readouterr()
    assert text == ""
    assert said.splitlines() == [
        "error: no such cluster: clusters/exampel has no cluster.env",
        "  hint: did you mean example?",
    ]


PROGRAM = Path(__file__).with_name("envsubst.go")
MODULE = "github.com/fluxcd/pkg/envsubst"
VERSION = "v1.8.0"  # newer than Flux 2.9.4's; it needs Go 1.26


@pytest.fixture(scope="session")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[dict[str, Any]]], list[dict[str, str]]]:
    """Flux's substitution as a program, built once into the checkout's cache."""
    program = repo.root() / ".cache" / "bin" / f"flux-envsubst-{VERSION}"
    with alone(program):
        if not program.exists():
            _build(program, tmp_path_factory.mktemp("flux"))

    def ask(cases: list[dict[str, Any]]) -> list[dict[str, str]]:
        done = subprocess.run(
            [program], input=json.dumps(cases), capture_output=True, text=True, timeout=180, check=True
        )
        answers: list[dict[str, str]] = json.loads(done.stdout)
        return answers

    return ask


def _build(program: Path, work: Path) -> None:
    shutil.copy(PROGRAM, work / "main.go")
    (work / "go.mod").write_text(f"module compare\n\ngo 1.26.0\n\nrequire {MODULE} {VERSION}\n")
    try:
        with go_build.workshop(repo.root()) as environment:
            environment = {**environment, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod -modcacherw"}
            made = Path(environment["GOBIN"]) / program.name
            command = ["go", "build", "-o", str(made), "."]
            done = subprocess.run(
                command, cwd=work, env=environment, capture_output=True, text=True, timeout=500, check=False
            )
            if done.returncode != 0:
                raise go_build.Unusable(done.stderr.strip().splitlines()[-1][:200])
            made.replace(program)
    except go_build.Unusable as reason:
        pytest.skip(f"{MODULE} {VERSION} cannot be built ({reason}): install Go 1.26, reach a module proxy")
