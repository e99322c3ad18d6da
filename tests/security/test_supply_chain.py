"""What is built and run comes from a place that is pinned: actions, packages, base images."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tools.core import go_build, repo
from tools.core.verdict import State
from tools.image.dockerfile.dockerignore import Ignore
from tools.image.dockerfile.parse import parse
from tools.image.rules.evaluate import verdicts
from tools.image.rules.rule import Subject

ROOT = repo.root()
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
DOCKERFILES = sorted((ROOT / "images").glob("*/Dockerfile"))


def locks() -> Iterator[str]:
    """Yield the locks of the tree, without a look at what other processes write beside it."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = set(folders) - {".venv", ".cache", "local", "corpus", ".git"}
        yield from (Path(folder, name).relative_to(ROOT).as_posix() for name in names if name.endswith(".lock"))


LOCKS = sorted(locks())
# No registry could be asked for its digest. docs/images.md says how to give it.
BASES_WITHOUT_DIGEST = {"public.ecr.aws/neuron/pytorch-training-neuronx"}
WRITES = {
    ("codeql.yml", "analyze"): {"contents": "read", "security-events": "write"},
    ("plan.yml", "diff"): {"contents": "read", "pull-requests": "write"},
}


def load(path: Path) -> Any:
    return YAML(typ="safe").load(path)


