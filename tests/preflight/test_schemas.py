"""Schemas: every cell satisfies them in Python and in kubeconform, which read the same files."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.core import go_build, repo
from tools.core.errors import UserError
from tools.core.go_build import Unusable
from tools.kube import schema_build, schemas
from tools.kube.manifests import Manifests, parse
from tools.kube.schemas import Schemas

KUBECONFORM = "github.com/yannh/kubeconform/cmd/kubeconform"
KUBECONFORM_VERSION = "0.8.0"

Job = dict[str, Any]
Change = Callable[[Job], object]


def note(line: str) -> None:
    """Take a line of progress."""
    print(line, flush=True)


@pytest.fixture(scope="session")
def kubeconform() -> Path:
    """The pinned kubeconform, built in the checkout's cache if it is missing."""
    program = repo.root() / ".cache" / "bin" / f"kubeconform-{KUBECONFORM_VERSION}"
    try:
        if not program.is_file():
            with go_build.workshop(repo.root()) as environment:
                built = go_build.install(KUBECONFORM, "kubeconform", KUBECONFORM_VERSION, environment, note)
                program.parent.mkdir(exist_ok=True)
                built.replace(program)
    except (Unusable, OSError) as reason:
        pytest.skip(f"kubeconform cannot be built here ({reason}): install Go 1.24 or newer")
    return program


def run(kubeconform: Path, known: Schemas, manifests: str) -> subprocess.CompletedProcess[str]:
    """Run kubeconform: strict, with our files only, a kind without a schema is an error."""
    location = f"{known.directory}/{{{{.Group}}}}_{{{{.ResourceKind}}}}_{{{{.ResourceAPIVersion}}}}.json"
    command = [str(kubeconform), "-strict", "-summary", "-output", "json", "-schema-location", location, "-"]
    return subprocess.run(command, input=manifests, capture_output=True, text=True, timeout=120, check=False)


def worker(job: Job) -> Job:
    """Return the pods' spec."""
    spec: Job = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    return spec


# Each makes the job of any cell invalid; the path is where it is to be found.
FAULTS: list[tuple[str, Change, str]] = [
    (
        "unknown field",
        lambda job: job["spec"]["elasticPolicy"].update(maxRestart=3),
        "spec.elasticPolicy.maxRestart",
    ),
    (
        "unknown field of a container",
        lambda job: worker(job)["containers"][0].update(imagePulPolicy="Always"),
        "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].imagePulPolicy",
    ),
    (
        "text for a number",
        lambda job: job["spec"]["pytorchReplicaSpecs"]["Worker"].update(replicas="2"),
        "spec.pytorchReplicaSpecs.Worker.replicas",
    ),
    (
        "mapping for a list",
        lambda job: worker(job).update(volumes={"name": "shm"}),
        "spec.pytorchReplicaSpecs.Worker.template.spec.volumes",
    ),
    ("number as a label", lambda job: job["metadata"].update(labels={"run": 7}), "metadata.labels.run"),
    ("nothing to run", lambda job: job.pop("spec"), ""),
]


def test_every_cell_satisfies_its_schemas(cells: list[Manifests], known: Schemas) -> None:
    objects = [item for cell in cells for item in cell.objects]
    assert len(objects) > 4 * len(cells)
    assert [(item["kind"], item["metadata"]["name"], known.faults(item)) for item in objects] == [
        (item["kind"], item["metadata"]["name"], []) for item in objects
    ]


@pytest.mark.timeout(900)
def test_kubeconform_says_the_same_of_every_cell(
    rendered: dict[str, str], cells: list[Manifests], known: Schemas, kubeconform: Path
) -> None:
    done = run(kubeconform, known, "\n---\n".join(rendered.values()))
    said = json.loads(done.stdout)
    assert said["resources"] == [], done.stderr
    count = sum(len(cell.objects) for cell in cells)
    assert said["summary"] == {"valid": count, "invalid": 0, "errors": 0, "skipped": 0}
    assert done.returncode == 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "change", "path"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_fault_is_seen_by_both(
    name: str, change: Change, path: str, cells: list[Manifests], known: Schemas, kubeconform: Path
) -> None:
    job = copy.deepcopy(cells[0].job())
    change(job)
    faults = known.faults(job)
    assert faults
    assert [fault.path for fault in faults] == [path]
    done = run(kubeconform, known, json.dumps(job))
    assert done.returncode == 1
    (found,) = json.loads(done.stdout)["resources"]
    assert found["status"] == "statusInvalid", name


