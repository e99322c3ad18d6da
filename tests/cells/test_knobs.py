"""The knobs: each has the same meaning for every kind of job, and none is without effect."""

from __future__ import annotations

import copy
import json
import shlex
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.house import printed
from tests.workload.beds import bed
from tools.cells import knobs, kustomize, locate, outlook, trainer_config
from tools.cells.knobs import Knobs
from tools.cli import invoke
from tools.core import repo
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.facts.instances import EFA, NEURON, NVIDIA
from tools.kube.manifests import Manifests, name_of, parse
from tools.preflight.evaluate import evaluate
from tools.workload import kinds
from training.config import ConfigError

Object = dict[str, Any]
CELL = "cpu/llama-tiny"
COMMAND = ["torchrun", "--nnodes=2", "--nproc_per_node", "4", "train.py"]


def template(words: list[str] = COMMAND, gpus: int = 4) -> Object:
    resources = {"limits": {NVIDIA: str(gpus)}, "requests": {NVIDIA: str(gpus), "cpu": "8"}}
    container = {"name": "pytorch", "image": "mine:1", "command": list(words), "resources": resources}
    return {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container]}}


def of(api: str, kind: str, spec: Object) -> Object:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "mine"}, "spec": spec}


def batch(**fields: Any) -> Object:
    return {"completionMode": "Indexed", "parallelism": 2, "completions": 2, "template": template(), **fields}


def pytorch(*roles: str, replicas: int = 1, **fields: Any) -> Object:
    held = {name: {"replicas": replicas, "template": template()} for name in roles}
    return of("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": held, **fields})


def jobset(**one: Any) -> Object:
    return of("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [{"name": "node", **one}]})


ELASTIC = {"minReplicas": 1, "maxReplicas": 4, "nProcPerNode": 4}
KINDS = {
    "PyTorchJob": pytorch("Worker", replicas=2),
    "with a Master": pytorch("Master", "Worker"),
    "elastic": pytorch("Worker", replicas=2, elasticPolicy=ELASTIC),
    "HyperPod": of(
        "sagemaker.amazonaws.com/v1",
        "HyperPodPyTorchJob",
        {"nprocPerNode": "4", "replicaSpecs": [{"name": "worker", "replicas": 2, "template": template()}]},
    ),
    "Volcano": of(
        "batch.volcano.sh/v1alpha1",
        "Job",
        {
            "minAvailable": 2,
            "plugins": {"pytorch": [], "svc": []},
            "tasks": [{"name": name, "replicas": 1, "template": template()} for name in ("master", "worker")],
        },
    ),
    "JobSet": jobset(template={"spec": batch()}),
    "JobSet of Jobs": jobset(replicas=2, template={"spec": batch(parallelism=1, completions=1)}),
    "Job": of("batch/v1", "Job", batch()),
    "AppWrapper": of(
        "workload.codeflare.dev/v1beta2",
        "AppWrapper",
        {"components": [{"template": pytorch("Worker", replicas=2)}]},
    ),
}


def turned(item: Object, **values: Any) -> Manifests:
    return knobs.applied(Manifests("job.yaml", [copy.deepcopy(item)]), Knobs(**values))


def test_roles_that_share_an_alias_are_changed_one_by_one() -> None:
    text = """
      apiVersion: kubeflow.org/v1
      kind: PyTorchJob
      metadata: {name: train}
      spec:
        pytorchReplicaSpecs:
          Master: &role
            replicas: 1
            template: {spec: {containers: [{name: pytorch, image: "a:1", command: [python, train.py]}]}}
          Worker: *role
    """
    (found,) = knobs.applied(parse(text, "here"), Knobs(nodes=4)).objects
    roles = found["spec"]["pytorchReplicaSpecs"]
    assert [roles[name]["replicas"] for name in ("Master", "Worker")] == [1, 3]


@pytest.mark.parametrize("item", KINDS.values(), ids=KINDS)
def test_nodes_and_processes_reach_every_field_of_every_kind(item: Object) -> None:
    found = turned(item, nodes=6, nproc=2, image="other:2", name="b")
    job = kinds.job_of(found)
    pods = job.ranks()
    assert (job.nodes, len(pods)) == (6, 6)
    assert job.name.endswith("mine-b")
    assert all(pod.name.startswith("mine-b-") for pod in pods)
    for pod in pods:
        assert pod.container["image"] == "other:2"
        assert pod.container["command"] == ["torchrun", "--nnodes=6", "--nproc_per_node", "2", "train.py"]
        assert pod.container["resources"] == {"limits": {NVIDIA: "2"}, "requests": {NVIDIA: "2", "cpu": "8"}}
    assert found.objects != [item]
    assert kinds.job_of(Manifests("", [item])).nodes in (2, 4)  # the original is untouched


def test_a_train_job_takes_the_fields_of_its_trainer() -> None:
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": 2, "command": COMMAND}}
    found = turned(of("trainer.kubeflow.org/v1alpha1", "TrainJob", spec), nodes=3, nproc=2, image="other:2")
    trainer = found.objects[0]["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"], trainer["image"]) == (3, 2, "other:2")
    assert trainer["command"][1] == "--nnodes=3"


