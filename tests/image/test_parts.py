"""The parts of build, push and pin that need no engine: tags, context, arguments, ECR, the pinned file."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from botocore.stub import Stubber
from ruamel.yaml import YAML

from tools.aws.session import AwsError, Session
from tools.cells import knobs, kustomize, locate
from tools.cells.knobs import Knobs
from tools.cli import invoke
from tools.core import repo
from tools.core.errors import UserError
from tools.image import ecr, overlay, pin, push, registry, tags
from tools.image.build import NAMESPACE, refuse_secrets
from tools.image.dockerfile import context, dockerignore
from tools.image.engine import Engine

DIGEST = "sha256:" + "ab" * 32
ECR = "123456789012.dkr.ecr.us-east-1.amazonaws.com"


def git(root: Path, *words: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    subprocess.run(["git", "-C", str(root), *identity, *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("1\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_tags_follow_the_repository(repository: Path) -> None:
    """Without a tag, on one, behind one, with a change, and detached."""
    sha = tags.tag("sha", repository)
    assert len(sha) == 12
    assert sha.startswith(tags.tag("describe", repository))
    git(repository, "tag", "v1.2.0")
    assert tags.tag("describe", repository) == "v1.2.0"
    assert tags.tag("semver", repository) == "1.2.0"
    (repository / "train.py").write_text("2\n")
    assert tags.tag("describe", repository) == "v1.2.0-dirty"
    with pytest.raises(UserError, match="not committed"):
        tags.tag("semver", repository)
    git(repository, "commit", "-qam", "second")
    assert tags.tag("describe", repository).startswith("v1.2.0-1-g")
    with pytest.raises(UserError, match="no tag like"):
        tags.tag("semver", repository)
    git(repository, "checkout", "-q", "--detach", "v1.2.0")
    assert tags.tag("semver", repository) == "1.2.0"
    assert tags.revision(repository) == tags.revision(repository).removesuffix("-dirty")


def test_without_a_repository_only_the_time_is_a_tag(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--tag-from describe: git status: not a git repository"):
        tags.tag("describe", tmp_path)
    assert tags.valid(tags.tag("time", tmp_path)) == tags.tag("time", tmp_path)[:15]
    assert tags.valid("v1.2.0+cu121/x") == "v1.2.0-cu121-x"


@pytest.mark.parametrize(
    ("name", "repository", "tag"),
    [
        ("train", "train", ""),
        ("localhost:5000/train", "localhost:5000/train", ""),
        ("registry.example.com:443/a/b_c:v1.2", "registry.example.com:443/a/b_c", "v1.2"),
        (f"{ECR}/team/train@{DIGEST}", f"{ECR}/team/train", DIGEST),
        (f"a/b:1@{DIGEST}", "a/b", DIGEST),
        ("a/b:1", "a/b", "1"),
        ("127.0.0.1:5000/a/b:1", "127.0.0.1:5000/a/b", "1"),
        ("127.0.0.1:5000/a/b", "127.0.0.1:5000/a/b", ""),
    ],
)
def test_a_name_is_split_as_the_registry_reads_it(name: str, repository: str, tag: str) -> None:
    assert registry.split(name) == (repository, tag)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pin", "trainer-cp"], "did you mean trainer-cpu?"),
        (["pin", "trainer-cpu", "a/b@sha256:12"], "'sha256:12' is not a digest"),
        (["overlay", ".", "--on", "Team/X:1"], "team/x: lower case"),
        (["push", "trainer-cpu", "--to", "a/b:1 2"], "'1 2' is not a tag"),
        (["build", "trainer-cpu", "--repository", "a/b:1"], "a name without a tag"),
        (["build", "trainer-cpu", "--platform", "arm64"], "not OS/ARCH"),
    ],
)
def test_a_wrong_name_is_an_error_without_an_engine(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    assert invoke(["image", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""


def test_a_huge_context_is_refused_with_its_largest_parts(tmp_path: Path) -> None:
    """Ten GiB in a sparse file. Control: .dockerignore excludes it."""
    (tmp_path / "data/imagenet").mkdir(parents=True)
    with (tmp_path / "data/imagenet/train.bin").open("wb") as file:
        file.truncate(10 * context.GIB)
    (tmp_path / "train.py").write_text("1\n")
    with pytest.raises(UserError, match=r"10\.0 GiB in 2 files, and the limit is 2\.0 GiB: data/imagenet/ 10\.0 GiB"):
        context.guard(tmp_path, dockerignore.Ignore())
    found = context.guard(tmp_path, dockerignore.parse("data\n"))
    assert (found.files, found.size) == (1, 2)


@pytest.mark.parametrize(
    ("rules", "sent"),
    [
        ("", {"a.py", "src/b.py", "src/deep/c.pyc", "data/x.bin"}),
        ("data\n**/*.pyc\n", {"a.py", "src/b.py"}),
        ("*\n!src\nsrc/deep\n", {"src/b.py"}),
        ("*\n!src/deep/c.pyc\n", {"src/deep/c.pyc"}),
        ("src\ndata\n!**/c.*\n", {"a.py", "src/deep/c.pyc"}),
        ("# data\n/data/\n", {"a.py", "src/b.py", "src/deep/c.pyc"}),
        ("src/*\n", {"a.py", "data/x.bin"}),
        ("?.py\n", {"src/b.py", "src/deep/c.pyc", "data/x.bin"}),
    ],
)
def test_dockerignore(rules: str, sent: set[str], tmp_path: Path) -> None:
    for name in ("a.py", "src/b.py", "src/deep/c.pyc", "data/x.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    assert {name for name, _ in dockerignore.files(tmp_path, dockerignore.parse(rules))} == sent


def test_a_link_is_sent_as_a_link(tmp_path: Path) -> None:
    """Also a link to a directory. Links that leave the context are listed."""
    tree = tmp_path / "tree"
    (tree / "runs").mkdir(parents=True)
    (tree / "runs/a.bin").write_bytes(b"x" * 9000)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("x")
    for name, target in {"latest": "runs", "up": "../outside", "runs/abs": "/etc/hosts"}.items():
        (tree / name).symlink_to(target)
    os.mkfifo(tree / "pipe")
    rules = dockerignore.parse("runs/a.bin\n")
    assert {name for name, _ in dockerignore.files(tree, rules)} == {"latest", "up", "runs/abs"}
    assert sorted(context.measure(tree, rules).outward) == ["runs/abs -> /etc/hosts", "up -> ../outside"]
    before = overlay.content(tree, rules, "sha256:x")
    (tree / "latest").unlink()
    (tree / "latest").symlink_to("runs2")
    assert overlay.content(tree, rules, "sha256:x") != before


def test_our_own_context_is_code_and_the_lock() -> None:
    """The context of our images has no runs, no data and no environment, and is small."""
    found = context.measure(repo.root(), dockerignore.read(repo.root()))
    assert 100 < found.files < 3000
    assert found.size < 32 * 2**20, found.largest
    names = {name for name, _ in dockerignore.files(repo.root(), dockerignore.read(repo.root()))}
    assert {"requirements.lock", "images/layers.py", "training/entrypoint.py"} <= names
    assert not any(name.startswith((".git", ".venv", "local")) for name in names)
    assert {name for name in names if name.startswith("tests")} == {"tests/neuron/requirements.lock"}


@pytest.mark.parametrize("arguments", [{"HF_TOKEN": "x"}, {"NOTE": "hf_AbCdEfGhIjKlMnOpQrStUvWx"}])
def test_a_secret_as_build_argument_is_refused(arguments: dict[str, str]) -> None:
    with pytest.raises(UserError, match="would stay in the image's history") as caught:
        refuse_secrets(arguments)
    assert "hf_AbC" not in f"{caught.value} {caught.value.hint}"
    refuse_secrets({"BASE": "python:3.12", "TOKENIZERS_PARALLELISM": "false"})


def test_without_docker_the_build_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert invoke(["image", "build", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "no docker on PATH, and nothing was built" in said.err


def test_an_ecr_repository_is_created_once_with_our_settings(aws: None) -> None:
    import boto3

    said: list[str] = []
    session = Session("us-east-1")
    ecr.ensure(session, "123456789012", "team/train", said.append)
    (found,) = boto3.client("ecr", region_name="us-east-1").describe_repositories()["repositories"]
    assert {key: found[key] for key in ecr.SETTINGS} == ecr.SETTINGS
    assert "created the repository team/train" in said[0]
    ecr.ensure(session, "123456789012", "team/train", said.append)
    assert len(said) == 1
    boto3.client("ecr", region_name="us-east-1").create_repository(repositoryName="old")
    ecr.ensure(session, "123456789012", "old", said.append)
    assert any("imageTagMutability MUTABLE" in line and "it was not changed" in line for line in said)


def test_another_accounts_repository_is_one_error(aws: None) -> None:
    with pytest.raises(UserError, match="belongs to account 123456789012, and the repository to 999999999999"):
        ecr.ensure(Session("us-east-1"), "999999999999", "team/train", print)


DENIED = "User: arn:aws:iam::123456789012:user/jane is not authorized to perform: {} on resource: {}"
TRAIN = "arn:aws:ecr:us-east-1:123456789012:repository/team/train"


@pytest.mark.parametrize(
    ("service", "operation", "code", "text", "said"),
    [
        ("sts", "get_caller_identity", "ExpiredToken", "it is expired", "credentials have expired"),
        ("ecr", "describe_repositories", "", TRAIN, f"permission: ecr:DescribeRepositories on {TRAIN}"),
        ("ecr", "create_repository", "", TRAIN, f"permission: ecr:CreateRepository on {TRAIN}"),
        ("ecr", "get_authorization_token", "", "*", r"permission: ecr:GetAuthorizationToken on \*"),
    ],
)
def test_a_refusal_of_aws_names_action_and_resource(
    aws: None, monkeypatch: pytest.MonkeyPatch,
    service: str, operation: str, code: str, text: str, said: str,
) -> None:  # fmt: skip
    """moto allows everything, so the refusal comes from the Stubber, and the calls before it from moto."""
    session = Session("us-east-1")
    monkeypatch.setattr(ecr, "Session", lambda region: session)
    action = f"ecr:{session.client(service).meta.method_to_api_mapping[operation]}"
    with Stubber(session.client(service)) as stub:
        if operation == "create_repository":
            stub.add_client_error("describe_repositories", "RepositoryNotFoundException")
        if operation == "get_authorization_token":
            stub.add_response("describe_repositories", {"repositories": [ecr.SETTINGS]})
        stub.add_client_error(operation, code or "AccessDeniedException", text if code else DENIED.format(action, text))
        with pytest.raises(AwsError, match=said) as caught:
            ecr.prepare(f"{ECR}/team/train", Engine("no-such-docker"), print)
    assert caught.value.code == 3


@pytest.mark.parametrize("name", [ECR, f"{ECR[1:]}/team/train", "123456789012.dkr.ecr.amazonaws.com/team/train"])
def test_an_invalid_name_of_ecr_is_an_error(name: str) -> None:
    """No name, an account of eleven digits, no region. Control: other registries pass."""
    with pytest.raises(UserError, match="is not the name of an ECR repository") as caught:
        ecr.prepare(name, Engine("no-such-docker"), print)
    assert caught.value.hint == ecr.FORM
    assert not ecr.prepare("public.ecr.aws/docker/library/python", Engine("no-such-docker"), print)


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ("denied: requested access to the resource is denied", "refuses the push"),
        ("no basic auth credentials", "refuses the push"),
        ("tag invalid: The image tag '1' already exists and cannot be overwritten: immutable", "to move"),
        ("Get http://127.0.0.1:5000/v2/: dial tcp: connect: connection refused", "does not answer"),
        ("write /var/lib/docker/tmp/x: no space left on device", "the disk is full"),
    ],
)  # fmt: skip
def test_the_cause_of_a_failed_push(said: str, part: str) -> None:
    problem = push.refusal("r.example/a:1", f"The push refers to repository [r.example/a]\n{said}\n")
    assert part in problem.message
    assert problem.code == 1


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in (
        "base/pytorchjob",
        "overlays/hardware/cpu",
        "overlays/model/llama-tiny",
        "overlays/cpu/llama-tiny",
    ):
        shutil.copytree(repo.root() / name, tmp_path / name)
    shutil.copytree(repo.root() / "overlays/images", tmp_path / "overlays/images")
    return tmp_path


def test_a_pinned_digest_is_what_the_cell_renders(checkout: Path) -> None:
    """Each name has one entry. The same pin changes nothing; another pin replaces it."""
    diff = pin.pin("trainer-cpu", "registry.example/team/trainer-cpu", DIGEST, checkout)
    assert f"+    digest: {DIGEST}" in diff
    assert pin.pin("trainer-cpu", "registry.example/team/trainer-cpu", DIGEST, checkout) == ""
    pin.pin("trainer-cuda", "registry.example/team/trainer-cuda", DIGEST, checkout)
    other = DIGEST.replace("ab", "cd")
    pin.pin("trainer-cpu", "registry.example/team/trainer-cpu", other, checkout)
    text = (checkout / pin.FILE).read_text()
    assert text.startswith("# Which images all cells run.")
    assert [one["name"] for one in YAML(typ="safe").load(text)["images"]] == [
        f"{NAMESPACE}/trainer-cpu", f"{NAMESPACE}/trainer-cuda",
    ]  # fmt: skip
    renderer = kustomize.find(repo.root())
    if renderer is None:
        pytest.skip("no kustomize or kubectl on PATH: install kustomize 5.4 or newer")
    rendered = renderer.build(checkout / "overlays/cpu/llama-tiny")
    assert f"image: registry.example/team/trainer-cpu@{other}\n" in rendered
    assert NAMESPACE not in rendered


def test_only_images_of_cells_are_pinned() -> None:
    with pytest.raises(UserError, match="no cell or service runs an image trainer-gpu") as caught:
        pin.pin("trainer-gpu", "r.example/x", DIGEST)
    assert "did you mean trainer-cpu?" in str(caught.value.hint)


@pytest.mark.parametrize(("service", "image"), [("debug", "toolbox"), ("tensorboard", "tensorboard")])
def test_a_pinned_digest_is_what_a_service_renders(service: str, image: str, tmp_path: Path) -> None:
    renderer = kustomize.find(repo.root())
    if renderer is None:
        pytest.skip("no kustomize or kubectl on PATH: install kustomize 5.4 or newer")
    for part in (f"base/services/{service}", "overlays/images"):
        shutil.copytree(repo.root() / part, tmp_path / part)
    path = tmp_path / f"base/services/{service}"
    assert f"image: {NAMESPACE}/{image}:0.1.0\n" in renderer.build(path)
    pin.pin(image, f"registry.example/team/{image}", DIGEST, tmp_path)
    assert f"image: registry.example/team/{image}@{DIGEST}\n" in renderer.build(path)


def test_a_submitted_job_runs_the_given_image() -> None:
    """`yard job submit --image` submits an overlay's digest. Control: the cell's image before."""
    if kustomize.find(repo.root()) is None:
        pytest.skip("no kustomize or kubectl on PATH: install kustomize 5.4 or newer")
    manifests = locate.rendered("cpu/llama-tiny")
    spec = manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert spec["containers"][0]["image"].startswith(f"{NAMESPACE}/trainer-cpu")
    changed = knobs.applied(manifests, Knobs(image=f"registry.example/team/trainer-cpu@{DIGEST}"))
    spec = changed.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert spec["containers"][0]["image"] == f"registry.example/team/trainer-cpu@{DIGEST}"
