"""Every cell on a real API server: admitted without a word, no differences, unchanged by another apply."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kube import Done, Kube, shared_claim
from tools.cli import invoke
from tools.kube.manifests import Manifests, name_of
from tools.workload import operator_pods

CELL = "overlays/cpu/llama-tiny"
NAMESPACE = "t-cells"


@pytest.fixture(scope="module")
def applied(kube: Kube, rendered: dict[str, str]) -> Iterator[Done]:
    """kubectl's output after applying all cells to one namespace that enforces `restricted`."""
    kube.make_namespace(NAMESPACE, enforce="restricted")
    kube.put(shared_claim(NAMESPACE), NAMESPACE)
    yield kube.apply(_together(rendered), NAMESPACE)
    kube.delete_namespace(NAMESPACE)
    kube.call("delete", "pv", f"{NAMESPACE}-trainyard", "--wait=false")


def test_every_object_is_admitted_without_a_warning(cells: list[Manifests], applied: Done) -> None:
    assert len(cells) > 40
    assert applied.err == ""
    assert applied.out.count("serverside-applied") == sum(len(cell.objects) for cell in cells)


def test_the_operator_makes_every_pod_of_every_cell(kube: Kube, cells: list[Manifests], applied: Done) -> None:
    """The restricted standard is about pods, and only the operator creates them."""
    expected = {pod.name for cell in cells for pod in operator_pods.pods(cell.job())}
    kube.wait(
        f"{len(expected)} pods",
        lambda: {name_of(pod) for pod in kube.list("pods", NAMESPACE)} == expected,
        120,
    )
    assert _refused(kube, NAMESPACE) == []


@pytest.mark.parametrize("service", ["debug", "tensorboard", "tensorboard-exposed"])
def test_a_service_is_admitted_and_its_pod_made(service: str, kube: Kube, namespace: str) -> None:
    """As `kubectl apply -k` applies it. An event would report a refused pod."""
    where = f"--namespace={namespace}"
    done = kube.call("apply", "--server-side", where, "-k", f"base/services/{service}")
    assert (done.code, done.err) == (0, "")
    kube.wait("its pod", lambda: len(kube.list("pods", namespace)) == 1, 60)
    assert _refused(kube, namespace) == []


def test_a_privileged_pod_is_refused_there(kube: Kube, cells: list[Manifests], applied: Done) -> None:
    """Control: the namespace does enforce the standard."""
    job = cells[0].job()
    pod = operator_pods.pods(job)[0]
    spec = json.loads(json.dumps(pod.spec))
    spec["containers"][0]["securityContext"]["privileged"] = True
    spec["containers"][0]["securityContext"].pop("allowPrivilegeEscalation")
    text = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "control"}, "spec": spec})
    done = kube.call("create", "--dry-run=server", "-n", NAMESPACE, "-f", "-", given=text)
    assert done.code != 0
    assert "violates PodSecurity" in done.err