@pytest.mark.parametrize("values", [{"name": "lr-1e-4"}, {"settings": ("train.steps=70",)}], ids=str)
def test_names_are_those_that_kustomize_makes(values: Object) -> None:
    """With a nameSuffix, or with the same value in the file itself; a ServiceAccount keeps its name."""
    above: Object = {"resources": [f"../../overlays/{CELL}"]}
    if "name" in values:
        above["nameSuffix"] = f"-{values['name']}"
    else:
        turned_cell = knobs.applied(locate.rendered(CELL), Knobs(**values))
        _, text = trainer_config.config_texts(turned_cell, repo.root())["model"]
        patch = json.dumps([{"op": "replace", "path": "/data/model.yaml", "value": text}])
        above["patches"] = [{"target": {"kind": "ConfigMap", "name": "cpu-llama-tiny-model"}, "patch": patch}]
    repo.cache().mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=repo.cache()) as directory:  # several tests do this at the same time
        Path(directory, "kustomization.yaml").write_text(json.dumps(above))
        wanted = parse(kustomize.ensure(repo.root(), print).build(Path(directory)), "wanted").objects
    found = knobs.applied(locate.rendered(CELL), Knobs(**values)).objects
    for item in wanted:
        if item["kind"] == "ServiceAccount":
            item["metadata"]["name"] = "cpu-llama-tiny-train"
    (pods,) = kinds.job_of(Manifests("", wanted)).training_specs()
    pods["serviceAccountName"] = "cpu-llama-tiny-train"
    assert found == wanted


def test_a_name_reaches_services_hosts_and_labels_of_a_file() -> None:
    text = """
apiVersion: v1
kind: Service
metadata: {name: train}
spec: {clusterIP: None, selector: {job-name: train}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: script}
data: {run.sh: "torchrun --rdzv-endpoint train-0.train:29500 train.py --data /data/train"}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteMany]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  completionMode: Indexed
  parallelism: 2
  completions: 2
  template:
    spec:
      subdomain: train
      containers:
        - name: main
          image: registry/train
          command: [torchrun, --nnodes=2, --rdzv-endpoint=train-0.train:29500, train]
          env:
            - {name: MASTER_ADDR, value: train-0.train}
            - {name: PEER, value: "train:80"}
            - {name: SVC, value: train}
            - {name: TRAINYARD_RUN, value: /shared/runs/train}
          volumeMounts: [{name: data, mountPath: /shared/run, subPath: runs/train}]
          envFrom: [{configMapRef: {name: script}}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
"""
    found = knobs.applied(parse(text, "job.yaml"), Knobs(name="b"))
    names = [item["metadata"]["name"] for item in found.objects]
    assert names == ["train-b", "script-b", "data", "train-b"]
    service, script, _, job = found.objects
    assert service["spec"]["selector"] == {"job-name": "train-b"}
    assert script["data"]["run.sh"].endswith("train-b-0.train-b:29500 train.py --data /data/train")
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["subdomain"] == "train-b"
    assert container["image"] == "registry/train"
    assert container["command"][2:] == ["--rdzv-endpoint=train-b-0.train-b:29500", "train"]
    values = [one["value"] for one in container["env"]]
    assert values == ["train-b-0.train-b", "train-b:80", "train-b", "/shared/runs/train-b"]
    assert container["volumeMounts"][0]["subPath"] == "runs/train-b"  # two runs share no directory
    assert container["envFrom"] == [{"configMapRef": {"name": "script-b"}}]