@pytest.mark.timeout(900)
def test_a_kind_without_schema_is_an_error_and_not_skipped(known: Schemas, kubeconform: Path) -> None:
    queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "LocalQueue",
        "metadata": {"name": "a"},
        "spec": {},
    }
    assert known.faults(queue) is None
    done = run(kubeconform, known, json.dumps(queue))
    assert done.returncode == 1
    assert json.loads(done.stdout)["summary"]["errors"] == 1


def test_a_misspelt_field_comes_with_the_right_one(known: Schemas) -> None:
    (item,) = parse(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, imge: b}]}", "x"
    ).objects
    (fault,) = known.faults(item) or []
    assert fault == schemas.Fault("spec.containers[0].imge", "unknown field; did you mean image?")


def test_native_kinds_are_there(known: Schemas) -> None:
    for version, kind in (
        *(("v1", "Pod"), ("v1", "PersistentVolume"), ("apps/v1", "DaemonSet"), ("batch/v1", "Job")),
        *(("storage.k8s.io/v1", "StorageClass"), ("networking.k8s.io/v1", "NetworkPolicy")),
    ):
        faults = known.faults({"apiVersion": version, "kind": kind, "metadata": {"name": "a", "nonsense": 1}})
        assert faults is not None
        assert "metadata.nonsense" in [fault.path for fault in faults]


def test_schemas_of_other_versions_are_not_used(tmp_path: Path, known: Schemas) -> None:
    directory = tmp_path / ".cache" / "schemas"
    directory.mkdir(parents=True)
    assert schemas.find(tmp_path) is None
    (directory / schema_build.STAMP).write_text(json.dumps({**schema_build.sources(), "form": "0"}))
    assert schemas.find(tmp_path) is None
    (directory / schema_build.STAMP).write_text(json.dumps(schema_build.sources()))
    assert schemas.find(tmp_path) is not None


def test_another_crd_is_refused_by_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A go that fetches a module whose CRD somebody has changed."""
    module = tmp_path / "module"
    (module / schema_build.OPERATOR_CRD).parent.mkdir(parents=True)
    (module / schema_build.OPERATOR_CRD).write_text("kind: CustomResourceDefinition\n")
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(f'#!/bin/sh\necho \'{{"Dir": "{module}"}}\'\n')
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    monkeypatch.setattr(schema_build, "_native", lambda root, progress: {})
    with pytest.raises(
        UserError, match=f"its SHA-256 is [0-9a-f]{{64}}, not {schema_build.OPERATOR_SHA256}"
    ) as caught:
        schemas.ensure(tmp_path, note)
    assert caught.value.hint == "this needs the network, once"
    assert not (tmp_path / ".cache" / "schemas").exists()
    assert [path.name for path in (tmp_path / ".cache").iterdir()] == []


def test_a_module_is_fetched_below_the_checkout_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text('#!/bin/sh\necho "{\\"Dir\\": \\"$GOMODCACHE/$4\\"}"\n')
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    with go_build.workshop(tmp_path) as environment:
        found = go_build.module("example.org/module", "1.2.3", environment, note)
    assert re.fullmatch(
        r"go-\w+/modules/example\.org/module@v1\.2\.3", str(found.relative_to(tmp_path / ".cache"))
    )
    assert list((tmp_path / ".cache").iterdir()) == []


def test_the_module_as_a_program(known: Schemas) -> None:
    command = [sys.executable, "-m", "tools.kube.schemas"]
    done = subprocess.run(command, cwd=repo.root(), capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout == f"{known.directory}\n"
    assert done.stderr == ""
