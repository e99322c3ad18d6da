"""moto in the process, a moto server for the command line, and answers for operations that moto lacks.

The answers and their requests are validated by botocore's model of the operation, as its Stubber does: an
answer that AWS could not give fails the test.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.aws.wire import Wire
from tests.parts.moto import server
from tools import cli
from tools.aws.session import Session
from tools.cells import kustomize_graph
from tools.cluster import spec, steps
from tools.cluster.spec import Spec
from tools.core import Say, repo

REGION = "us-west-2"
KEYS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_SESSION_TOKEN": "testing",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    "MOTO_EC2_LOAD_DEFAULT_AMIS": "false",  # moto would create hundreds in each account
}


@pytest.fixture(scope="session", autouse=True)
def _computed_once() -> Iterator[None]:
    """Cache what botocore and moto compute again for each session with the same result.

    These are the models of services and the classes of their clients, the aliases of events, whether a
    handler takes keywords, and the methods of a backend.
    """
    import botocore.session
    from botocore import hooks
    from botocore.client import ClientCreator
    from botocore.loaders import create_loader
    from moto.core.utils import method_names_from_class

    aliases: dict[str, str] = {}
    classes: dict[str, Any] = {}
    make_class = ClientCreator._create_client_class
    make, takes_keywords = hooks.EventAliaser.__init__, functools.cache(hooks.accepts_kwargs)

    def with_aliases(self: Any, *given: Any) -> None:
        make(self, *given)
        self._alias_name_cache = aliases

    def class_of(self: Any, service: str, model: Any) -> Any:
        if service not in classes:
            classes[service] = make_class(self, service, model)
        return classes[service]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", functools.cache(create_loader))
        patch.setattr(ClientCreator, "_create_client_class", class_of)
        patch.setattr(hooks.EventAliaser, "__init__", with_aliases)
        patch.setattr(hooks, "accepts_kwargs", lambda one: takes_keywords(getattr(one, "__func__", one)))
        names = functools.cache(method_names_from_class)
        patch.setattr("moto.core.responses.method_names_from_class", names)
        yield


@pytest.fixture(scope="session", autouse=True)
def _read_once() -> Iterator[None]:
    """Cache the references of each kustomization until its content differs."""
    read = kustomize_graph._references
    known: dict[tuple[Path, bytes], list[Path]] = {}

    def references(root: Path, directory: Path) -> list[Path]:
        path = directory / "kustomization.yaml"
        key = (directory, path.read_bytes() if path.is_file() else b"")
        if key not in known:
            known[key] = read(root, directory)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kustomize_graph, "_references", references)
        yield


@pytest.fixture(autouse=True)
def _own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test can reach a real account: the user's profile, endpoint and region are removed."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def moto() -> Iterator[None]:
    """An empty account, 123456789012."""
    from moto import mock_aws

    with mock_aws():
        yield


@pytest.fixture
def session(moto: None) -> Session:
    """A session in the account."""
    return Session(REGION)


Reply = dict[str, Any] | Exception | Callable[..., dict[str, Any]]


@dataclass
class Gaps:
    """Answers of AWS by (service, operation in boto3's spelling), and the calls that they got."""

    replies: dict[tuple[str, str], Reply] = field(default_factory=dict)
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    wire: Wire = field(default_factory=Wire)  # a trouble there comes before an answer here

    def __setitem__(self, key: tuple[str, str], reply: Reply) -> None:
        self.replies[key] = reply

    def parameters(self, operation: str) -> list[dict[str, Any]]:
        return [given for _, name, given in self.calls if name == operation]


@pytest.fixture
def gaps(monkeypatch: pytest.MonkeyPatch) -> Gaps:
    """Answers of the test itself. All other requests go to moto."""
    from botocore import xform_name
    from botocore.client import BaseClient
    from botocore.validate import validate_parameters

    known = Gaps()
    original = BaseClient._make_api_call

    def answer(self: Any, operation: str, given: dict[str, Any]) -> Any:
        service = self.meta.service_model.service_name
        key = (service, xform_name(operation))
        if key not in known.replies or known.wire.has_trouble(service, operation):
            return original(self, operation, given)
        model = self.meta.service_model.operation_model(operation)
        if model.input_shape is not None:
            validate_parameters(given, model.input_shape)
        known.calls.append((*key, given))
        reply = known.replies[key]
        if isinstance(reply, Exception):
            raise reply
        result = reply(**given) if callable(reply) else reply
        if model.output_shape is not None:
            validate_parameters(result, model.output_shape)
        return result

    monkeypatch.setattr(BaseClient, "_make_api_call", answer)
    return known


def refusal(code: str, message: str = "no", status: int = 400, operation: str = "Operation") -> Exception:
    """Return the exception of boto3 for an error of AWS."""
    from botocore.exceptions import ClientError

    response: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, operation)


