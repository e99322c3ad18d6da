"""Schemas: every cell satisfies them in Python and in kubeconform, which read the same files."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.parts.alone import alone
from tests.preflight import build_schemas
from tools.core import go_build, repo
from tools.core.go_build import Unusable
from tools.core.output import note
from tools.kube import schemas
from tools.kube.manifests import Manifests, parse
from tools.kube.schemas import Schemas

KUBECONFORM = "github.com/yannh/kubeconform/cmd/kubeconform"
KUBECONFORM_VERSION = "0.8.0"
WORKER = "spec.pytorchReplicaSpecs.Worker"
# Values that make the job of any cell invalid, by the path of the fault. None: the field is missing.
FAULTS: dict[str, Any] = {
    "spec.elasticPolicy.maxRestart": 3,
    f"{WORKER}.template.spec.containers[0].imagePulPolicy": "Always",
    f"{WORKER}.replicas": "2",
    f"{WORKER}.template.spec.volumes": {"name": "shm"},
    "metadata.labels.run": 7,
    "spec": None,
}


@pytest.fixture(scope="session")
def kubeconform() -> Path:
    """The pinned kubeconform, built in the checkout's cache if it is missing."""
    program = repo.root() / ".cache" / "bin" / f"kubeconform-{KUBECONFORM_VERSION}"
    try:
        with alone(program):
            if not program.is_file():
                with go_build.workshop(repo.root()) as environment:
                    built = go_build.install(KUBECONFORM, "kubeconform", KUBECONFORM_VERSION, environment, note)
                    built.replace(program)
    except (Unusable, OSError) as reason:
        pytest.skip(f"kubeconform cannot be built here ({reason}): install Go 1.24 or newer")
    return program