@pytest.mark.parametrize("some", ["llama-tiny", pytest.param("", marks=pytest.mark.cluster_all)])
def test_yard_diff_of_what_is_applied_shows_nothing_twice(
    some: str, rendered: dict[str, str], applied: Done, asked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [one for one in rendered if some in one] * 2:
        code = invoke(["diff", name, "-n", NAMESPACE])
        said = capsys.readouterr()
        assert (code, said.out, said.err) == (0, f"{name}: no difference\n", ""), name


@pytest.mark.parametrize(
    ("some", "more"), [("llama-tiny", ()), ("", ("--server-side",))], ids=["client-side", "server-side"]
)
def test_kubectl_diff_twice_shows_nothing(
    some: str, more: tuple[str, ...], kube: Kube, rendered: dict[str, str], applied: Done
) -> None:
    """For all cells at once, and client-side for one cell of each hardware."""
    text = _together({name: text for name, text in rendered.items() if some in name})
    for _ in range(2):
        done = kube.call("diff", "-f", "-", "-n", NAMESPACE, *more, given=text)
        assert (done.code, done.out) == (0, ""), done.err


def test_applying_twice_changes_nothing(
    kube: Kube, cells: list[Manifests], rendered: dict[str, str], applied: Done
) -> None:
    before = _versions(kube, cells)
    assert len(before) == sum(len(cell.objects) for cell in cells)
    assert kube.apply(_together(rendered), NAMESPACE).err == ""
    assert _versions(kube, cells) == before


def test_yard_diff_shows_a_changed_key(
    kube: Kube, rendered: dict[str, str], namespace: str, asked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cluster has another value than the cell: the difference is shown, with exit code 1."""
    kube.apply(rendered[CELL].replace("backoffLimit: 6", "backoffLimit: 7"), namespace)
    assert invoke(["diff", CELL, "-n", namespace, "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["differs"]
    lines = [line for line in answer["diff"].splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    lines = [line for line in lines if "generation:" not in line]
    assert [line.replace(" ", "") for line in lines] == ["-backoffLimit:7", "+backoffLimit:6"]
    kube.apply(rendered[CELL], namespace)
    assert invoke(["diff", CELL, "-n", namespace]) == 0


def test_yard_diff_takes_a_file_and_the_knobs(
    kube: Kube,
    rendered: dict[str, str],
    namespace: str,
    asked: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kube.apply(rendered[CELL], namespace)
    file = tmp_path / "cell.yaml"
    file.write_text(rendered[CELL], encoding="utf-8")
    assert invoke(["diff", "-f", str(file), "-n", namespace]) == 0
    assert invoke(["diff", CELL, "-n", namespace, "--nodes", "3"]) == 1
    changed = [line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.startswith("+ ")]
    for field in ("maxReplicas:", "minReplicas:", "replicas:"):
        assert [field, "3"] in changed
    assert ["backoffLimit:", "9"] in changed


def test_yard_diff_before_the_first_apply_shows_every_object(
    namespace: str, cells: list[Manifests], asked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["diff", CELL, "-n", namespace]) == 1
    shown = capsys.readouterr().out
    cell = next(one for one in cells if one.source == CELL)
    for item in cell.objects:
        assert f"+kind: {item['kind']}" in shown
        assert f"+  name: {name_of(item)}" in shown


def test_yard_diff_of_fields_that_flux_owns(
    kube: Kube, rendered: dict[str, str], namespace: str, asked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """With another field manager it is an error that names the fix; as Flux it is a difference."""
    kube.apply(
        rendered[CELL].replace("backoffLimit: 6", "backoffLimit: 7"),
        namespace,
        "--field-manager=kustomize-controller",
    )
    assert invoke(["diff", CELL, "-n", namespace]) == 2
    assert "--field-manager kustomize-controller" in capsys.readouterr().err
    assert invoke(["diff", CELL, "-n", namespace, "--field-manager", "kustomize-controller"]) == 1


@pytest.mark.parametrize(
    ("change", "code", "hint"),
    [
        ({"server": "https://127.0.0.1:1"}, 3, "check that the cluster is up"),
        ({"namespace": "t-nowhere"}, 2, "create the namespace first"),
        ({"token": "t-wrong"}, 3, "have expired"),
    ],
    ids=["no server", "no namespace", "no credentials"],
)
def test_yard_diff_that_cannot_ask_is_no_difference(
    kube: Kube,
    change: dict[str, str],
    code: int,
    hint: str,
    asked: None,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = json.loads(kube.run("config", "view", "--raw", "-o", "json"))
    if "server" in change:
        config["clusters"][0]["cluster"]["server"] = change["server"]
    if "token" in change:
        config["users"][0]["user"] = {"token": change["token"]}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert invoke(["diff", CELL, "-n", change.get("namespace", "default")]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: kubectl diff: ")
    assert hint in said.err


def _together(rendered: dict[str, str]) -> str:
    """Return the YAML of several cells as one text."""
    return "\n---\n".join(rendered.values())


def _refused(kube: Kube, namespace: str) -> list[str]:
    """Return what was said of objects that could not be made.

    An object that already exists was not refused: a controller whose cache lags makes it a second time.
    """
    failed = [one["message"] for one in kube.list("events", namespace) if "FailedCreate" in one["reason"]]
    return [message for message in failed if not message.endswith("already exists")]


def _versions(kube: Kube, cells: list[Manifests]) -> dict[tuple[str, str], str]:
    """Return the resourceVersion of every object that a cell made."""
    wanted = {(item["kind"], name_of(item)) for cell in cells for item in cell.objects}
    kinds = ",".join(sorted({kind.lower() for kind, _ in wanted}))
    return {
        (item["kind"], name_of(item)): item["metadata"]["resourceVersion"]
        for item in kube.list(kinds, NAMESPACE)
        if (item["kind"], name_of(item)) in wanted
    }