def test_an_instance_fits_the_pods_as_its_component_does() -> None:
    """The cell of one size of machine, turned to another, is the cell that has the other by itself."""
    found = kinds.job_of(knobs.applied(locate.rendered("g5/llama-3-2-1b"), Knobs(instance="g5.48xlarge")))
    other = kinds.job_of(locate.rendered("g5/llama-3-2-3b"))
    (spec,), (wanted,) = found.training_specs(), other.training_specs()
    (container,), (main,) = spec["containers"], wanted["containers"]
    assert (spec["affinity"], spec["tolerations"]) == (wanted["affinity"], wanted["tolerations"])
    assert container["resources"] == main["resources"]
    assert container["env"] == main["env"]
    assert spec["volumes"][2] == wanted["volumes"][2]
    assert found.spec["nprocPerNode"] == other.spec["nprocPerNode"] == "8"
    assert container["resources"]["limits"][NVIDIA] == "8"
    small = kinds.job_of(knobs.applied(locate.rendered("g5/bert-large"), Knobs(instance="g5.xlarge")))
    (container,) = small.training_containers()
    assert EFA not in container["resources"]["limits"]
    assert small.spec["nprocPerNode"] == "1"


def test_processes_on_neuron_ask_for_whole_devices() -> None:
    found = kinds.job_of(knobs.applied(locate.rendered("trn1/bert-large"), Knobs(nproc=4)))
    (container,) = found.training_containers()
    assert container["resources"]["limits"][NEURON] == "2"
    with pytest.raises(UserError, match="2 cores") as error:
        knobs.applied(locate.rendered("trn1/bert-large"), Knobs(nproc=3))
    assert error.value.hint == "--nproc 2"


@pytest.mark.parametrize(
    "device", ["amd.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared", "habana.ai/gaudi", "google.com/tpu"]
)
def test_each_process_has_a_device_of_any_kind(device: str) -> None:
    item = pytorch("Worker", replicas=2)
    (container,) = item["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {device: 4, "memory": "8Gi", "vpc.amazonaws.com/efa": 1}}
    found = kinds.job_of(turned(item, nproc=2))
    assert found.training_containers()[0]["resources"]["limits"] == {**container["resources"]["limits"], device: "2"}
    assert outlook.of(Manifests("x", [item])).place.gpus == 8


def test_accelerate_counts_the_processes_of_all_nodes() -> None:
    words = ["accelerate", "launch", "--num_machines", "2", "--num_processes=8", "train.py"]
    item = of("batch/v1", "Job", batch(template=template(words)))
    for values, expected in (
        ({"nodes": 3}, "3 12"),
        ({"nproc": 2}, "2 4"),
        ({"nodes": 3, "nproc": 2}, "3 6"),
    ):
        (container,) = kinds.job_of(turned(item, **values)).training_containers()
        nodes, world = expected.split()
        assert container["command"][3:5] == [nodes, f"--num_processes={world}"]


@pytest.mark.parametrize(
    ("cell", "values", "message", "hint"),
    [
        (CELL, {"name": "LR_1"}, "--name 'LR_1'", "--name lr-1"),
        (CELL, {"name": "x" * 40}, "characters, a pod's name has at most 63", "NAME may have 33 characters"),
        (CELL, {"image": "-v /:/host"}, "not the name of an image", "registry"),
        (CELL, {"instance": "g5.xlarge"}, "ask for no type of machine", "nodeSelector"),
        ("g5/llama-tiny", {"instance": "p5.4xlarge"}, "whose family has", "--instance g5.xlarge"),
        ("g5/llama-tiny", {"instance": "g5.48xlarg"}, "unknown instance type", "did you mean g5.48xlarge?"),
        ("g5/llama-3-2-3b", {"instance": "g5.xlarge"}, "GiB a GPU needed", "--instance g5.48xlarge"),
        (CELL, {"features": ("kueu",)}, "overlays/feature/kueu does not exist", "did you mean kueue?"),
        (CELL, {"features": ("trainjob", "volcano")}, "trainjob cannot be added together with volcano", "/runPolicy"),
        (CELL, {"nodes": 5000}, "more than 4096", ""),
    ],
)  # fmt: skip
def test_a_knob_that_does_not_fit_is_one_error(cell: str, values: Object, message: str, hint: str) -> None:
    with pytest.raises(UserError) as error:
        knobs.applied(locate.rendered(cell), Knobs(**values))
    assert message in error.value.message
    assert hint in (error.value.hint or "")


SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "others"}, "spec": {"clusterIP": "None"}}


