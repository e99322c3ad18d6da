"""`yard image` with a real engine and a real registry, and small images."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docker import buildx
from tests.docker.engine import ECR, ECR_LOGIN, LOGIN, Harness
from tests.parts.gomodule import CannotBuild, Progress
from tools.core.wait import until

Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def _records(engine: Harness) -> Iterator[None]:
    """Remove the records of the test's images."""
    yield
    for path in (engine.tree / "local/images").glob("small*"):
        path.unlink()


def built(engine: Harness, directory: Path, *words: str, **variables: str) -> dict[str, Any]:
    done = engine.yard("build", str(directory), "--json", *words, **variables)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def python(engine: Harness, code: str, **variables: str) -> str:
    """Run Python inside the network, with this project's modules."""
    done = engine.run([sys.executable, "-c", code], variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(params=["buildx", "BuildKit", "classic"])
def builder(request: pytest.FixtureRequest, engine: Harness, say: Progress) -> Iterator[str]:
    """One of the three builders. buildx is only installed for its own tests."""
    plugin = engine.sandbox.root / "docker/cli-plugins/docker-buildx"
    if request.param == "buildx":
        try:
            program = buildx.ensure(say)
        except CannotBuild as problem:
            pytest.skip(str(problem))
        plugin.parent.mkdir(parents=True, exist_ok=True)
        plugin.symlink_to(program)
    yield request.param
    plugin.unlink(missing_ok=True)


def chosen(builder: str) -> str:
    """Return the DOCKER_BUILDKIT of a builder."""
    return "0" if builder == "classic" else "1"


def test_the_record_is_the_image_of_the_engine(engine: Harness, small: Make, builder: str) -> None:
    """With each builder. A changed file gives another image under the same name."""
    first = built(engine, small(), DOCKER_BUILDKIT=chosen(builder))
    assert first["builder"] == builder
    there = json.loads(engine.docker("image", "inspect", first["tags"][0]))[0]
    assert (there["Id"], there["Size"]) == (first["id"], first["size"])
    kept = json.loads((engine.tree / "local/images/small.json").read_text())
    assert kept == {name: first[name] for name in kept}
    assert engine.docker("run", "--rm", first["tags"][0]).strip() == "step 1"
    second = built(engine, small(text="print('step 2')\n"), DOCKER_BUILDKIT=chosen(builder))
    assert second["id"] != first["id"]
    assert second["layers"] == first["layers"]
    assert engine.docker("run", "--rm", second["tags"][0]).strip() == "step 2"


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
    engine: Harness, small: Make, tail: str, kind: str, builder: str
) -> None:
    done = engine.yard("build", str(small(tail)), "--json", DOCKER_BUILDKIT=chosen(builder))
    assert done.returncode == 1
    assert json.loads(done.stdout)["kind"] == kind
    assert not (engine.tree / "local/images/small.json").exists()


def test_a_secret_as_argument_is_refused_because_the_history_would_show_it(engine: Harness, small: Make) -> None:
    """Control: docker accepts it, and shows it in the history."""
    directory = small("ARG HF_TOKEN\nRUN true\n")
    done = engine.yard("build", str(directory), "--build-arg", "HF_TOKEN=hf_secretsecretsecretsecret")
    assert done.returncode == 2
    assert "would stay in the image's history" in done.stderr
    assert "hf_secret" not in done.stderr + done.stdout
    engine.docker("build", "-q", "-t", "control", "--build-arg", "HF_TOKEN=hf_secretsecretsecretsecret", str(directory))
    assert "hf_secretsecretsecretsecret" in engine.docker("history", "--no-trunc", "control")


