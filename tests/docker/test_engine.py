"""`yard image` on a real engine and a real registry, with small images: what is said is what is there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docker.engine import Harness
from tools import repo

Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def _records() -> Iterator[None]:
    """Take away the records of the test's own images."""
    yield
    for path in (repo.local() / "images").glob("small*"):
        path.unlink()


def built(engine: Harness, directory: Path, *words: str, **variables: str) -> dict[str, Any]:
    done = engine.yard("build", str(directory), "--json", *words, **variables)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("buildkit", ["1", "0"])
def test_what_is_built_is_what_the_engine_has(engine: Harness, small: Make, buildkit: str) -> None:
    """With both builders; a changed file makes another image under the same name."""
    first = built(engine, small(), DOCKER_BUILDKIT=buildkit)
    assert first["builder"] == ("BuildKit" if buildkit == "1" else "classic")
    there = json.loads(engine.docker("image", "inspect", first["tags"][0]))[0]
    assert (there["Id"], there["Size"]) == (first["id"], first["size"])
    kept = json.loads((repo.local() / "images/small.json").read_text())
    assert kept == {name: value for name, value in first.items() if name != "tests"}
    assert engine.docker("run", "--rm", first["tags"][0]).strip() == "step 1"
    second = built(engine, small(text="print('step 2')\n"), DOCKER_BUILDKIT=buildkit)
    assert second["id"] != first["id"]
    assert second["layers"] == first["layers"]
    assert engine.docker("run", "--rm", second["tags"][0]).strip() == "step 2"


@pytest.mark.parametrize("buildkit", ["1", "0"])
@pytest.mark.parametrize(
    ("tail", "kind"),
    [
        ("RUN exit 7\n", "a command ended with 7"),
        ("COPY nope /\n", "missing file"),
        ("RUN no-such-program\n", "program not found"),
        ("ENTRYPIONT x\n", "syntax"),
        ("FROM 127.0.0.1:5000/nobody/nothing:1\n", "base not found"),
    ],
)
def test_a_failed_build_has_one_cause_and_no_record(
    engine: Harness, small: Make, tail: str, kind: str, buildkit: str
) -> None:
    done = engine.yard("build", str(small(tail)), "--json", DOCKER_BUILDKIT=buildkit)
    assert done.returncode == 1
    assert json.loads(done.stdout)["kind"] == kind
    assert not (repo.local() / "images/small.json").exists()


def test_a_secret_as_argument_is_refused_because_the_history_would_show_it(
    engine: Harness, small: Make
) -> None:
    """Control: docker itself takes it, and shows it to whoever has the image."""
    directory = small("ARG HF_TOKEN\nRUN true\n")
    done = engine.yard("build", str(directory), "--build-arg", "HF_TOKEN=hf_secretsecretsecretsecret")
    assert done.returncode == 2
    assert "would stay in the image's history" in done.stderr
    assert "hf_secret" not in done.stderr + done.stdout
    engine.docker(
        "build", "-q", "-t", "control", "--build-arg", "HF_TOKEN=hf_secretsecretsecretsecret", str(directory)
    )
    assert "hf_secretsecretsecretsecret" in engine.docker("history", "--no-trunc", "control")


def test_pushed_is_what_the_registry_has_and_comes_back(engine: Harness, small: Make, registry: str) -> None:
    """The digest by three ways, an equal push again, another image under that tag, a pull by digest."""
    first = built(engine, small())
    target = f"{registry}/team/small:1"
    done = engine.yard("push", "small", "--to", target, "--json")
    assert done.returncode == 0, done.stderr
    digest = json.loads(done.stdout)["digest"]
    status, headers = engine.get("/v2/team/small/manifests/1", "HEAD")
    assert (status, headers["docker-content-digest"]) == (200, digest)
    assert json.loads((repo.local() / "images/small.json").read_text())["digests"] == {
        f"{registry}/team/small": digest
    }
    assert engine.yard("push", "small", "--to", target).returncode == 0
    built(engine, small(text="print('another')\n"))
    done = engine.yard("push", "small", "--to", target)
    assert done.returncode == 1
    assert "is another image" in done.stderr
    assert engine.get("/v2/team/small/manifests/1", "HEAD")[1]["docker-content-digest"] == digest
    engine.docker("image", "rm", "--force", first["id"])
    engine.docker("builder", "prune", "--all", "--force")
    engine.docker("pull", f"{registry}/team/small@{digest}")
    assert engine.docker("run", "--rm", f"{registry}/team/small@{digest}").strip() == "step 1"


def test_pin_asks_the_registry_first(engine: Harness, registry: str) -> None:
    before = (repo.root() / "overlays/images/kustomization.yaml").read_text()
    done = engine.yard("pin", "trainer-cpu", f"{registry}/team/nothing:1")
    assert done.returncode == 1
    assert "nothing was pinned" in done.stderr
    assert (repo.root() / "overlays/images/kustomization.yaml").read_text() == before


def test_a_registry_that_is_down_is_said(engine: Harness, small: Make, registry: str) -> None:
    """And what was built is still there, and goes when the registry is back."""
    built(engine, small())
    engine.kill(engine.registry)
    try:
        done = engine.yard("push", "small", "--to", f"{registry}/team/down:1")
        assert done.returncode == 3
        assert "connection refused" in done.stderr
        assert done.stdout == ""
    finally:
        engine.registry = engine.start_registry()
    assert engine.yard("push", "small", "--to", f"{registry}/team/down:1").returncode == 0