@pytest.mark.parametrize("kind", ["Job", "PyTorchJob", "TrainJob"])
def test_the_queue_of_kueue_is_for_each_kind_that_it_takes(kind: str) -> None:
    made = knobs.applied(Manifests("job.yaml", [*bed(kind), SERVICE]), Knobs(features=("kueue",)))
    assert kinds.job_of(made).queue == "trainyard"


@pytest.mark.parametrize("kind", ["JobSet", "Volcano"])  # base/plugins/kueue has no integration of them
def test_a_feature_without_effect_is_an_error_with_any_number_of_objects(kind: str) -> None:
    with pytest.raises(UserError, match="--feature kueue changes nothing here"):
        knobs.applied(Manifests("job.yaml", [*bed(kind), SERVICE]), Knobs(features=("kueue",)))


@pytest.mark.parametrize(
    ("item", "values", "message"),
    [
        (KINDS["Job"], {"settings": ("train.steps=7",)}, "holds no trainer configuration for --set"),
        (KINDS["with a Master"], {"nodes": 1}, "has 1 of Master, so it needs 2 nodes or more"),
        (
            of("batch/v1", "Job", batch(template=template(["torchrun", "a.py"]))),
            {"nproc": 2},
            "does not say how many processes",
        ),
    ],
)
def test_a_knob_without_a_meaning_for_a_kind_is_refused(item: Object, values: Object, message: str) -> None:
    with pytest.raises(UserError) as error:
        turned(item, **values)
    assert message in error.value.message


@pytest.mark.parametrize("line", printed.run_by("tests/cells/test_knobs.py"))
def test_the_printed_commands_run(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repo.root())
    program, *words = shlex.split(line)
    assert program == "yard"
    assert invoke(words) == 0
    assert "train" in capsys.readouterr().out


def test_objects_of_any_shape_are_an_error_or_untouched() -> None:
    odd = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"a-{'g' * 10}"}, "data": data}
        for data in ({1: "a", "b": "c"}, ["model.yaml"], {"model.yaml": 3}, None)
    ]
    job = pytorch("Worker", replicas=2)
    found = knobs.applied(Manifests("f", [*copy.deepcopy(odd), job]), Knobs(nodes=3))
    assert found.objects[:4] == odd
    with pytest.raises(UserError, match="holds no trainer configuration"):
        knobs.applied(Manifests("f", [*odd, job]), Knobs(settings=("train.steps=7",)))
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"] = "main"
    with pytest.raises(UserError, match="must be"):
        knobs.applied(Manifests("f", [job]), Knobs(nodes=3))
    with pytest.raises(UserError, match="contains no job that trains"):
        knobs.applied(Manifests("f", odd), Knobs(nodes=3))