def test_a_pushed_image_has_one_digest_and_can_be_pulled(engine: Harness, small: Make, registry: str) -> None:
    """The digest from three sources, an equal push, another image under that tag, a pull by digest."""
    first = built(engine, small())
    target = f"{registry}/team/small:1"
    done = engine.yard("push", "small", "--to", target, "--json")
    assert done.returncode == 0, done.stderr
    digest = json.loads(done.stdout)["digest"]
    status, headers = engine.get("/v2/team/small/manifests/1", "HEAD")
    assert (status, headers["docker-content-digest"]) == (200, digest)
    assert json.loads((engine.tree / "local/images/small.json").read_text())["digests"] == {
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


def test_a_moved_tag_is_a_mismatch(engine: Harness, small: Make, registry: str) -> None:
    """Another image gets the tag between push and check. Control: before that the digests are equal."""
    built(engine, small())
    target = f"{registry}/team/raced:1"
    assert engine.yard("push", "small", "--to", target).returncode == 0
    digest = engine.get("/v2/team/raced/manifests/1", "HEAD")[1]["docker-content-digest"]
    code = (
        "from tools.image.engine import Engine; from tools.image.push import verify;"
        "from tools.core.errors import UserError\n"
        f"try:\n    verify(Engine(), {target!r}, {digest!r})\n    print('equal')\n"
        "except UserError as problem:\n    print(problem)"
    )
    assert python(engine, code) == "equal"
    other = built(engine, small(text="print('other')\n"))
    engine.docker("tag", other["id"], f"{registry}/team/raced:other")
    engine.docker("push", f"{registry}/team/raced:other")
    moved = python(
        engine,
        "import urllib.request as r; kind='application/vnd.docker.distribution.manifest.v2+json';"
        f"base='http://{registry}/v2/team/raced/manifests/';"
        "body=r.urlopen(r.Request(base+'other', headers={'Accept': kind})).read();"
        "print(r.urlopen(r.Request(base+'1', body, {'Content-Type': kind}, method='PUT')).status)",
    )
    assert moved == "201"
    assert "differ" in python(engine, code)


def test_pin_asks_the_registry_first(engine: Harness, registry: str) -> None:
    before = (engine.tree / "overlays/images/kustomization.yaml").read_text()
    done = engine.yard("pin", "trainer-cpu", f"{registry}/team/nothing:1")
    assert done.returncode == 1
    assert "nothing was pinned" in done.stderr
    assert (engine.tree / "overlays/images/kustomization.yaml").read_text() == before


def test_a_registry_that_is_down_is_an_error(engine: Harness, small: Make, registry: str) -> None:
    """The image is still there, and is pushed once the registry is back."""
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


def test_a_registry_that_refuses_is_an_error(engine: Harness, small: Make) -> None:
    """The registry needs a login. Control: the same push after the login."""
    built(engine, small())
    host = engine.closed_registry()
    done = engine.yard("push", "small", "--to", f"{host}/team/small:1")
    assert done.returncode == 3, done.stderr
    assert "no basic auth credentials" in done.stderr or "unauthorized" in done.stderr
    assert "docker login" in done.stderr
    engine.docker("login", "--username", LOGIN[0], "--password", LOGIN[1], host)
    assert engine.yard("push", "small", "--to", f"{host}/team/small:1").returncode == 0


def test_a_repository_of_ecr_is_created_and_pushed_to(engine: Harness, small: Make) -> None:
    """From the command line, with moto for AWS. Control: the registry refuses other logins."""
    built(engine, small())
    aws = engine.start_ecr()
    target = f"{ECR}/team/small:1"
    assert engine.get("/v2/team/small/manifests/1", "HEAD", ECR, "https")[0] == 401
    done = engine.yard("push", "small", "--to", target, "--json", **aws)
    assert done.returncode == 0, done.stderr
    assert "created the repository team/small in us-east-1" in done.stderr
    digest = json.loads(done.stdout)["digest"]
    status, headers = engine.get("/v2/team/small/manifests/1", "HEAD", ECR, "https", login=":".join(ECR_LOGIN))
    assert (status, headers["docker-content-digest"]) == (200, digest)
    code = "import boto3; print(boto3.client('ecr', 'us-east-1').describe_repositories()['repositories'])"
    said = python(engine, code, **aws)
    assert "'imageTagMutability': 'IMMUTABLE'" in said
    assert "{'scanOnPush': True}" in said
    assert "'encryptionType': 'AES256'" in said
    done = engine.yard("push", "small", "--to", target, **aws)
    assert done.returncode == 0, done.stderr
    assert "already exists with this digest" in done.stderr
    built(engine, small(text="print('another')\n"))
    done = engine.yard("push", "small", "--to", target, **aws)
    assert done.returncode == 1
    assert "is another image" in done.stderr


def test_a_context_of_10_gib_is_not_sent(engine: Harness, small: Make) -> None:
    """A sparse file. With .dockerignore the same build succeeds."""
    directory = small()
    (directory / "runs").mkdir()
    with (directory / "runs/checkpoint.bin").open("wb") as file:
        file.truncate(10 * 2**30)
    done = engine.yard("build", str(directory))
    assert done.returncode == 2
    assert "10.0 GiB" in done.stderr
    assert "runs/checkpoint.bin 10.0 GiB" in done.stderr
    (directory / ".dockerignore").write_text("runs\n")
    built(engine, directory)


def test_fix_builds_a_repaired_copy_and_push_needs_passed_tests(engine: Harness, small: Make, registry: str) -> None:
    """A missing module is repaired in the copy only. Without --fix nothing is pushed."""
    directory = small()
    text = (directory / "Dockerfile").read_text()
    text = text.replace(
        "COPY app.py", "RUN python3 -m venv /v && /v/bin/pip install --no-cache-dir six==1.17.0\nCOPY app.py"
    )
    text = text.replace("ENTRYPOINT", "ENV PATH=/v/bin:/usr/bin:/bin\nENTRYPOINT")
    (directory / "Dockerfile").write_text(text)
    words = [
        "--repository",
        f"{registry}/team/fixed",
        "--test",
        "quick",
        "--module",
        "yaml",
        "--push",
        "--json",
    ]
    done = engine.yard("build", str(directory), *words)
    assert done.returncode == 1
    assert json.loads(done.stdout)["pushed"] == {}
    assert engine.get("/v2/team/fixed/manifests/0.1.0", "HEAD")[0] == 404
    done = engine.yard("build", str(directory), *words, "--fix")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (
        said["pushed"][f"{registry}/team/fixed"]
        == engine.get("/v2/team/fixed/manifests/0.1.0", "HEAD")[1]["docker-content-digest"]
    )
    assert "six==1.17.0 pyyaml==" in said["repaired"]["diff"]
    assert json.loads(engine.docker("image", "inspect", said["id"]))[0]["Config"]["User"] == "1000:1000"
    assert (directory / "Dockerfile").read_text() == text


def test_a_full_disk_is_the_cause(engine: Harness, small: Make) -> None:
    """A second engine whose images are on a small file system."""
    socket = engine.second_daemon("64m")
    directory = small()
    (directory / "big").write_bytes(bytes(96 * 2**20))
    (directory / "Dockerfile").write_text("FROM scratch\nCOPY big /\nUSER 1000\n")
    done = engine.yard("build", str(directory), "--json", DOCKER_HOST=socket, DOCKER_BUILDKIT="0")
    assert done.returncode == 1, done.stdout
    assert json.loads(done.stdout)["kind"] == "no space"


def test_an_engine_that_dies_in_a_build_is_the_cause(engine: Harness, small: Make) -> None:
    """There is no record. Once the engine is back, it builds."""
    directory = small("RUN sleep 300\n")
    with engine.begin("build", str(directory), "--json", DOCKER_BUILDKIT="0") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "RUN sleep" in line:
                break
        assert until(lambda: bool(engine.docker("ps", "--quiet").strip()), 60)
        engine.kill(engine.daemon)
        out, _ = process.communicate(timeout=120)
    engine.daemon = engine.start_daemon()
    assert process.returncode == 1
    assert json.loads(out)["kind"] == "engine stopped"
    assert not (engine.tree / "local/images/small.json").exists()
    built(engine, small())


def test_a_missing_module_fails_the_test(engine: Harness, small: Make) -> None:
    """It is named, and fix would install its package."""
    directory = small()
    name = built(engine, directory)["tags"][0]
    done = engine.yard("test", name, "--level", "quick", "--module", "json", "--module", "yaml")
    assert done.returncode == 1
    assert "yaml: ModuleNotFoundError" in done.stdout
    assert engine.yard("test", name, "--level", "quick", "--module", "json").returncode == 0
    text = (directory / "Dockerfile").read_text()
    (directory / "Dockerfile").write_text(text.replace("USER", "RUN pip install --no-cache-dir six==1.17.0\nUSER"))
    done = engine.yard("fix", str(directory), "--image", name, "--module", "yaml")
    assert "six==1.17.0 pyyaml==" in done.stdout, done.stderr


def test_an_overlay_is_one_layer_by_its_content(engine: Harness, small: Make, registry: str, tmp_path: Path) -> None:
    """A changed tree is another image, an equal one the same. .dockerignore excludes files."""
    name = f"{registry}/team/below:1"
    built(engine, small("WORKDIR /app\n"), "--repository", f"{registry}/team/below")
    engine.docker("tag", f"{registry}/team/below:0.1.0", name)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "app.py").write_text("print('mine')\n")
    (tree / "secret.env").write_text("x\n")
    (tree / ".dockerignore").write_text("*.env\n")
    (tree / "deep").mkdir()
    (tree / "deep/x.py").write_text("x = 1\n")
    (tree / "linked").symlink_to("deep")
    (tree / "hosts").symlink_to("../../etc/hosts")
    both = [engine.yard("overlay", str(tree), "--on", name, "--json") for _ in range(2)]
    said = [json.loads(one.stdout) for one in both]
    assert "hosts -> ../../etc/hosts" in both[0].stderr
    assert "linked" not in both[0].stderr
    assert [one["built"] for one in said] == [True, False]
    assert said[0]["id"] == said[1]["id"]
    layers = [
        json.loads(engine.docker("image", "inspect", one))[0]["RootFS"]["Layers"] for one in (name, said[0]["name"])
    ]
    assert layers[1][:-1] == layers[0]
    assert engine.docker("run", "--rm", said[0]["name"]).strip() == "mine"
    listed = engine.docker("run", "--rm", "--entrypoint", "ls", said[0]["name"], "-Al", "/app")
    assert "secret.env" not in listed
    assert "linked -> deep" in listed
    assert "hosts -> ../../etc/hosts" in listed
    (tree / "app.py").write_text("print('changed')\n")
    done = engine.yard("overlay", str(tree), "--on", name, "--push")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{registry}/team/below@sha256:")
    assert engine.docker("run", "--rm", done.stdout.strip()).strip() == "changed"