def ids(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


@pytest.mark.parametrize("path", WORKFLOWS, ids=ids(WORKFLOWS))
def test_a_workflow_runs_pinned_actions_with_few_rights(path: Path) -> None:
    """A tag can be moved to other code; a commit cannot."""
    workflow = load(path)
    used = re.findall(r"uses: (\S+)(.*)", path.read_text(encoding="utf-8"))
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{action} does not say its version"
    assert workflow["permissions"] == {}
    assert "pull_request_target" not in workflow["on"]
    for name, job in workflow["jobs"].items():
        assert job["permissions"] == WRITES.get((path.name, name), {"contents": "read"})
        assert job["timeout-minutes"] <= 90
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_one_commit_of_an_action_everywhere() -> None:
    texts = [path.read_text(encoding="utf-8") for path in WORKFLOWS]
    used = {match for text in texts for match in re.findall(r"uses: ([\w-]+/[\w-]+)\S*@(\S+)", text)}
    assert len({name for name, _ in used}) == len(used)


def test_zizmor_finds_nothing_and_would_find_something(tmp_path: Path) -> None:
    bad = tmp_path / ".github/workflows/bad.yml"
    bad.parent.mkdir(parents=True)
    bad.write_text(
        "on: pull_request_target\njobs:\n  a:\n    runs-on: ubuntu-24.04\n    steps:\n"
        "      - run: echo ${{ github.event.pull_request.title }}\n"
    )
    zizmor = [str(Path(sys.executable).with_name("zizmor")), "--offline", "--quiet", "--persona", "pedantic"]
    assert not list(ROOT.glob(".github/zizmor.y*ml")), "exceptions"
    assert not [path for path in WORKFLOWS if "zizmor: ignore" in path.read_text(encoding="utf-8")]
    for directory, clean in ((ROOT / ".github", True), (tmp_path, False)):
        done = subprocess.run([*zizmor, str(directory)], capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is clean, done.stdout + done.stderr


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_of_a_lock_has_hashes(lock: str) -> None:
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", (ROOT / lock).read_text(encoding="utf-8"))[1:]
    assert entries
    for entry in entries:
        assert re.match(r"[\w.\[\],-]+==\S+", entry), entry.splitlines()[0]
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


@pytest.mark.parametrize("path", DOCKERFILES, ids=ids(DOCKERFILES))
def test_an_image_installs_wheels_with_hashes_only(path: Path) -> None:
    """A source archive would run its setup.py, and a package without a hash can be another one."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^#.*\n", "", path.read_text(encoding="utf-8")))
    installs = [part for part in re.split(r"&&|\n", text) if re.search(r"\bpip\d?\b.*\binstall\b", part)]
    assert installs
    for part in installs:
        assert "--only-binary :all: --require-hashes" in part, part
        assert re.search(r" -r \w+\.txt\s*$", part), part
    assert not re.search(r"--(?:extra-)?index-url|--trusted-host|\bnpm\b|\bcurl\b[^&]*-k|http://", text)
    for base in re.findall(r"(?m)^ARG BASE=(\S+)$", text):
        pinned = re.search(r"@sha256:[0-9a-f]{64}$", base)
        assert pinned or base.partition(":")[0] in BASES_WITHOUT_DIGEST, base
    assert set(re.findall(r"(?m)^FROM (\S+)", text)) == {"${BASE}"}


@pytest.mark.parametrize("name", ["checkov.yaml", "vulnerabilities.yaml"])
def test_each_exception_of_the_audit_gives_a_reason(name: str) -> None:
    entries = load(ROOT / "tests/audit" / name)
    assert entries
    for key, entry in entries.items():
        assert re.fullmatch(r"CKV2?_K8S_\d+|CVE-\d{4}-\d+", key)
        assert len(entry["reason"].split()) > 4, key


@pytest.mark.parametrize("path", sorted(ROOT.glob("tests/*/binaries/*/go.sum")), ids=lambda path: path.parent.name)
def test_programs_that_the_tests_build_are_pinned_with_their_modules(path: Path) -> None:
    """go build checks each module with go.sum, because -mod=readonly may not change it."""
    assert (path.parent / "go.mod").is_file()
    assert " h1:" in path.read_text(encoding="utf-8")


def test_go_modules_are_compared_with_the_checksum_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a machine sets for its private modules, in variables or with `go env -w`."""
    settings = tmp_path / "env"
    settings.write_text("GONOSUMDB=*\nGOSUMDB=off\nGOINSECURE=*\nGOPRIVATE=*\n")
    monkeypatch.setenv("GOENV", str(settings))
    monkeypatch.setenv("GONOSUMDB", "*")
    monkeypatch.setenv("GOSUMDB", "off")
    monkeypatch.setenv("GOFLAGS", "-insecure")
    try:
        with go_build.workshop(tmp_path) as environment:
            names = ["GOSUMDB", "GONOSUMDB", "GOINSECURE", "GOPRIVATE", "GOFLAGS"]
            found = json.loads(go_build.run(["go", "env", "-json", *names], environment, print))
    except go_build.Unusable as reason:
        pytest.skip(f"{reason}: install Go")
    assert [found[name] for name in names] == ["sum.golang.org", "none", "none", "none", "-modcacherw"]


def faults(line: str, root: Path) -> set[str]:
    """Return the rules of `yard image check` that fail or warn at one line of a Dockerfile."""
    text = f"FROM docker.io/library/python:3.12@sha256:{'a' * 64}\n{line}\nUSER 1000\n"
    found = verdicts(Subject("Dockerfile", parse(text, "Dockerfile"), root, Ignore()))
    told = (State.FAIL, State.WARN)
    return {str(one.details["rule"]) for one in found if one.state in told and one.details["line"] == 2}


@pytest.mark.parametrize(
    "line",
    [
        "ADD http://example.com/data-1.0.tar.gz /data",
        "RUN cd /tmp && curl -sSkLO https://example.com/data-1.0.tar.gz",
        "RUN curl --insecure https://example.com/data-1.0.tar.gz -o x",
        "RUN wget --no-check-certificate https://example.com/data-1.0.tar.gz",
        "RUN git clone --branch v1.0 git://example.com/a",
        "RUN GIT_SSL_NO_VERIFY=1 git clone --branch v1.0 https://example.com/a",
        "RUN git -c http.sslVerify=false clone --branch v1.0 https://example.com/a",
        "RUN pip install --no-cache-dir --index-url http://index.example.com/simple torch==2.15.0",
        "RUN pip install --no-cache-dir --trusted-host index.example.com torch==2.15.0",
        "ENV PIP_INDEX_URL=http://index.example.com/simple",
        "ENV PYTHONHTTPSVERIFY=0",
        "ENV GOSUMDB=off",
        "RUN pip config set global.trusted-host index.example.com",
        "RUN apt-get -o Acquire::https::Verify-Peer=false update",
        "RUN dnf -y --setopt=sslverify=0 install a && dnf clean all",
        "RUN apk add --no-cache --allow-untrusted a.apk",
        "RUN echo 'deb [trusted=yes] http://example.com/debian stable main' > /etc/apt/sources.list",
    ],
)
def test_a_download_that_nobody_checks_is_a_warning(line: str, tmp_path: Path) -> None:
    assert "transport" in faults(line, tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        f"ADD --checksum=sha256:{'a' * 64} http://example.com/data-1.0.tar.gz /data",
        'RUN curl -LO http://example.com/data-1.0.tar.gz && echo "$SUM data-1.0.tar.gz" | sha256sum --check',
        "RUN pip install --no-cache-dir --index-url http://localhost:3141/simple torch==2.15.0",
        "RUN echo 'deb http://mirror.example.com/debian bookworm main' > /etc/apt/sources.list",
        "RUN curl -LO https://example.com/data-1.0.tar.gz",
    ],
)
def test_a_checked_download_passes(line: str, tmp_path: Path) -> None:
    assert "transport" not in faults(line, tmp_path)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("git clone --branch v1.0 https://x:$(cat /run/secrets/gh)@github.com/a/b", True),
        ("git config --global url.https://${GH}@github.com/.insteadOf https://github.com/", True),
        ("pip config set global.index-url https://me:$KEY@index.example.com/simple", True),
        ("git clone --branch v1.0 https://x:$GH@github.com/a/b /b && rm -rf /b/.git", False),
        ("git clone --branch v1.0 https://github.com/a/b", False),
        ("hf auth login --token $(cat /run/secrets/gh)", True),
        ("wandb login $WANDB", True),
        ("aws configure set aws_session_token $(cat /run/secrets/gh)", True),
        ("huggingface-cli login --token $T && ./fetch.sh && rm -rf ~/.cache/huggingface/token", False),
    ],
)
def test_a_credential_that_a_command_writes_into_a_layer_is_found(line: str, found: bool, tmp_path: Path) -> None:
    assert ("secrets" in faults(f"RUN --mount=type=secret,id=gh {line}", tmp_path)) is found


def test_a_torch_that_executes_pickles_is_a_warning(tmp_path: Path) -> None:
    """Not a failure: on Trainium there is no newer one."""
    for version, state in (("2.9.1", State.WARN), ("2.10.0", State.PASS)):
        text = f"FROM python:3.12\nRUN pip install --no-cache-dir torch=={version}\n"
        found = verdicts(Subject("Dockerfile", parse(text, "Dockerfile"), tmp_path, Ignore()))
        (said,) = [one for one in found if one.details["rule"] == "advisory"]
        assert (said.state, "CVE-2026-24747" in said.summary) == (state, True)