def test_a_file_is_rendered_with_the_knobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    texts = ["on", "1e-4", "0x1", "0444", "2026-01-01", "1.0", "null", "=", "<<", "a: b", "0o7", "1_000"]
    item = copy.deepcopy(KINDS["JobSet"])
    item["metadata"]["annotations"] = {str(n): text for n, text in enumerate(texts)}
    file.write_text(json.dumps(item))
    assert invoke(["render", "-f", str(file), "--nodes", "3"]) == 0
    assert parse(capsys.readouterr().out, "out").objects == turned(item, nodes=3).objects
    assert invoke(["render", "-f", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [item]


def test_settings_are_checked_and_a_feature_is_added() -> None:
    with pytest.raises(ConfigError, match=r"did you mean train\.steps"):
        knobs.applied(locate.rendered(CELL), Knobs(settings=("train.stepps=7",)))
    found = knobs.applied(locate.rendered(CELL), Knobs(features=("kueue", "spot")))
    job = kinds.job_of(found)
    assert job.queue == "trainyard"
    assert job.section("runPolicy")["backoffLimit"] == 400


def test_the_words_of_a_command_line_give_the_same_knobs() -> None:
    turned_knobs = Knobs(2, 3, ("train.steps=7", "train.seed=1"), "b", "i:1", "g5.xlarge", ("kueue",))
    assert " ".join(turned_knobs.arguments("train.steps")) == (
        "--nodes 2 --nproc 3 --set train.seed=1 --name b --image i:1 --instance g5.xlarge --feature kueue"
    )


def test_settings_change_what_a_feature_brings() -> None:
    """The section `data` is then the feature's, not the model's."""
    cell = locate.rendered("p5/llama-3-1-8b")
    values: Object = {"features": ("stream-c4",), "name": "b"}
    plain = knobs.applied(cell, Knobs(**values))
    found = knobs.applied(cell, Knobs(**values, settings=("data.heldout_fraction=0.25",)))
    brought = [
        {name_of(item): item["data"] for item in one.of_kind("ConfigMap") if "data.yaml" in item["data"]}
        for one in (plain, found)
    ]
    ((before, _), (after, data)) = (next(iter(one.items())) for one in brought)
    assert "heldout_fraction: 0.25" in data["data.yaml"]
    assert before != after
    assert after.startswith("stream-c4-b-")
    (spec,) = kinds.job_of(found).training_specs()
    assert {"configMap": {"name": after}} in spec["volumes"][0]["projected"]["sources"]


@pytest.fixture
def elastic_cell() -> Manifests:
    """The first cell as `yard matrix sync` writes it with nodes: {min: 1, max: 2}."""
    found = locate.rendered(CELL)
    job = found.job()
    job["metadata"]["annotations"] = {knobs.ELASTIC: "1:2"}
    job["spec"]["elasticPolicy"] |= {"minReplicas": 1, "rdzvConf": [{"key": "last_call_timeout", "value": "15"}]}
    trainer_config.write_settings(found, ("nodes={min: 1, max: 2}",))
    return found


def test_a_text_of_several_cells_has_the_name_of_its_own_file() -> None:
    """The control is a manifest without labels: then the ConfigMap is named, not the file of another cell."""
    cell = "overlays/p5/llama-3-1-8b"
    found = locate.rendered(cell)
    text = trainer_config.config_texts(found, repo.root())["cell"][1]
    same = [path for path in (repo.root() / "overlays").glob("*/*/cell.yaml") if path.read_text() == text]
    assert len(same) > 1
    assert trainer_config.config_texts(found, repo.root())["cell"][0] == f"{cell}/cell.yaml"
    for item in found.of_kind("ConfigMap"):
        item["metadata"].pop("labels", None)
    assert trainer_config.config_texts(found, repo.root())["cell"][0].startswith("p5-llama-3-1-8b-cell-")


def test_an_elastic_cell_keeps_its_bounds_where_the_kind_has_some(elastic_cell: Manifests) -> None:
    hyperpod = knobs.applied(elastic_cell, Knobs(features=("hyperpod-job",)))
    (job,) = hyperpod.of_kind("HyperPodPyTorchJob")
    assert job["spec"]["elasticPolicy"] == {
        "minReplicas": 1, "maxReplicas": 2, "replicaIncrementStep": 1, "gracefulShutdownTimeoutInSeconds": 120,
    }  # fmt: skip
    fixed = knobs.applied(locate.rendered(CELL), Knobs(features=("hyperpod-job",)))
    assert "elasticPolicy" not in fixed.of_kind("HyperPodPyTorchJob")[0]["spec"]
    one = knobs.applied(elastic_cell, Knobs(nodes=2))
    assert one.job()["spec"]["elasticPolicy"]["minReplicas"] == 2
    assert knobs.ELASTIC not in one.job()["metadata"]["annotations"]
    loaded = trainer_config.load_config(one, repo.root())
    assert loaded is not None
    assert loaded.nodes is None


def test_preflight_says_where_a_size_is_fixed_and_why(elastic_cell: Manifests) -> None:
    def warned(manifests: Manifests) -> list[str]:
        found = evaluate(manifests).of(State.WARN)
        return [one.summary for one in found if one.details["rule"] == "elastic-flags"]

    assert warned(elastic_cell) == []
    (said,) = warned(knobs.applied(elastic_cell, Knobs(features=("trainjob",))))
    assert said.startswith("the size of a TrainJob is fixed: Trainer 2.2 removed elasticPolicy")
    elastic_cell.job()["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team"
    assert warned(elastic_cell) == ["Kueue admits all of the job's pods or none, and cannot shrink or grow it"]


def test_a_generated_name_is_left_to_the_api_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a name, the second `kubectl create` of the same file would fail."""
    (job,) = bed("PyTorchJob")
    job["metadata"] = {"generateName": "mine-"}
    (tmp_path / "job.json").write_text(json.dumps(job), encoding="utf-8")
    assert invoke(["render", "-f", str(tmp_path / "job.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["metadata"] == {"generateName": "mine-"}
    assert invoke(["render", "-f", str(tmp_path / "job.json"), "--name", "own", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["metadata"]["name"].endswith("own")
