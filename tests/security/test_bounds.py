"""What somebody else wrote is read within bounds: manifests, data, templates and Dockerfiles."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.core.errors import UserError
from tools.image.dockerfile import dockerignore
from tools.image.dockerfile import parse as dockerfile
from tools.job.diagnosis import log_causes
from tools.job.snapshot import log_lines
from tools.kube import manifests
from training.config.base import ConfigError
from training.config.loader import apply_override, load_texts
from training.data import readers
from training.data.errors import DataError
from training.data.examples import template

MEMORY = 500 * 2**20  # bytes that a bomb may take
HEAD = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
JOB = (
    "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\nspec:\n  nprocPerNode: %s\n"
    "  pytorchReplicaSpecs: {Worker: {replicas: %s, template: {spec: {containers: [{name: pytorch}]}}}}\n"
)
LETTERS = "abcdefghij"
ALIASES = "a: &a [x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in itertools.pairwise(LETTERS)
)
MERGES = "a0: &a0 {k: v}\n" + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}, k{n}: v}}\n" for n in range(1, 5000))
BOMBS = {
    "aliases": (HEAD + ALIASES, "the aliases stand for more than"),
    "merge keys": (HEAD + MERGES, "the aliases stand for more than"),
    "brackets": ("[" * 100_000, "mappings and lists in each other"),
    "closed brackets": ("[" * 900 + "]" * 900, "mappings and lists in each other"),
    "braces": ("{a: " * 900 + "}" * 900, "mappings and lists in each other"),
    "dashes": ("- " * 100_000, "mappings and lists in each other"),
    "keys": ("? " * 100_000, "mappings and lists in each other"),
    "itself": (HEAD + "a: &a [*a]\n", "part of the value that it stands for"),
    "itself by merge": (HEAD + "a: &a\n  <<: *a\n", "part of the value that it stands for"),
    "integer": (HEAD + f"a: {'9' * 5000}\n", "a number of 5000 characters"),
    "hexadecimal": (HEAD + f"a: 0x{'f' * 1_000_000}\n", "a number of"),
    "tagged integer": (HEAD + 'a: !!int ""\n', "found the tag"),
    "tagged object": (HEAD + "a: !!python/object/apply:os.system [id]\n", "found the tag"),
    "values": (HEAD + "a: [" + "1," * 400_000 + "]\n", "more than 300000 values"),
    "documents": ("---\n" * 100_000, "more than 10000 documents"),
    "size": (HEAD + "#" * (11 * 2**20), "more than 10,485,760"),
    "duplicate": (HEAD + "kind: Secret\n", "duplicate key"),
    "NUL": (HEAD + "a: \0\n", "not valid YAML"),
    "replicas": (JOB % (1, 10**9), "replicas is 1e+09"),
    "processes": (JOB % ('"1000000000"', 1), "nprocPerNode is 1e+09"),
}


def limited(*words: str, seconds: float = 60, memory: int = 2 * 2**30) -> subprocess.CompletedProcess[str]:
    """Run Python with at most `memory` bytes of addresses; libraries alone take a part of them."""
    return subprocess.run(
        [sys.executable, *words],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_in_a_manifest_is_one_error(name: str, tmp_path: Path) -> None:
    text, said = BOMBS[name]
    path = tmp_path / "bomb.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=said.replace("+", r"\+")) as raised:
        manifests.read(path)
    assert raised.value.code == 2
    assert "\n" not in raised.value.message
    assert len(raised.value.message) < 400


def test_preflight_ends_with_exit_code_2_and_little_memory(tmp_path: Path) -> None:
    """All bombs at once in one process, then two in processes of their own, as a user sees them."""
    for name, (text, _) in BOMBS.items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "utf16.yaml").write_bytes(HEAD.encode("utf-16"))
    script = (
        "import pathlib, sys\n"
        "from tools.core.errors import UserError\n"
        "from tools.kube import manifests\n"
        "for path in pathlib.Path(sys.argv[1]).iterdir():\n"
        "    try: manifests.read(path)\n"
        "    except UserError: continue\n"
        "    sys.exit(f'{path} was read')\n"
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "print(1024 * int(status.partition('VmHWM:')[2].split()[0]))\n"
    )
    done = limited("-c", script, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < MEMORY
    for name in ("brackets", "aliases"):
        seen = limited("-m", "tools.cli", "preflight", "-f", str(tmp_path / f"{name}.yaml"))
        assert (seen.returncode, seen.stderr.count("\n")) == (2, 1), seen.stderr
        assert seen.stderr.startswith("error: ")


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    link = tmp_path / "link.yaml"
    link.symlink_to("/dev/zero")
    for path in (tmp_path / "fifo", Path("/dev/zero"), link, tmp_path):
        with pytest.raises(UserError):
            manifests.read(path)
    plain = tmp_path / "plain.yaml"
    plain.write_text(HEAD, encoding="utf-8")
    own = tmp_path / "own.yaml"
    own.symlink_to(plain)
    assert len(manifests.read(own).objects) == 1  # the control: a link of the user to a file


def test_thousand_objects_are_read() -> None:
    text = "---\n".join(HEAD.replace("a}", f"a{n}}}") + "data: {" + "k: v}\n" for n in range(1000))
    assert len(manifests.parse(text, "many").objects) == 1000


@pytest.mark.parametrize("name", ["aliases", "brackets", "itself", "integer"])
def test_bomb_in_a_configuration_is_one_error(name: str) -> None:
    text = BOMBS[name][0].removeprefix(HEAD)
    with pytest.raises(ConfigError):
        load_texts({layer: (f"{layer}.yaml", text) for layer in ("model", "hardware", "cell")})
    value = text if name in ("brackets", "integer") else f"{{{text}}}"
    with pytest.raises(ConfigError):
        apply_override({"model": ("model.yaml", "")}, f"train.steps={value}")


def test_row_of_a_gigabyte_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"text": "a"}\n{"text": "')
        for _ in range(80):
            file.write(b"a" * 2**20)
        file.write(b'"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl\.gz, line 2: more than 64 MiB"):
        list(readers.rows_of(path, "text"))


def test_endless_blank_lines_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_MOST_UNPACKED", 2**20)
    path, plain = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write((b" " * 999 + b"\n") * 50_000)
    with pytest.raises(DataError, match="unpacks to 200 times its size"):
        list(readers.rows_of(path, "text"))
    with gzip.open(plain, "wb") as file:
        file.writelines(json.dumps({"text": os.urandom(500).hex()}).encode() + b"\n" for _ in range(2000))
    assert len(list(readers.rows_of(plain, "text"))) == 2000


@pytest.mark.parametrize("row", ["[" * 100_000, '{"text": ' + "9" * 5000 + "}"], ids=["deep", "integer"])
def test_json_that_cannot_be_read_names_its_line(row: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(row + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 1"):
        list(readers.rows_of(path, "text"))


@pytest.mark.parametrize(
    "text",
    [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% set x = 1 %}{% endfor %}{% endfor %}",
        "{{ 'a' * 8000000000 }}",
        "{{ 'a' | center(9000000000) }}",
    ],
    ids=["loops", "product", "padding"],
)
def test_chat_template_ends(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "LONGEST", 0.5)
    with pytest.raises(DataError, match=r"the chat template .* needs more than"):
        template.ChatTemplate(text, {}).check()


def _variables() -> str:
    doubled = "".join(f"ENV A{n}=$A{n - 1}$A{n - 1}\n" for n in range(1, 60))
    return f"FROM a\nENV A0=xxxxxxxx\n{doubled}"


@pytest.mark.parametrize(
    "read",
    [
        lambda: dockerfile.parse(_variables(), "Dockerfile"),
        lambda: dockerfile.parse("FROM a AS a\n" * 2000, "Dockerfile"),
        lambda: dockerfile.parse("FROM a\n" + "#" * 2**20, "Dockerfile"),
        lambda: dockerignore.parse("*a*a*a*a*a*a*a*a*a*a*a*b"),
        lambda: dockerignore.parse("a[z-a]"),
    ],
    ids=["variables", "stages", "size", "wildcards", "range"],
)  # fmt: skip
def test_bomb_in_a_dockerfile_is_one_error(read: Callable[[], object]) -> None:
    with pytest.raises(UserError):
        read()


def test_line_of_a_log_is_cut_and_says_so() -> None:
    (line,) = log_lines.read("loss " * 100_000)
    assert len(line.text) < log_lines.LONGEST + 50
    assert line.text.endswith("... (cut: 500000 characters)")


def test_hostile_log_has_a_cause_or_none() -> None:
    """The review's lines, and values that are no numbers; each took more than 20 s or a traceback."""
    lines = [
        *("step 1 loss" + " " * 60_000, "loss: 1 step" + " " * 60_000, "1.1.1." * 10_000, "( pid=1 " * 9_000),
        *("nan " * 20_000, "checkpoint " * 9_000, "429 " * 9_000, "{" * 60_000),
        '{"step": ' + "9" * 60_000 + "}",
        *("0001-01-01T00:00:00+14:00 x", "step " + "9" * 5_000 + " loss 1", "[rank" + "9" * 5000 + "]: x"),
    ]  # fmt: skip
    log_causes.first_cause(log_lines.read("\n".join(lines)))
