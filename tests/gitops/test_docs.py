"""docs/flux.md: its `yard` commands are run here; the others are named with the test that does."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.gitops.conftest import DIGEST, Team
from tools.cli import invoke
from tools.core import repo

PAGE = repo.root() / "docs/flux.md"
FLUX = "tests/flux, as Fleet.install and World.bring_up: `flux` itself is not to be had there"
ELSEWHERE = {
    "git rm clusters/cpu-demo/runs/cpu-llama-tiny-example.yaml": "tests/flux/test_runs.py removes it last",
    "flux install": FLUX,
    "kubectl apply --server-side -k clusters/cpu-demo": FLUX,
    "flux get kustomizations --watch": FLUX,
    "git add clusters/cpu-demo/runs": "here, as Team.commit",
    'git commit -m "A first run"': "here, as Team.commit",
    "aws secretsmanager create-secret --name training/hf-token --secret-string file://token.txt": (
        "AWS's own; what it makes is read by nobody here"
    ),
    "yard cluster identity cpu-demo --apply": "tests/aws/test_access.py",
    "git push": "tests/flux, as World.push",
    "age-keygen -o age.key": "tests/flux/test_platform.py",
    "kubectl create secret generic sops-age --namespace flux-system --from-file=age.agekey=age.key": (
        "tests/flux/test_platform.py"
    ),
    "sops encrypt --in-place --age PUBLIC_KEY --encrypted-regex '^(data|stringData)$'"
    " clusters/cpu-demo/storage/token.yaml": "tests/flux/test_platform.py",
}


def commands() -> list[str]:
    """The lines of the fenced blocks that are commands."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```([a-z]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [line for language, block in blocks if not language for line in block.splitlines()]


def test_each_command_is_run_somewhere() -> None:
    ours = [line for line in commands() if line.startswith("yard cluster run ")]
    assert {line for line in commands() if line not in ours} == set(ELSEWHERE)
    assert len(ours) == 3


def test_the_commands_in_their_order(
    team: Team, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a cluster `list` shows the files, and says that it asked nobody."""
    monkeypatch.setattr(repo, "root", lambda: team.root)
    monkeypatch.setenv("KUBECONFIG", "/dev/null")
    codes = []
    for line in (line for line in commands() if line.startswith("yard cluster run ")):
        words = shlex.split(line.replace("REGISTRY", "registry.example").replace("DIGEST", DIGEST))
        codes.append(invoke(words[1:]))
        team.commit("a step")
    said = capsys.readouterr()
    assert codes[0] == codes[2] == 0, said
    assert codes[1] in (2, 3)
    assert "cpu-llama-tiny-r1" in said.out
