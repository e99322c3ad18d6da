"""Images: what a build stores and prints, what an image is said to hold, and who signed it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, cast

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.parts.ports import free_port
from tools.aws.session import Session
from tools.cli import invoke
from tools.core import repo, wait
from tools.core.verdict import State
from tools.image import push, signing
from tools.image.build import Record, load_record, record_path
from tools.image.engine import Engine
from tools.image.remote_build import Log

DIGEST = f"sha256:{'a' * 64}"
ID = f"sha256:{'b' * 64}"
TOKEN = "hf_QmJxT4vKpLwZrYbNcDfGhSaEuWxVtRqPo"
CANARIES = (TOKEN, "hunter2-hunter2", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzAb3kQ9Lm")
SAID = (
    f"#5 RUN curl -H 'Authorization: Bearer {TOKEN}' https://example.com",
    f"#6 0.1 machine: https://team:{CANARIES[1]}@index.example.com/simple",
    f"#7 1.0 aws_secret_access_key = {CANARIES[2]}",
)
PROGRAM = f"""#!{sys.executable}
import json, os, pathlib, sys
words = sys.argv[1:]
with open(os.environ["CALLS"], "a") as file:
    print(json.dumps(words), file=file)
name = pathlib.Path(sys.argv[0]).name
answers = json.loads(os.environ["ANSWERS"])
if name == "docker":
    if words[0] == "version":
        print(json.dumps({{"Client": {{"Version": "28.0.0"}}, "Server": {{}} or {{"Version": "28"}}}}))
    elif words[:2] == ["buildx", "build"]:
        print(answers["said"], file=sys.stderr)
        pathlib.Path(words[words.index("--iidfile") + 1]).write_text("{ID}")
        sys.exit(answers.get("code", 0))
    elif "--format" in words:
        print("/app")
    elif words[:2] == ["image", "inspect"]:
        print(json.dumps([{{"Id": "{ID}", "Size": 1, "Architecture": "amd64"}}]))
    elif words[0] == "run":
        print(json.dumps({{"system": "debian", "packages": answers["packages"]}}))
