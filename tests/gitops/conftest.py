"""A repository for runs: base, overlays and one cluster of this checkout, with its own history."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tools.cells import kustomize
from tools.cells.knobs import Knobs
from tools.cells.kustomize import Renderer
from tools.core import repo
from tools.core.verdict import State, Verdict
from tools.gitops import check
from tools.gitops import new_run as new
from tools.gitops.live import Live
from tools.gitops.new_run import Made, Wanted

CLUSTER = "cpu-demo"
CELL = "overlays/cpu/llama-tiny"
DIGEST = f"sha256:{'a1' * 32}"
IMAGE = f"registry.example/trainer-cpu@{DIGEST}"


@dataclass(frozen=True)
class Team:
    """The clone of a team."""

    root: Path
    renderer: Renderer
    first: str  # the file of a first run at the clone's first commit

    @property
    def cluster(self) -> Path:
        return self.root / "clusters" / CLUSTER

    def git(self, *words: str) -> str:
        who = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *who, *words], cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, message: str = "change") -> str:
        """Commit everything and return the commit."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def make(
        self,
        cell: str = CELL,
        image: str | None = IMAGE,
        suffix: str | None = None,
        commit: str = "HEAD",
        features: tuple[str, ...] = (),
    ) -> Made:
        """Create a run without writing its file."""
        knobs = Knobs(name=suffix, image=image, features=features)
        return new.make(self.root, Wanted(cell, CLUSTER, commit, knobs), self.renderer)

    def written(self) -> Path:
        """Write the run of `make` with its defaults and return the file."""
        path = self.cluster / "runs/cpu-llama-tiny-r1.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(self.first, encoding="utf-8")
        return path

    def started(self) -> Path:
        """Write a run's file, commit it and return it."""
        path = self.written()
        self.commit("a run")
        return path

    def check(self, live: dict[str, Live] | None = None) -> list[Verdict]:
        return check.check(self.root, self.cluster, self.renderer, live)

    def failed(self, live: dict[str, Live] | None = None) -> list[str]:
        """Return the failures, each with its rule."""
        bad = [one for one in self.check(live) if one.state is State.FAIL]
        return [f"{one.details['rule']}: {' | '.join([one.summary, *one.evidence])}" for one in bad]


@pytest.fixture
def team(tmp_path: Path, template: Team) -> Team:
    """A clone that a test may change."""
    root = tmp_path / "team"
    shutil.copytree(template.root, root)
    return replace(template, root=root)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Team:
    """The clone as it is before any test."""
    renderer = kustomize.find(repo.root())
    if renderer is None:
        pytest.skip("no kustomize or kubectl on PATH: install kustomize 5.4 or newer")
    root = tmp_path_factory.mktemp("template") / "team"
    for name in ("base", f"clusters/{CLUSTER}", "overlays"):
        shutil.copytree(repo.root() / name, root / name)
    shutil.rmtree(root / f"clusters/{CLUSTER}/runs", ignore_errors=True)
    (root / "pyproject.toml").touch()  # which makes it a checkout
    made = Team(root, renderer, "")
    made.git("init", "--quiet", "--initial-branch=main")
    made.commit("begin")
    return replace(made, first=made.make().text)


@pytest.fixture
def edit() -> Callable[[Path, str, str], None]:
    """A function that replaces a text that occurs once in a file."""

    def change(path: Path, old: str, new: str) -> None:
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, (old, text)
        path.write_text(text.replace(old, new), encoding="utf-8")

    return change
