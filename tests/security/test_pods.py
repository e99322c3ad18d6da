"""What a job can write, and what it runs of what others wrote: mounts, compiled code, data, rendezvous."""

from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.cells import kustomize, matrix
from tools.core import repo
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.kube.manifests import parse, read
from tools.preflight.evaluate import evaluate
from tools.simulator import volumes
from tools.workload.pod import Pod
from training.data.prepare_tokens import prepare_tokens
from training.neuron import cache as neuron_cache
from training.pod import rendezvous
from training.run import signing
from training.run.directory import RunDir
from training.trainer.compile_cache import CompileCache

ROOT = repo.root()
CELLS = [f"overlays/{cell.name}" for cell in matrix.load(ROOT)]
ABOVE_A_CELL = ("base/services/prepare", "base/services/nccl-test", "overlays/feature/precompile")
FEATURES = tuple(f"overlays/feature/{path.parent.name}" for path in ROOT.glob("overlays/feature/*/kust*.yaml"))
ALONE = ("debug", "tensorboard", "tensorboard-exposed")
CACHES = ("CACHE", "TORCHINDUCTOR", "TRITON", "PYTHONPATH", "LD_", "TORCH_EXTENSIONS_DIR", "HOME", "TMPDIR")
OWN = "runs/$(JOB_NAME)"
PREPARED = "/shared/data"  # what the prepare job writes for all
# Graphs are in the run that only this job mounts; they cannot be in a volume that ends with the pod.
OWN_CACHE = "NEURON_COMPILE_CACHE_URL"


@pytest.fixture(scope="module")
def renderer() -> kustomize.Renderer:
    found = kustomize.find(ROOT)
    if found is None:
        pytest.skip("no kustomize or kubectl on PATH: install kustomize 5.4 or kubectl 1.31, or newer")
    return found


