"""No Secret in plain text, and none that Flux would apply as ciphertext."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runs.conftest import Team
from tools.runs import check
from tools.verdict import State, Verdict

Edit = Callable[[Path, str, str], None]
PLAIN = """\
apiVersion: v1
kind: Secret
metadata:
  name: hf-token
stringData:
  token: hf_plain
"""
ENCRYPTED = PLAIN.replace("hf_plain", "ENC[AES256_GCM,data:Zm9v,iv:YmFy,tag:YmF6,type:str]") + (
    "sops:\n  encrypted_regex: ^(data|stringData)$\n  mac: ENC[AES256_GCM,data:Zm9v,type:str]\n"
)
DECRYPTION = "  prune: true\n  decryption:\n    provider: sops\n    secretRef:\n      name: sops-age\n"


def place(team: Team, text: str, name: str = "token.yaml") -> None:
    """Put a file where the Kustomization `storage` takes it."""
    (team.cluster / "storage" / name).write_text(text, encoding="utf-8")
    kustomization = team.cluster / "storage/kustomization.yaml"
    with kustomization.open("a", encoding="utf-8") as file:
        file.write(f"  - {name}\n")


def judged(team: Team, state: State = State.FAIL) -> list[Verdict]:
    """Return the verdicts of one state."""
    return [one for one in check.check_secrets(team.root) if one.state is state]


def test_there_is_none_in_the_checkout(team: Team) -> None:
    assert check.check_secrets(team.root) == []


@pytest.mark.parametrize("text", [PLAIN, ENCRYPTED + "---\n" + PLAIN.replace("hf-token", "other")])
def test_a_plain_one_is_refused(team: Team, text: str) -> None:
    place(team, text)
    assert any("is in plain text" in one.summary for one in judged(team))


def test_one_that_would_be_applied_as_ciphertext_is_refused(team: Team, edit: Edit) -> None:
    """And its control: with `decryption` in the Kustomization that applies it."""
    place(team, ENCRYPTED)
    (found,) = judged(team)
    assert "applied as ciphertext" in found.summary
    assert found.evidence == [
        "Kustomization storage (clusters/cpu-demo/platform.yaml) has no spec.decryption"
    ]
    path = team.cluster / "platform.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("  prune: true\n", DECRYPTION), encoding="utf-8")
    assert judged(team) == []
    (good,) = judged(team, State.PASS)
    assert good.evidence == ["decrypted for: storage"]


def test_one_value_that_was_forgotten_is_plain(team: Team) -> None:
    place(team, ENCRYPTED.replace("stringData:\n", "stringData:\n  user: me\n"))
    assert "is in plain text" in judged(team)[0].summary


def test_a_file_encrypted_as_a_whole_is_refused(team: Team) -> None:
    place(team, "apiVersion: ENC[AES256_GCM,data:a]\nkind: ENC[AES256_GCM,data:b]\nsops:\n  mac: x\n")
    assert "cannot see what kind" in judged(team)[0].summary


def test_generators_are_looked_into(team: Team) -> None:
    path = team.cluster / "storage/kustomization.yaml"
    with path.open("a", encoding="utf-8") as file:
        file.write("secretGenerator:\n  - {name: one, literals: [token=hf_plain]}\n")
        file.write("  - {name: two, files: [key.txt]}\n")
    (path.parent / "key.txt").write_text("plain\n", encoding="utf-8")
    found = [one.summary for one in judged(team)]
    assert len(found) == 2
    assert "literals" in found[0]
    assert "key.txt is in plain text" in found[1]


def test_an_ignored_file_is_not_in_git(team: Team) -> None:
    (team.root / ".gitignore").write_text("local.yaml\n", encoding="utf-8")
    (team.cluster / "local.yaml").write_text(PLAIN, encoding="utf-8")
    assert judged(team) == []