@dataclass
class Ran:
    """The exit code and output of a `yard` command."""

    code: int
    out: str
    err: str


Yard = Callable[..., Ran]
Change = Callable[..., Spec]
StandIn = Callable[[str], Path]


@pytest.fixture
def yard(capsys: pytest.CaptureFixture[str]) -> Yard:
    """A function that runs `yard cluster` in this process."""

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = cli.invoke(["cluster", *arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def down(yard: Yard) -> Yard:
    """A function that runs `yard cluster down --yes`, expecting what a dry run lists."""

    def run(*arguments: str) -> Ran:
        listed = json.loads(yard("down", *arguments, "--dry-run", "--json").out)["delete"]
        return yard("down", *arguments, "--yes", "--expect", str(len(listed)))

    return run


@pytest.fixture
def own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """`yard cluster create` runs its own commands in this process, where moto's gaps are filled."""
    original = steps.run

    def run(step: steps.Step, hint: str, say: Say) -> None:
        if step.words[0] == "yard":
            cli.yard.main(args=list(step.words[1:]), standalone_mode=False)
        else:
            original(step, hint, say)

    monkeypatch.setattr(steps, "run", run)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A function that puts tests/aws/fake_<name>.py on PATH as <name>; it returns the log of arguments."""

    def install(name: str) -> Path:
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        source = Path(__file__).with_name(f"fake_{name}.py")
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {source} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        log = tmp_path / f"{name}.log"
        monkeypatch.setenv(f"FAKE_{name.upper()}_LOG", str(log))
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        return log

    return install


@pytest.fixture(scope="session")
def _shared_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of base/ and overlays/ that tests do not change. pyproject.toml makes it a checkout."""
    root = tmp_path_factory.mktemp("shared") / "checkout"
    root.mkdir()
    (root / "pyproject.toml").touch()
    for name in ("base", "overlays"):
        shutil.copytree(repo.root() / name, root / name)
    return root


@pytest.fixture
def checkout(_shared_checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the manifests for `yard`. A test may change its clusters/."""
    shutil.copytree(repo.root() / "clusters", _shared_checkout / "clusters")
    monkeypatch.setattr(repo, "root", lambda: _shared_checkout)
    yield _shared_checkout
    shutil.rmtree(_shared_checkout / "clusters")


@pytest.fixture
def change(checkout: Path) -> Change:
    """A function that changes facts of a cluster in the copy and loads it. None removes a fact."""

    def make(name: str, **facts: str | None) -> Spec:
        path = checkout / "clusters" / name / "cluster.env"
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if line.partition("=")[0] not in facts]
        added = [f"{key}={value}" for key, value in facts.items() if value is not None]
        path.write_text("\n".join([*kept, *added]) + "\n", encoding="utf-8")
        return spec.load(checkout, name)

    return make


@pytest.fixture(scope="session")
def moto_server() -> Iterator[str]:
    """The address of a moto server on loopback."""
    with server() as address:
        yield address
