"""`make audit`: locks against published vulnerabilities, workflows, and manifests by checkov's rules.

TRAINYARD_AUDIT=required makes a lock that could not be audited a failure. Without it, a machine that does not
reach the advisory service skips, and the skip is counted.
"""

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

from tests.parts import upstream, venv
from tools.cells import kustomize
from tools.cluster import cluster_env, platform
from tools.core import repo

HERE = Path(__file__).resolve().parent
ROOT = repo.root()
LOCKS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.lock"), *ROOT.glob("tests/audit/*.lock"), *ROOT.glob("tests/neuron/*.lock"))
)
REQUIRED = os.environ.get("TRAINYARD_AUDIT") == "required"
WORKLOADS = {"Pod", "Deployment", "DaemonSet", "StatefulSet", "Job", "CronJob"}
Object = dict[str, Any]


def audited(lock: str) -> list[Object]:
    """Return what pip-audit says of each package of a lock."""
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner=off",
         "--format=json", f"--requirement={ROOT / lock}"],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if not done.stdout:
        return [{"name": "pip-audit", "skip_reason": (done.stderr.strip().splitlines() or ["no output"])[-1]}]
    return list(json.loads(done.stdout)["dependencies"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lock", LOCKS)
def test_no_package_of_a_lock_has_a_known_vulnerability(lock: str) -> None:
    packages = audited(lock)
    unknown = [f"{one['name']}: {one['skip_reason']}" for one in packages if "skip_reason" in one]
    if len(unknown) == len(packages) and not REQUIRED:
        pytest.skip(f"{lock} could not be audited: it needs the advisories of the Python package index ({unknown[0]})")
    assert unknown == [], "could not be audited"
    allowed = YAML(typ="safe").load(HERE / "vulnerabilities.yaml") or {}
    found = {
        f"{one['name']} {one['version']}: {vulnerability['id']}, fixed in {vulnerability['fix_versions']}"
        for one in packages
        for vulnerability in one["vulns"]
        if lock not in allowed.get(vulnerability["id"], {}).get("locks", [])
        and not {*vulnerability["aliases"]} & {name for name, one in allowed.items() if lock in one["locks"]}
    }
    assert found == set()


def test_the_workflows_have_no_finding_of_zizmor() -> None:
    command = [str(Path(sys.executable).with_name("zizmor")), "--offline", "--quiet", "--persona", "pedantic"]
    done = subprocess.run([*command, str(ROOT / ".github")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def pods(item: Object, name: str) -> Iterator[Object]:
    """Yield an object as checkov knows it: a job of a foreign kind as the pods of its templates."""
    spec = item.get("spec") or {}
    replicas = spec.get("pytorchReplicaSpecs") or {}
    for role, replica in replicas.items():
        meta = {**replica["template"].get("metadata", {}), "name": f"{name}-{role}".lower()}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": replica["template"]["spec"]}
    if not replicas:
        yield item


def targets() -> list[str]:
    """Return the cells, and what clusters take from base/, except what is generated."""
    files = sorted([*ROOT.glob("overlays/*/*/kustomization.yaml"), *ROOT.glob("base/*/**/kustomization.yaml")])
    texts = {path.parent.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}
    del texts["base/pytorchjob"]  # every cell has it
    return [name for name, text in texts.items() if not re.search(r"kind: Component|gotk-components", text)]


@pytest.mark.timeout(600)
def test_checkov_has_no_finding_without_a_reason(tmp_path: Path) -> None:
    """Each exception gives a reason and is used."""
    python, renderer = venv.python(HERE / "requirements.lock"), kustomize.find(ROOT)
    assert python is not None, "python -m tests.parts.venv tests/audit/requirements.lock"
    assert renderer is not None, "no kustomize or kubectl on PATH"
    renderer = upstream.fetcher(renderer, tmp_path)
    rendered = tmp_path / "rendered"
    rendered.mkdir()
    facts = cluster_env.read(ROOT / "clusters/example/cluster.env")
    yaml = YAML(typ="safe", pure=True)
    for target in targets():
        objects = yaml.load_all(platform.substitute(renderer.build(ROOT / target), facts))
        parts = [part for item in objects if item for part in pods(item, item["metadata"]["name"])]
        for number, part in enumerate(parts):  # checkov passes over a file with one object that it cannot read
            with (rendered / f"{target.replace('/', '_')}.{number}.{part['kind']}.yaml").open("w") as file:
                yaml.dump(part, file)
    judge(checkov(python, rendered))


def judge(found: dict[str, set[str]]) -> None:
    """Compare findings with the exceptions."""
    allowed: dict[str, Object] = YAML(typ="safe", pure=True).load(HERE / "checkov.yaml")
    left = {name: objects - excepted(allowed.get(name), objects) for name, objects in found.items()}
    assert {name: sorted(objects) for name, objects in left.items() if objects} == {}
    assert {name for name in allowed if name not in found} == set(), "these exceptions are not used"


def excepted(entry: Object | None, objects: set[str]) -> set[str]:
    """Return the objects that an exception is for. One without a list is for all."""
    if entry is None:
        return set()
    parts = entry.get("only", [""])
    assert all(any(part in name for name in objects) for part in parts), f"{entry} has an unused part"
    return {name for name in objects if any(part in name for part in parts)}


def checkov(python: Path, directory: Path) -> dict[str, set[str]]:
    """Return the objects that fail each of checkov's checks, as `target: Kind.namespace.name`."""
    command = [str(python.with_name("checkov")), "--directory", str(directory), "--framework", "kubernetes"]
    done = subprocess.run(
        [*command, "--output", "json", "--compact", "--skip-download"],
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0
    assert report["summary"]["skipped"] == 0, "an annotation of a manifest gives no reason"
    judged = [*report["results"]["passed_checks"], *report["results"]["failed_checks"]]
    workloads = {path.name for path in directory.iterdir() if path.name.split(".")[-2] in WORKLOADS}
    assert workloads
    assert workloads - {Path(one["file_path"]).name for one in judged} == set(), "not read"
    found: dict[str, set[str]] = {}
    for check in report["results"]["failed_checks"]:
        name = f"{Path(check['file_path']).name.split('.')[0]}: {check['resource']}"
        found.setdefault(check["check_id"], set()).add(name)
    return found