def pod_specs(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every pod spec in a manifest, however deep."""
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            yield value
        for one in value.values():
            yield from pod_specs(one)
    elif isinstance(value, list):
        for one in value:
            yield from pod_specs(one)


def faults(spec: dict[str, Any], writes: tuple[str, ...] = ()) -> list[str]:
    """Return what a pod spec could change of others, or take from them; `writes` are mounts it may write."""
    claims = {one["name"]: one for one in spec.get("volumes") or [] if "persistentVolumeClaim" in one}
    found = []
    for container in [*spec["containers"], *(spec.get("initContainers") or [])]:
        mounts = [one for one in container.get("volumeMounts") or [] if one["name"] in claims]
        for mount in mounts:
            path, source = mount["mountPath"], claims[mount["name"]]["persistentVolumeClaim"]
            own = mount.get("subPathExpr") == OWN
            if not (mount.get("readOnly") or source.get("readOnly") or own or path in writes):
                found.append(f"{path} is writable")
        for entry in container.get("env") or []:
            name, value = entry["name"], entry.get("value") or ""
            if "HF_TOKEN" in name and name != "HF_TOKEN_PATH":
                found.append(f"{name} is a variable")
            shared = value.startswith(("/shared", "$(TRAINYARD"))
            reads = value.startswith("/shared/data/hub")  # safetensors, which only the prepare job downloads
            own = name == OWN_CACHE and value.startswith("/shared/run/")
            if any(word in name for word in CACHES) and shared and not own and not reads:
                found.append(f"{name} is on the claim")
        for mount in container.get("volumeMounts") or []:
            if mount["name"] == "secrets" and not mount.get("readOnly"):
                found.append("secrets are writable")
    return found


def test_a_cell_can_change_only_its_own_run(renderer: kustomize.Renderer) -> None:
    assert len(CELLS) >= 40
    for cell in CELLS:
        made = parse(renderer.build(ROOT / cell), cell)
        (spec,) = pod_specs(made.job())
        assert faults(spec) == [], cell
        (container,) = spec["containers"]
        mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
        variables = {one["name"]: one.get("value") for one in container["env"]}
        assert mounts[variables["TRAINYARD_RUN"]]["subPathExpr"] == OWN
        assert mounts[str(Path(variables["HF_TOKEN_PATH"]).parent)] == {
            "name": "secrets", "mountPath": "/var/run/secrets/trainyard", "readOnly": True
        }  # fmt: skip
        (secrets,) = (one["projected"] for one in spec["volumes"] if one["name"] == "secrets")
        assert secrets["defaultMode"] == 0o440
        weights = made.of_kind("ConfigMap")
        text = next(one["data"]["model.yaml"] for one in weights if "model.yaml" in one["data"])
        base = text.partition("weights: run:")[2].split()[:1]
        others = [one["subPath"] for one in mounts.values() if one.get("subPath", "").startswith("runs/")]
        assert others == [f"runs/{name}" for name in base], cell


def test_services_and_features_keep_it_so(renderer: kustomize.Renderer, tmp_path_factory: Any) -> None:
    repo.local().mkdir(exist_ok=True)
    above = repo.local() / f"test-pods-{os.getpid()}"
    above.mkdir()
    try:
        for component in (*ABOVE_A_CELL, *FEATURES):
            cell = "overlays/trn1/bert-large" if "trn1" in component else "overlays/cpu/llama-tiny"
            document = {"resources": [f"../../{cell}"], "components": [f"../../{component}"]}
            (above / "kustomization.yaml").write_text(json.dumps(document), encoding="utf-8")
            made = parse(renderer.build(above), component)
            writes = (PREPARED,) if component.endswith("prepare") else ()
            specs = list(pod_specs(made.objects))
            assert specs, component
            assert [faults(spec, writes) for spec in specs] == [[]] * len(specs), component
    finally:
        (above / "kustomization.yaml").unlink(missing_ok=True)
        above.rmdir()
    for name in ALONE:
        made = parse(renderer.build(ROOT / "base/services" / name), name)
        assert [fault for spec in pod_specs(made.objects) for fault in faults(spec)] == [], name


def test_the_check_sees_the_old_mounts() -> None:
    container = {
        "env": [
            {"name": "TORCHINDUCTOR_CACHE_DIR", "value": "$(TRAINYARD_RUN)/cache/inductor"},
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token"}}},
        ],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }
    volume = {"name": "shared", "persistentVolumeClaim": {"claimName": "trainyard"}}
    assert len(faults({"containers": [container], "volumes": [volume]})) == 3


@pytest.mark.parametrize(
    ("cache", "mount", "state"),
    [
        ("/shared/cache", {"mountPath": "/shared"}, State.WARN),
        ("/shared/cache/../cache", {"mountPath": "/shared"}, State.WARN),
        ("/shared/run/cache", {"mountPath": "/shared/run", "subPathExpr": "runs/$(JOB_NAME)"}, State.PASS),
        ("/tmp/cache", {"mountPath": "/shared"}, State.PASS),
    ],
)
def test_preflight_warns_of_compiled_code_on_a_claim(cache: str, mount: dict[str, str], state: State) -> None:
    job = read(ROOT / "tests/preflight/corpus/good/worker-only-c10d.yaml")
    spec = job.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["volumes"] = [{"name": "team", "persistentVolumeClaim": {"claimName": "team"}}]
    spec["containers"][0] |= {
        "env": [{"name": "TORCHINDUCTOR_CACHE_DIR", "value": cache}],
        "volumeMounts": [{"name": "team", **mount}],
    }
    found = [one.state for one in evaluate(job).verdicts if one.details["rule"] == "compile-cache"]
    assert found == [state]


class Bomb:
    """Unpickled, it makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pod's own directory for compiled code, and a key."""
    (tmp_path / "key").write_text("k" * 44)
    monkeypatch.setenv(signing.KEY_FILE, str(tmp_path / "key"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "node" / "inductor"))
    return tmp_path / "node"


def kept(tmp_path: Path, name: str = "run") -> Path:
    """Compile in one pod, which keeps a signed copy and is then gone; return the copy."""
    cache = CompileCache(RunDir(tmp_path / name), "cpu")
    cache.begin("1")
    compiled = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "fxgraph" / "aa"
    compiled.mkdir(parents=True)
    (compiled / "entry").write_bytes(pickle.dumps("harmless"))
    assert cache.done()
    assert cache.keep()
    subprocess.run(["rm", "-rf", str(tmp_path / "node")], check=True)
    (copy,) = (tmp_path / name / "cache").iterdir()
    return copy


def found(tmp_path: Path) -> str:
    """How a new pod begins, in which an import of torch's compiler has made an empty directory."""
    Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).mkdir(parents=True)
    return CompileCache(RunDir(tmp_path / "run"), "cpu").begin("2")