@pytest.fixture(scope="session")
def known() -> Schemas:
    return schemas.shipped()


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped schemas as a directory, as kubeconform reads them."""
    directory = tmp_path_factory.mktemp("schemas")
    with zipfile.ZipFile(schemas.SHIPPED) as archive:
        archive.extractall(directory)
    return directory


def run(kubeconform: Path, unpacked: Path, manifests: str) -> tuple[int, dict[str, Any]]:
    """Run kubeconform: strict, with our files only, a kind without a schema is an error."""
    location = f"{unpacked}/{{{{.Group}}}}_{{{{.ResourceKind}}}}_{{{{.ResourceAPIVersion}}}}.json"
    command = [str(kubeconform), "-strict", "-summary", "-output", "json", "-schema-location", location, "-"]
    done = subprocess.run(command, input=manifests, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, json.loads(done.stdout)


def with_fault(job: dict[str, Any], path: str) -> dict[str, Any]:
    changed = copy.deepcopy(job)
    *parents, last = re.findall(r"[^.\[\]]+", path)
    holder: Any = changed
    for key in parents:
        holder = holder[int(key)] if isinstance(holder, list) else holder[key]
    if FAULTS[path] is None:
        del holder[last]
    else:
        holder[last] = FAULTS[path]
    return changed


def test_every_cell_satisfies_its_schemas(cells: list[Manifests], known: Schemas) -> None:
    objects = [item for cell in cells for item in cell.objects]
    assert len(objects) > 4 * len(cells)
    faults = [(item["kind"], item["metadata"]["name"], known.faults(item)) for item in objects]
    assert [one for one in faults if one[2] != []] == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_kubeconform_accepts_every_cell(
    rendered: dict[str, str], cells: list[Manifests], unpacked: Path, kubeconform: Path
) -> None:
    code, answer = run(kubeconform, unpacked, "\n---\n".join(rendered.values()))
    count = sum(len(cell.objects) for cell in cells)
    assert answer["resources"] == []
    assert answer["summary"] == {"valid": count, "invalid": 0, "errors": 0, "skipped": 0}
    assert code == 0


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", FAULTS)
def test_both_find_a_fault(
    path: str, cells: list[Manifests], known: Schemas, unpacked: Path, kubeconform: Path
) -> None:
    job = with_fault(cells[0].job(), path)
    assert [fault.path for fault in known.faults(job) or []] == [path]
    code, answer = run(kubeconform, unpacked, json.dumps(job))
    assert code == 1
    assert [one["status"] for one in answer["resources"]] == ["statusInvalid"]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_kind_without_a_schema_is_an_error_in_kubeconform(known: Schemas, unpacked: Path, kubeconform: Path) -> None:
    monitor = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": {"name": "a"},
        "spec": {},
    }
    assert known.faults(monitor) is None
    code, answer = run(kubeconform, unpacked, json.dumps(monitor))
    assert (code, answer["summary"]["errors"]) == (1, 1)


def test_a_misspelt_field_is_reported_with_the_right_one(known: Schemas) -> None:
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, imge: b}]}"
    (fault,) = known.faults(parse(text, "x").objects[0]) or []
    assert fault == schemas.Fault("spec.containers[0].imge", "unknown field; did you mean image?")


def test_only_a_custom_kind_refuses_a_second_entry_of_a_list(known: Schemas) -> None:
    env = "env: [{name: A, value: a}, {name: A, value: b}]"
    trainer = f"kind: TrainJob\nspec: {{runtimeRef: {{name: a}}, trainer: {{{env}}}}}"
    job = f"apiVersion: trainer.kubeflow.org/v1alpha1\nmetadata: {{name: a}}\n{trainer}"
    pod = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{{name: a, {env}}}]}}"
    job_faults, pod_faults = (known.faults(parse(text, "x").objects[0]) for text in (job, pod))
    assert job_faults == [schemas.Fault("spec.trainer.env[1]", "an earlier entry of the list has the same name")]
    assert pod_faults == []


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        *(("v1", "Pod"), ("v1", "PersistentVolume"), ("apps/v1", "DaemonSet"), ("batch/v1", "Job")),
        *(("storage.k8s.io/v1", "StorageClass"), ("networking.k8s.io/v1", "NetworkPolicy")),
        *(("kubeflow.org/v1", "PyTorchJob"), ("batch.volcano.sh/v1alpha1", "Job")),
        *(("trainer.kubeflow.org/v1alpha1", "TrainJob"), ("jobset.x-k8s.io/v1alpha2", "JobSet")),
        *(("workload.codeflare.dev/v1beta2", "AppWrapper"), ("kueue.x-k8s.io/v1beta2", "ClusterQueue")),
        *(("karpenter.sh/v1", "NodePool"), ("kustomize.toolkit.fluxcd.io/v1", "Kustomization")),
    ],
)
def test_a_kind_has_a_strict_schema(version: str, kind: str, known: Schemas) -> None:
    faults = known.faults({"apiVersion": version, "kind": kind, "metadata": {"name": "a", "nonsense": 1}})
    assert "metadata.nonsense" in [fault.path for fault in faults or []]


def test_the_shipped_schemas_are_those_of_the_table() -> None:
    """After a change of a version, `make schemas` has to build the archive again."""
    with zipfile.ZipFile(schemas.SHIPPED) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    about = json.loads(files.pop(build_schemas.ABOUT))
    assert about["sources"] == build_schemas.sources()
    assert about["sha256"] == build_schemas.digest(files)
    assert about["license"] == "Apache-2.0"
    assert len(files) > 80
    assert schemas.SHIPPED.stat().st_size < 400_000


def put_go_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """Put a go on PATH that prints `answer`, a word of the shell."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(f"#!/bin/sh\necho {answer}\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")


def test_a_changed_crd_is_refused_by_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_schemas.DEFINITIONS[0]
    (name, wanted), *_ = first.files.items()
    crd = tmp_path / "module" / first.directory / name
    crd.parent.mkdir(parents=True)
    crd.write_text("kind: CustomResourceDefinition\n")
    put_go_on_path(tmp_path, monkeypatch, f'\'{{"Dir": "{tmp_path}/module"}}\'')
    monkeypatch.setattr(build_schemas, "_native", lambda root, progress: {})
    with pytest.raises(Unusable, match=f"its SHA-256 is [0-9a-f]{{64}}, not {wanted}"):
        build_schemas.build(tmp_path, tmp_path / "schemas.zip", note)
    assert not (tmp_path / "schemas.zip").exists()
    assert list((tmp_path / ".cache").iterdir()) == []


def test_a_module_is_fetched_below_the_checkout_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_go_on_path(tmp_path, monkeypatch, '"{\\"Dir\\": \\"$GOMODCACHE/$4\\"}"')
    with go_build.workshop(tmp_path) as environment:
        fetched = go_build.module("example.org/module", "1.2.3", environment, note)
    path = str(fetched.relative_to(tmp_path / ".cache"))
    assert re.fullmatch(r"go-\w+/modules/example\.org/module@v1\.2\.3", path)
    assert list((tmp_path / ".cache").iterdir()) == []