else:
    code, text = answers.get(words[0], [0, ""])
    print(text)
    sys.exit(code)
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for docker and cosign, which write their words to the returned file."""
    (tmp_path / "bin").mkdir()
    for name in ("docker", "cosign"):
        (tmp_path / "bin" / name).write_text(PROGRAM)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("ANSWERS", "{}")
    monkeypatch.setattr(repo, "local", lambda: tmp_path / "local")
    (tmp_path / "local/images").mkdir(parents=True)
    return tmp_path / "calls"


Yard = Callable[..., "Done"]


class Done(NamedTuple):
    exit_code: int
    output: str


@pytest.fixture
def yard(capfd: pytest.CaptureFixture[str]) -> Yard:
    """A function that runs `yard image`."""

    def run(*words: str) -> Done:
        code = invoke(["image", *words])
        return Done(code, "".join(capfd.readouterr()))

    return run


def said(path: Path, program: str = "") -> list[list[str]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [words for words in found if not program or words[0] == program]


@pytest.fixture
def dockerfile(tmp_path: Path) -> Path:
    (tmp_path / "image").mkdir()
    path = tmp_path / "image/Dockerfile"
    path.write_text(f"FROM docker.io/library/python:3.12@{DIGEST}\nRUN true\n")
    return path


@pytest.mark.parametrize("code", [0, 1])
def test_secrets_in_the_output_of_a_build_are_not_kept_or_shown(
    yard: Yard, calls: Path, dockerfile: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    log = repo.local() / "images/image.log"
    log.write_text("readable for others")
    log.chmod(0o644)
    answers = {"said": "\n".join([*SAID, f"#8 ERROR: RUN pip install --password {CANARIES[1]}"])}
    monkeypatch.setenv("ANSWERS", json.dumps({**answers, "packages": [], "code": code}))
    done = yard("build", str(dockerfile))
    assert done.exit_code == code, done.output
    text = log.read_text()
    assert "machine: https://" in text
    assert [one for one in CANARIES if one in text + done.output] == []
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_the_lines_of_a_remote_build_are_masked_too() -> None:
    class Logs:
        def find(self, *_: str, **__: object) -> dict[str, object]:
            return {"events": [{"message": line} for line in SAID], "nextForwardToken": None}

    log, told = Log(cast("Session", Logs())), list[str]()
    log.read({"groupName": "a", "streamName": "b"}, told.append)
    assert told == log.lines
    assert len(told) == len(SAID)
    assert [one for one in CANARIES if one in "".join(told)] == []


def test_a_log_that_is_a_link_is_replaced(
    yard: Yard, calls: Path, dockerfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (repo.local() / "images/image.log").symlink_to(victim)
    monkeypatch.setenv("ANSWERS", json.dumps({"said": "#1 done", "packages": []}))
    assert yard("build", str(dockerfile)).exit_code == 0
    assert victim.read_text() == "untouched"


def test_a_build_is_described_by_an_sbom_and_a_provenance(
    yard: Yard, calls: Path, dockerfile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = [
        {"type": "pypi", "name": "Ruamel.YAML", "version": "0.18.1+local"},
        {"type": "deb", "name": "g++", "version": "4:12.2.0-3", "arch": "amd64"},
    ]
    monkeypatch.setenv("ANSWERS", json.dumps({"said": "#1 done", "packages": packages}))
    assert yard("build", str(dockerfile), "--build-arg", "BASE=x").exit_code == 0
    text = (repo.local() / "images/image.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert [one["purl"] for one in json.loads(text)["components"]] == [
        "pkg:deb/debian/g%2B%2B@4%3A12.2.0-3?arch=amd64",
        "pkg:pypi/ruamel-yaml@0.18.1%2Blocal",
    ]
    (run,) = said(calls, "run")
    assert {"--network=none", "--read-only", "--cap-drop"} <= set(run)
    made = json.loads((repo.local() / "images/image.slsa.json").read_text())["buildDefinition"]
    assert made["externalParameters"]["arguments"]["BASE"] == "x"
    assert {"uri": "pkg:docker/docker.io/library/python%3A3.12", "digest": {"sha256": "a" * 64}} in made[
        "resolvedDependencies"
    ]


@pytest.mark.parametrize("name", [".env", "a/.netrc", ".git/config", "notes.txt"])
def test_an_overlay_takes_no_credentials_along(yard: Yard, calls: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "tree" / name
    path.parent.mkdir(parents=True)
    path.write_text(f"{TOKEN}\n")
    done = yard("overlay", str(tmp_path / "tree"), "--on", "localhost/team/image:1")
    assert (done.exit_code, f"{name} would be in the image" in done.output) == (2, True), done.output
    assert TOKEN not in done.output


def pushed(tmp_path: Path) -> str:
    """Record a push of `image`, with its SBOM; return the name that is signed."""
    repository = "registry.example.com/team/image"
    record = Record(
        "image",
        [f"{repository}:1"],
        ID,
        1,
        1,
        "amd64",
        "unknown",
        1.0,
        "now",
        "buildx",
        1,
        {repository: DIGEST},
    )
    record.save()
    record_path("image").with_suffix(".cdx.json").write_text("{}")
    return f"{repository}@{DIGEST}"


def test_a_signature_names_the_digest_and_attests_the_sbom(yard: Yard, calls: Path, tmp_path: Path) -> None:
    image = pushed(tmp_path)
    done = yard("sign", "image", "--key", "cosign.key", "--offline")
    assert done.exit_code == 0, done.output
    signed, attested = said(calls)
    options = ["--yes", "--key=cosign.key", "--use-signing-config=false", "--tlog-upload=false"]
    assert signed == ["sign", *options, image]
    sbom = record_path("image").with_suffix(".cdx.json")
    assert attested == ["attest", *options, "--type=cyclonedx", f"--predicate={sbom}", image]


def test_the_digest_of_another_build_is_not_remembered(calls: Path, tmp_path: Path) -> None:
    """Otherwise the SBOM of this build would be attested for an image with other packages."""
    pushed(tmp_path)
    push.remember("image", "r.example.com/same", DIGEST, Engine())
    record = load_record("image")
    assert record is not None
    assert record.digests["r.example.com/same"] == DIGEST
    dataclasses.replace(record, id=DIGEST).save()
    push.remember("image", "r.example.com/older", DIGEST, Engine())
    again = load_record("image")
    assert again is not None
    assert again.digests == record.digests


@pytest.mark.parametrize(
    "name",
    [
        "registry.example.com/team/image:1",
        "registry.example.com/team/image",
        "image",
        f"--allow-http@{DIGEST}",
        f"r.example.com/a@{DIGEST} --key=x",
        "r.example.com/a@sha256:short",
    ],
)
@pytest.mark.parametrize("verb", ["sign", "verify"])
def test_only_a_digest_is_signed_or_verified(yard: Yard, calls: Path, verb: str, name: str) -> None:
    done = yard(verb, "--key", "k", "--", name)
    assert done.exit_code == 2, done.output
    assert done.output.count("error:") + done.output.count("Error:") == 1
    assert not calls.exists(), "cosign was called"


def answer(digest: str) -> str:
    return json.dumps([{"critical": {"image": {"docker-manifest-digest": digest}}}])


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ({"verify": [0, answer(DIGEST)]}, 0),
        ({"verify": [0, answer(ID)]}, 1),
        ({"verify": [0, "[]"]}, 1),
        ({"verify": [10, "Error: no signatures found"]}, 1),
        ({"verify": [12, "Error: no matching signatures: invalid signature"]}, 1),
        ({"verify": [1, "Error: Get https://r.example.com/v2/: connection refused"]}, 3),
    ],
)
def test_a_verdict_on_a_signature(
    yard: Yard, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: object, code: int
) -> None:
    image = pushed(tmp_path)
    monkeypatch.setenv("ANSWERS", json.dumps(answers))
    done = yard("verify", image, "--identity", "me@example.com", "--issuer", "https://issuer.example.com")
    assert done.exit_code == code, done.output
    who = ["--certificate-identity=me@example.com", "--certificate-oidc-issuer=https://issuer.example.com"]
    assert said(calls)[0] == ["verify", "--output=json", *who, "--insecure-ignore-tlog=false", image]
    assert (DIGEST in done.output, "me@example.com, confirmed by" in done.output) == (True, code != 3)


def test_without_cosign_there_is_one_error(yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = yard("verify", f"r.example.com/a@{DIGEST}", "--key", "cosign.pub")
    assert (done.exit_code, done.output.count("no cosign on PATH")) == (3, 1)


@pytest.mark.parametrize(
    "words", [[], ["--identity", "me"], ["--issuer", "x"], ["--offline"], ["--key", "k", "--identity", "me"]]
)
def test_a_verification_needs_to_know_whose_signature(yard: Yard, calls: Path, words: list[str]) -> None:
    """Otherwise everybody's signature would do."""
    assert yard("verify", f"r.example.com/a@{DIGEST}", *words).exit_code == 2


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A registry on loopback with one image; its name with the digest."""
    if not shutil.which("cosign") or not shutil.which("crane"):
        pytest.skip("no cosign 2.6 and crane on PATH: install both to sign with a real key")
    address = f"127.0.0.1:{free_port()}"
    with subprocess.Popen(["crane", "registry", "serve", "--address", address], stderr=subprocess.DEVNULL) as server:
        try:
            host, _, port = address.partition(":")
            assert wait.until(lambda: socket.socket().connect_ex((host, int(port))) == 0, 60, 0.1)
            yield address
        finally:
            server.kill()


def test_a_real_signature_is_of_one_digest_and_one_key(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COSIGN_PASSWORD", "secret")
    monkeypatch.setattr(repo, "local", lambda: tmp_path / "local")
    images = []
    for text in ("ours", "theirs"):
        Path(text).write_text(text)
        shutil.make_archive(text, "tar", ".", text)
        words = ["crane", "append", "-f", f"{text}.tar", "-t", f"{registry}/team/{text}"]
        images.append(subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip())
    for name in ("mine", "other"):
        words = ["cosign", "generate-key-pair", f"--output-key-prefix={name}"]
        subprocess.run(words, capture_output=True, check=True)
    (tmp_path / "sbom").write_text('{"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}')
    mine, other = (signing.Signer(f"{name}.pub", offline=True) for name in ("mine", "other"))
    signer = signing.Signer("mine.key", offline=True)
    signing.sign(images[0], signer, {"cyclonedx": tmp_path / "sbom"}, print, os.environ)
    verdict = signing.verify(images[0], mine)
    assert verdict.state is State.PASS, verdict
    assert "SBOM attested by the same signer" in verdict.evidence
    assert "provenance not attested" in verdict.evidence
    assert signing.verify(images[0], other).state is State.FAIL
    assert signing.verify(images[1], mine).state is State.FAIL, "another digest"
    gone = f"{images[0].partition('@')[0]}@{DIGEST}"
    assert signing.verify(gone, mine).state is State.FAIL
    # A copied signature is still of the first digest. cosign 2 ends its tag in .sig.
    (first, one), (second, two) = (image.split("@sha256:") for image in images)
    tags = subprocess.run(["crane", "ls", first], capture_output=True, text=True, check=True).stdout.split()
    copied = [tag for tag in tags if tag.startswith(f"sha256-{one}")]
    assert copied
    for tag in copied:
        words = ["crane", "copy", f"{first}:{tag}", f"{second}:{tag.replace(one, two)}"]
        subprocess.run(words, capture_output=True, check=True)
    assert signing.verify(images[1], mine).state is State.FAIL, "a copied signature"
