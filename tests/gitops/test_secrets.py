"""No Secret in plain text, and none that Flux would apply as ciphertext."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gitops.conftest import Team
from tools.core.verdict import State, Verdict
from tools.gitops import git_secrets

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
DECRYPTION = """\
patches:
  - target: {kind: Kustomization, name: storage}
    patch: |
      - {op: add, path: /spec/decryption, value: {provider: sops, secretRef: {name: sops-age}}}
"""


def place(team: Team, text: str, name: str = "token.yaml") -> None:
    """Add a file to the Kustomization `storage`."""
    (team.cluster / "storage" / name).write_text(text, encoding="utf-8")
    kustomization = team.cluster / "storage/kustomization.yaml"
    with kustomization.open("a", encoding="utf-8") as file:
        file.write(f"  - {name}\n")


def found_in(team: Team, state: State = State.FAIL) -> list[Verdict]:
    return [one for one in git_secrets.check(team.root, team.renderer) if one.state is state]


def test_the_checkout_has_no_secret(team: Team) -> None:
    assert git_secrets.check(team.root, team.renderer) == []


def indented(text: str, by: int) -> str:
    return text.replace("\n", "\n" + " " * by).rstrip()


PLAIN_PLACES = {
    "alone": PLAIN,
    "behind an encrypted one": ENCRYPTED + "---\n" + PLAIN.replace("hf-token", "other"),
    "in a List": f"apiVersion: v1\nkind: List\nitems:\n  - {indented(PLAIN, 4)}\n",
    "in a SecretList": "apiVersion: v1\nkind: SecretList\nitems:\n  - {data: {a: YQ==}}\n",
    "as JSON": '{"apiVersion": "v1", "kind": "Secret", "stringData": {"a": "b"}}\n',
    "in a patch": f"kind: Component\npatches:\n  - patch: |\n      {indented(PLAIN, 6)}\n",
    "in an older patch": f"kind: Component\npatchesStrategicMerge:\n  - |\n    {indented(PLAIN, 4)}\n",
    "in Flux's patch": f"kind: Any\nspec:\n  patches:\n    - patch: |\n        {indented(PLAIN, 8)}\n",
    "in a patch's operation": (
        "kind: Component\npatches:\n  - target: {kind: Secret}\n    patch: |\n"
        "      - {op: add, path: /stringData/a, value: hf_plain}\n"
    ),
}


@pytest.mark.parametrize("text", PLAIN_PLACES.values(), ids=PLAIN_PLACES)
def test_a_plain_secret_is_refused(team: Team, text: str) -> None:
    place(team, text, "token.json" if text.startswith("{") else "token.yaml")
    assert any("is in plain text" in one.summary for one in found_in(team))


def test_a_secret_that_flux_would_not_decrypt_is_refused(team: Team, edit: Edit) -> None:
    """The control has `decryption` in the Kustomization that applies it."""
    place(team, ENCRYPTED)
    (found,) = found_in(team)
    assert "would apply the ciphertext" in found.summary
    assert found.evidence == ["Kustomization storage (clusters/cpu-demo/kustomization.yaml) has no spec.decryption"]
    with (team.cluster / "kustomization.yaml").open("a", encoding="utf-8") as file:
        file.write(DECRYPTION)
    assert found_in(team) == []
    (good,) = found_in(team, State.PASS)
    assert good.evidence == ["decrypted for: storage"]


def test_one_plain_value_is_refused(team: Team) -> None:
    place(team, ENCRYPTED.replace("stringData:\n", "stringData:\n  user: me\n"))
    assert "is in plain text" in found_in(team)[0].summary


def test_a_file_encrypted_as_a_whole_is_refused(team: Team) -> None:
    place(team, "apiVersion: ENC[AES256_GCM,data:a]\nkind: ENC[AES256_GCM,data:b]\nsops:\n  mac: x\n")
    assert "cannot read the object" in found_in(team)[0].summary


def test_generators_are_checked(team: Team) -> None:
    path = team.cluster / "storage/kustomization.yaml"
    with path.open("a", encoding="utf-8") as file:
        file.write("secretGenerator:\n  - {name: one, literals: [token=hf_plain]}\n")
        file.write("  - {name: two, files: [key.txt]}\n")
    (path.parent / "key.txt").write_text("plain\n", encoding="utf-8")
    found = [one.summary for one in found_in(team)]
    assert len(found) == 2
    assert "literals" in found[0]
    assert "key.txt is in plain text" in found[1]


def test_an_ignored_file_is_not_in_git(team: Team) -> None:
    (team.root / ".gitignore").write_text("local.yaml\n", encoding="utf-8")
    (team.cluster / "local.yaml").write_text(PLAIN, encoding="utf-8")
    assert found_in(team) == []


@pytest.mark.parametrize(
    ("name", "text", "is_plain"),
    [
        ("a.yaml", "user: me\ntoken: ENC[AES256_GCM,data:a]\nsops: {mac: x}\n", True),
        ("a.yaml", "list: [{token: hf_plain}, 'ENC[x]']\nsops: {mac: x}\n", True),
        ("a.yaml", "token: ENC[AES256_GCM,data:a]\nnote:\n  - ENC[b]\nsops: {mac: x}\n", False),
        ("a.yaml", "user_unencrypted: me\nempty: ''\ntoken: ENC[a]\nsops: {mac: x}\n", False),
        ("a.yaml", "user: me\ntoken: ENC[a]\nsops: {mac: x, encrypted_regex: ^token$}\n", False),
        ("a.yaml", "user: me\ntoken: hf_plain\nsops: {mac: x, encrypted_regex: ^token$}\n", True),
        ("a.yaml", "user: me\ntoken: ENC[a]\nsops: {mac: x, unencrypted_regex: ^us(er$}\n", True),
        ("a.yaml", "token: ENC[AES256_GCM,data:a]\n", True),  # cannot be decrypted
        ("a.json", '{"data": "ENC[AES256_GCM,data:a]", "sops": {"mac": "x"}}', False),
        ("a.json", '{"user": "me", "token": "ENC[a]", "sops": {"mac": "x"}}', True),
        ("a.txt", "hf_plain\n", True),
        ("a.env", "A=ENC[AES256_GCM,data:a]\nB=hf_plain\nsops_version=3.9.0\n", True),
        ("a.env", "# note\nA=ENC[AES256_GCM,data:a]\nB=ENC[AES256_GCM,data:b]\nsops_version=3.9.0\n", False),
    ],
)
def test_a_half_encrypted_file_is_plain(team: Team, name: str, text: str, is_plain: bool) -> None:
    """SOPS itself leaves empty values plain, and those that its settings name."""
    (team.cluster / "storage" / name).write_text(text, encoding="utf-8")
    with (team.cluster / "storage/kustomization.yaml").open("a", encoding="utf-8") as file:
        key = "envs" if name.endswith(".env") else "files"
        file.write(f"secretGenerator:\n  - name: half\n    {key}: [{name}]\n")
    assert any("is in plain text" in one.summary for one in found_in(team)) is is_plain