def test_a_new_pod_begins_with_the_copy_that_its_run_has_signed(node: Path, tmp_path: Path) -> None:
    kept(tmp_path)
    assert found(tmp_path) == "copied"
    assert pickle.loads((node / "inductor/fxgraph/aa/entry").read_bytes()) == "harmless"


def _poison(copy: Path, tmp_path: Path) -> None:
    """Keep the signature, and put another archive behind it: a pickle, and a path outside."""
    signature = copy.read_bytes()[:73]
    (tmp_path / "entry").write_bytes(pickle.dumps(Bomb(tmp_path / "PWNED")))
    with copy.open("wb") as file:
        file.write(signature)
        with tarfile.open(fileobj=file, mode="w") as tar:
            tar.add(tmp_path / "entry", "fxgraph/aa/entry")
            tar.add(tmp_path / "entry", "../../outside")


def _of_another_run(copy: Path, tmp_path: Path) -> None:
    copy.write_bytes(kept(tmp_path, "another").read_bytes())


def _of_another_key(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("o" * 44)


def _a_link(copy: Path, tmp_path: Path) -> None:
    copy.rename(tmp_path / "elsewhere")
    copy.symlink_to(tmp_path / "elsewhere")


def _a_fifo(copy: Path, tmp_path: Path) -> None:
    copy.unlink()
    os.mkfifo(copy)


def _no_key(copy: Path, tmp_path: Path) -> None:
    os.environ[signing.KEY_FILE] = ""


@pytest.mark.parametrize("change", [_poison, _of_another_run, _of_another_key, _a_link, _a_fifo, _no_key])
def test_no_other_copy_is_unpacked(change: Any, node: Path, tmp_path: Path) -> None:
    change(kept(tmp_path), tmp_path)
    assert found(tmp_path) == "none"
    assert list((node / "inductor").iterdir()) == []
    assert not list(tmp_path.glob("**/outside"))


def test_precompiled_graphs_are_files_and_replace_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, own = tmp_path / "graphs/set/neuronxcc-2", tmp_path / "own/set"
    for module in ("MODULE_1", "MODULE_2"):
        (theirs / module).mkdir(parents=True)
        (theirs / module / "model.neff").write_text("theirs")
    (theirs / "MODULE_2/link").symlink_to("/etc/passwd")
    (own / "neuronxcc-2/MODULE_1").mkdir(parents=True)
    (own / "neuronxcc-2/MODULE_1/model.neff").write_text("own")
    monkeypatch.setenv(neuron_cache.PRECOMPILED, str(tmp_path / "graphs"))
    neuron_cache.add_precompiled(own)
    files = {path.relative_to(own).as_posix(): path for path in own.rglob("*") if path.is_file()}
    assert {name: path.read_text() for name, path in files.items()} == {
        "neuronxcc-2/MODULE_1/model.neff": "own",
        "neuronxcc-2/MODULE_2/model.neff": "theirs",
    }


def prepared(tmp_path: Path, root: Path, shared: Path | None) -> Path:
    text = tmp_path / "text"
    text.mkdir(exist_ok=True)
    for number in range(20):
        path = text / f"{number}.txt"
        if not path.exists():
            path.write_text(f"text {number} of some\n" * 20, encoding="utf-8")
    return prepare_tokens(str(text), "text", 0.2, "train", 300, root, lambda line: None, shared=shared)


def test_a_trainer_prepares_below_its_run_and_never_for_others(tmp_path: Path) -> None:
    shared, run = tmp_path / "shared", RunDir(tmp_path / "run")
    shared.mkdir()
    made = prepared(tmp_path, run.data, shared)
    assert made.parent == run.data
    assert list(shared.iterdir()) == []
    ready = prepared(tmp_path, shared, None)  # the prepare job
    before = {path: path.stat().st_mtime_ns for path in shared.rglob("*")}
    assert prepared(tmp_path, tmp_path / "other" / "data", shared) == ready
    assert not (tmp_path / "other").exists()
    assert {path: path.stat().st_mtime_ns for path in shared.rglob("*")} == before


def test_pods_agree_on_a_random_id(tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; from training.pod.rendezvous import agreed; "
    command = [sys.executable, "-c", program + "print(agreed(Path(sys.argv[1])))", str(tmp_path / "run")]
    pods = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    ids = {pod.communicate(timeout=180)[0].strip() for pod in pods}
    (first,) = ids
    assert len(first) == 32
    assert stat.S_IMODE((tmp_path / "run" / rendezvous.FILE).stat().st_mode) == 0o600
    assert [path.name for path in (tmp_path / "run").iterdir()] == [rendezvous.FILE]
    assert rendezvous.agreed(tmp_path / "other") not in ids


def test_an_id_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    first = rendezvous.agreed(tmp_path)
    assert rendezvous.agreed(tmp_path) == first


@pytest.mark.parametrize("kind", ["text", "long", "link", "fifo", "directory"])
def test_what_is_no_id_ends_in_one_error(kind: str, tmp_path: Path) -> None:
    path = tmp_path / rendezvous.FILE
    if kind == "link":
        (tmp_path / "real").write_text("0" * 32)
        path.symlink_to(tmp_path / "real")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_text({"text": "none; rm -rf /\n", "long": "a" * 10_000}[kind])
    with pytest.raises(rendezvous.BadIdError, match="remove it"):
        rendezvous.agreed(tmp_path)


def test_torchrun_gets_the_id_of_the_run_and_not_the_operators(tmp_path: Path) -> None:
    script = tmp_path / "say.py"
    script.write_text("import os; print(os.environ['PET_RDZV_ID'])")
    environment = {
        **os.environ, "TRAINYARD_RUN": str(tmp_path / "run"), "PET_RDZV_ID": "cpu-llama-tiny-train",
        "PET_RDZV_BACKEND": "c10d",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "training.entrypoint", sys.executable, str(script)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.stdout.strip() == (tmp_path / "run" / rendezvous.FILE).read_text(), done.stderr


HOSTILE = ("../../outside", "/etc", "a/../../b", "a\nb", "a\x1bb", "..")


@pytest.mark.parametrize("path", HOSTILE)
@pytest.mark.parametrize("where", ["subPath", "subPathExpr", "claimName", "volume", "item"])
def test_no_path_of_a_manifest_leaves_its_volume(where: str, path: str, tmp_path: Path) -> None:
    """Planning and writing the volumes of a local pod."""
    claim = path if where == "claimName" else "trainyard"
    mount = {"name": "claim", "mountPath": "/shared", where: path}
    secret = {"name": "config", "items": [{"key": "a", "path": path}]}
    files = {"name": path, "emptyDir": {}} if where == "volume" else {"name": "files", "configMap": secret}
    if where == "subPathExpr":
        mount["subPathExpr"] = "$(JOB_NAME)"
    spec = {
        "containers": [{"name": "pytorch", "volumeMounts": [mount]}],
        "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": claim}}, files],
    }
    pod = Pod("p", "n", "j", "worker", 0, {}, {}, "Never", spec, (), "")
    text = textwrap.dedent("""
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: config, namespace: n}
        data: {a: text}
    """)

    def start() -> None:
        volumes.plan(pod, pod.container, tmp_path / "s", tmp_path / "s/pods/p", {"JOB_NAME": path})
        volumes.materialise(pod, parse(text, "x"), tmp_path / "s", tmp_path / "s/pods/p")

    with pytest.raises(UserError, match="not below its volume"):
        start()
    assert {one.name for one in tmp_path.iterdir()} <= {"s"}
