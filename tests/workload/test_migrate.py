"""`yard migrate`: PyTorchJobs as users write them become TrainJobs that are still one world, or are refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tools.cells import locate
from tools.cli import invoke
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.kube.manifests import Manifests, parse
from tools.new.trainjob import Migrated, migrate
from tools.preflight.evaluate import evaluate
from tools.simulator import wiring

Object = dict[str, Any]
TEXT = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: mnist, namespace: team, labels: {kueue.x-k8s.io/queue-name: q}}
spec:
  runPolicy: {backoffLimit: 3, activeDeadlineSeconds: 60}
  pytorchReplicaSpecs:
    Master: &replica
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: pytorch
              image: mine:1
              command: [python3, mnist.py]
              env: [{name: A, value: b}]
    Worker:
      <<: *replica
      replicas: 2
"""
SHELL = "torchrun --nnodes=3 --node-rank=$RANK --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT a.py"
NAMED = ["torchrun", "--nnodes=3", "--rdzv-backend=c10d", "--rdzv-endpoint=mnist-master-0:29400", "a.py"]
ELASTIC = {"rdzvBackend": "c10d", "minReplicas": 2, "maxReplicas": 2, "maxRestarts": 5}


def job(**changes: Any) -> Object:
    (item,) = parse(TEXT, "job.yaml").objects
    made: Object = json.loads(json.dumps(item))
    replicas = made["spec"]["pytorchReplicaSpecs"]
    for name in ("Master", "Worker"):
        template = replicas[name]["template"]["spec"]
        template["containers"][0] |= changes.get("container", {})
        replicas[name]["restartPolicy"] = changes.get("policy", replicas[name]["restartPolicy"])
    if "elastic" in changes:
        del replicas["Master"]
        made["spec"]["elasticPolicy"] = changes["elastic"]
    made["spec"]["runPolicy"] |= changes.get("run", {})
    return made


def migrated(item: Object, *others: Object) -> Migrated:
    return migrate(Manifests("job.yaml", [copy.deepcopy(item), *others]))


@pytest.mark.parametrize(
    ("changes", "world"),
    [
        ({}, 3),
        ({"container": {"command": ["torchrun", "mnist.py"]}}, 3),
        ({"container": {"command": ["torchrun", "mnist.py"]}, "elastic": ELASTIC}, 2),
        ({"container": {"command": ["sh", "-c", SHELL]}}, 3),
        (
            {"container": {"command": NAMED}},
            3,
        ),
    ],
    ids=["plain python", "static torchrun", "c10d", "the operator's variables in a shell", "a host's name"],
)  # fmt: skip
def test_it_stays_one_world(changes: Object, world: int) -> None:
    made = migrated(job(**changes))
    analysis = wiring.analyse(made.job)
    assert analysis.verdict.state is State.PASS, analysis.verdict
    assert wiring.world_size(analysis.nodes) == world
    assert {pod.container["image"] for pod in made.job.pods()} == {"mine:1"}
    assert made.job.queue == "q"
    spec = made.job.spec
    assert (spec["activeDeadlineSeconds"], made.job.backoff["backoffLimit"]) == (60, 3)


@pytest.mark.parametrize(("elastic", "fixed"), [(None, True), (ELASTIC, False)])
def test_a_number_of_nodes_in_a_variable_is_said(elastic: Object | None, fixed: bool) -> None:
    changes = {"elastic": elastic} if elastic else {}
    made = migrated(job(container={"command": ["torchrun", "a.py"]}, **changes))
    assert any(text.startswith("WORLD_SIZE of spec.trainer.env") for text in made.said) is fixed


def test_without_the_operators_variables_each_pod_would_train_alone() -> None:
    """Control: upstream's own page turns the command over unchanged."""
    made = migrated(job())
    del made.job.spec["trainer"]["env"]
    assert wiring.analyse(made.job).verdict.state is not State.PASS


def test_a_port_that_only_the_master_declares_does_not_matter() -> None:
    item = job()
    main = item["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    main["ports"] = [{"name": "pytorchjob-port", "containerPort": 24456}]
    pods = migrated(item).job.pods()
    assert wiring.analyse(migrated(item).job).verdict.state is State.PASS
    assert {"name": "MASTER_PORT", "value": "24456"} in pods[0].container["env"]


def test_restart_policy_exit_code_keeps_its_meaning() -> None:
    made = migrated(job(policy="ExitCode"))
    runtime = next(one for one in made.manifests.objects if one["kind"] == "TrainingRuntime")
    batch = made.job.backoff
    lost, permanent = batch["podFailurePolicy"]["rules"]
    assert lost == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert permanent["onExitCodes"]["values"] == list(range(1, 128))
    assert batch["template"]["spec"]["restartPolicy"] == "Never"
    assert runtime["spec"]["template"]["spec"]["failurePolicy"]["rules"][0]["action"] == "FailJobSet"


def test_the_first_failed_pod_ends_a_job_with_restart_policy_never() -> None:
    made = migrated(job(policy="Never"))
    assert made.job.backoff["backoffLimit"] == 0
    assert any("backoffLimit is 0 instead of 3" in text for text in made.said), made.said


NAME, LABELS = "training.kubeflow.org/job-name", "training.kubeflow.org/"


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ({f"{LABELS}job-name": "mnist"}, [0, 1, 2]),
        ({f"{LABELS}job-name": "mnist", f"{LABELS}job-role": "master"}, [0]),
        ({f"{LABELS}replica-type": "master"}, [0]),
        ({f"{LABELS}job-name": "other"}, []),
        ({f"{LABELS}replica-type": "worker"}, []),
    ],
)
def test_selectors_of_the_file_find_the_new_pods(labels: dict[str, str], found: list[int]) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"selector": labels}}
    made = migrated(job(), service)
    selector = made.manifests.of_kind("Service")[0]["spec"]["selector"]
    assert [pod.index for pod in made.job.pods() if selector.items() <= pod.labels.items()] == found
    assert bool(found) != any("Service a names training.kubeflow.org/" in text for text in made.said), made.said


def test_what_reads_the_operators_labels_in_a_pod_reads_the_new_ones() -> None:
    item = job(elastic=ELASTIC, container={"command": ["torchrun", "a.py"]})
    spec, new = item["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"], "jobset.sigs.k8s.io/jobset-name"
    term = {"labelSelector": {"matchExpressions": [{"key": NAME, "operator": "In", "values": ["mnist"]}]}}
    spec["topologySpreadConstraints"] = [
        {**term, "topologyKey": "a", "whenUnsatisfiable": "b", "matchLabelKeys": [NAME, new]}
    ]
    files = [
        {"path": key, "fieldRef": {"fieldPath": f"metadata.labels['{LABELS}{key}']"}}
        for key in ("job-name", "replica-index")
    ]
    spec["volumes"] = [{"name": "pod", "downwardAPI": {"items": files}}]
    made = migrated(item)
    (pod, *_) = made.job.pods()
    (spread,) = pod.spec["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchExpressions"][0]["key"] == new
    assert spread["matchLabelKeys"] == [new]  # the cells with EFA have both
    paths = [one["fieldRef"]["fieldPath"] for one in pod.spec["volumes"][0]["downwardAPI"]["items"]]
    assert paths == [f"metadata.labels['{new}']", "metadata.annotations['batch.kubernetes.io/job-completion-index']"]
    assert not any("names training" in text for text in made.said), made.said


def test_sidecars_keep_their_variables_and_references_their_container() -> None:
    item = job()
    field = {"resourceFieldRef": {"containerName": "pytorch", "resource": "limits.memory"}}
    for replica in item["spec"]["pytorchReplicaSpecs"].values():
        template = replica["template"]
        template["metadata"] = {"annotations": {"kubectl.kubernetes.io/default-container": "pytorch"}}
        template["spec"]["containers"][0]["env"] = [{"name": "MEMORY", "valueFrom": field}]
        own = [{"name": "RANK", "value": "9"}, {"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
        template["spec"]["containers"].append({"name": "log", "image": "log:1", "env": own})
    pod = migrated(item).job.pods()[2]
    train, sidecar = pod.spec["containers"]
    names = [one["name"] for one in sidecar["env"]]
    assert len(names) == len(set(names)), "the API server refuses a runtime with a variable twice"
    assert pod.annotations["kubectl.kubernetes.io/default-container"] == "node"
    assert train["env"][0]["valueFrom"]["resourceFieldRef"]["containerName"] == "node"
    values = {one["name"]: one.get("value") or one["valueFrom"]["fieldRef"]["fieldPath"] for one in sidecar["env"]}
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    expected = {
        "RANK": index,
        "PET_NODE_RANK": index,
        "MASTER_ADDR": "mnist-node-0-0.mnist",
        "PET_NNODES": "3",
        "A": "2",
    }
    assert expected.items() <= values.items()


def test_a_field_without_a_place_is_named() -> None:
    elastic = {**ELASTIC, "metrics": [{"type": "Resource"}]}
    item = job(elastic=elastic, run={"retries": 3}, container={"command": ["torchrun", "a.py"]})
    item["spec"]["pytorchReplicaSpecs"]["Worker"]["nodeSelector"] = {"a": "b"}
    resume = "sagemaker.amazonaws.com/enable-job-auto-resume"
    notes = {"team": "nlp", "kubectl.kubernetes.io/last-applied-configuration": "{}", resume: "true"}
    item |= {"status": {"conditions": []}}
    item["metadata"] |= {"generateName": "mnist-", "finalizers": ["a/b"], "annotations": notes}
    made = migrated(item)
    (said,) = (text for text in made.said if text.startswith("left out"))
    assert said.split(": ")[1].split(", ") == [
        "status",
        "metadata.generateName",
        "metadata.finalizers",
        "spec.runPolicy.retries",
        "spec.elasticPolicy.metrics",
        "spec.pytorchReplicaSpecs.Worker.nodeSelector",
        "metadata.annotations[kubectl.kubernetes.io/last-applied-configuration]",
        f"metadata.annotations[{resume}]",
    ]
    assert made.job.item["metadata"]["annotations"] == {"team": "nlp"}
    assert not any(text.startswith("left out") for text in migrated(job()).said)


def test_ports_and_host_names_that_trainer_and_jobset_write() -> None:
    """Trainer's port has no name, and takes the place of the first port without a name."""
    udp = {"containerPort": 9000, "protocol": "UDP"}
    ports = [{"containerPort": 9000}, udp, {"containerPort": 29500, "name": "metrics"}]
    peers = [{"name": "PEERS", "value": "mnist-worker-0.mesh.team.svc,mnist-worker-1"}]
    item = job(elastic=ELASTIC, container={"command": ["torchrun", "a.py"], "ports": ports, "env": peers})
    item["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"] |= {"subdomain": "mesh", "hostname": "a"}
    made = migrated(item)
    (pod, _) = made.job.pods()
    assert [one["name"] for one in pod.container["ports"]] == ["port-9000-tcp", "port-9000-udp", "metrics"]
    value = next(one["value"] for one in pod.container["env"] if one["name"] == "PEERS")
    assert value == "mnist-node-0-0.mnist.team.svc,mnist-node-0-1.mnist"
    template = made.manifests.of_kind("TrainingRuntime")[0]["spec"]["template"]["spec"]["replicatedJobs"][0]
    assert not {"subdomain", "hostname"} & set(template["template"]["spec"]["template"]["spec"])
    for text in ("subdomain mesh is left out", "hostname a is left out", "29500 loses its name metrics"):
        assert any(text in one for one in made.said), made.said


def test_other_objects_of_any_shape_stay_as_they_are() -> None:
    odd = {"key": [NAME], "operator": {}, "values": 5, "matchLabelKeys": [{"a": 1}], 7: NAME}
    other = {"apiVersion": "a/v1", "kind": "Odd", "metadata": {"name": "odd"}, "spec": [odd, {**odd, "key": "b"}]}
    made = migrated(job(), other)
    assert [one["operator"] for one in made.manifests.of_kind("Odd")[0]["spec"]] == [{}, {}]
    left = "Odd odd names training.kubeflow.org/job-name in spec[0].7, which a TrainJob lacks"
    assert left in made.said


def test_a_job_that_names_the_operator_as_its_manager_is_migrated() -> None:
    assert migrated(job(run={"managedBy": "kubeflow.org/training-operator"})).job.name == "mnist"


@pytest.mark.parametrize(
    ("run", "elastic", "said"),
    [
        ({"ttlSecondsAfterFinished": 5}, ELASTIC, "ttlSecondsAfterFinished is left out"),
        ({"cleanPodPolicy": "None"}, ELASTIC, "cleanPodPolicy is left out"),
        ({"schedulingPolicy": {"queue": "x"}}, ELASTIC, "schedulingPolicy is left out"),
        ({"backoffLimit": None}, ELASTIC, "there was no backoffLimit"),
        ({}, ELASTIC, "counts for backoffLimit now"),
        ({}, ELASTIC, "the PyTorchJob when one Worker has"),
        ({}, {**ELASTIC, "maxReplicas": 4}, "elasticPolicy 2 to 4 becomes 2 nodes"),
        ({}, ELASTIC, "the world has 2 ranks instead of as many as torchrun counts"),
    ],
)
def test_what_differs_is_said(run: Object, elastic: Object, said: str) -> None:
    made = migrated(job(run=run, elastic=elastic, container={"command": ["torchrun", "a.py"]}))
    assert any(said in text for text in made.said), made.said


def test_the_last_value_of_a_variable_that_is_set_twice_is_kept_and_said() -> None:
    made = migrated(job(container={"env": [{"name": "A", "value": one} for one in ("1", "2")]}))
    assert made.job.pods()[0].container["env"].count({"name": "A", "value": "2"}) == 1
    assert [text for text in made.said if text.startswith("A is set more than once in the container pytorch")]
    assert evaluate(made.manifests).of(State.FAIL) == []


def broken(what: str) -> Object:
    item = job()
    worker = item["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    if what == "Worker":
        worker["containers"][0]["command"] = ["python3", "worker.py"]
    elif what in ("replica-type", "replica-index"):
        field = {"fieldRef": {"fieldPath": f"metadata.labels['training.kubeflow.org/{what}']"}}
        for replica in item["spec"]["pytorchReplicaSpecs"].values():
            replica["template"]["spec"]["containers"][0]["env"] = [{"name": "TYPE", "valueFrom": field}]
    elif what == "apart":
        del item["spec"]["pytorchReplicaSpecs"]["Master"]
        worker["containers"][0]["command"] = ["torchrun", "a.py"]
    elif what == "node":
        for replica in item["spec"]["pytorchReplicaSpecs"].values():
            replica["template"]["spec"]["containers"].append({"name": "node", "image": "exporter:1"})
    elif what == "policy":
        for replica in item["spec"]["pytorchReplicaSpecs"].values():
            replica["restartPolicy"] = "OnFailures"
    elif what == "kind":
        item["kind"] = "PytorchJob"
    elif what == "twice":
        env = [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A):2"}]
        for replica in item["spec"]["pytorchReplicaSpecs"].values():
            replica["template"]["spec"]["containers"][0]["env"] = env
    elif what == "refused":
        worker["containers"][0]["name"] = "main"
    elif what == "long":
        item["metadata"]["name"] = "m" * 50
    else:
        item["spec"]["runPolicy"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    return item


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("Worker", r"Master and Worker differ in template\.spec\.containers\[0\]\.command\[1\]"),
        ("replica-type", r"containers\[0\]\.env\[0\]\S* reads the label training.kubeflow.org/replica-type"),
        ("replica-index", r"containers\[0\]\.env\[0\]\S* reads the label training.kubeflow.org/replica-index"),
        ("apart", "it is not one world today"),
        ("refused", "it is refused as it is"),
        ("long", "the TrainJob would be refused"),
        ("managed", "kueue.x-k8s.io/multikueue makes the job's pods in another cluster"),
        ("policy", "there is no restartPolicy OnFailures"),
        ("twice", "A is set more than once, and a variable reads it"),
        ("node", "a second container has the name node"),
    ],
)
def test_what_it_cannot_is_refused_with_the_reason(what: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        migrated(broken(what))
    assert caught.value.code == 1


def test_a_misspelled_kind_is_bad_input() -> None:
    with pytest.raises(UserError, match=r"did you mean PyTorchJob\?") as caught:
        migrated(broken("kind"))
    assert caught.value.code == 2


def test_a_process_for_each_processor_is_not_one_for_each_gpu() -> None:
    item = job(container={"command": ["torchrun", "a.py"], "resources": {"limits": {"nvidia.com/gpu": 8}}})
    item["spec"]["nprocPerNode"] = "cpu"
    made = migrated(item)
    assert made.job.item["spec"]["trainer"]["numProcPerNode"] == 1
    assert "the world has 3 ranks instead of as many as torchrun counts devices or processors" in made.said


def test_a_job_of_another_kind_is_bad_input() -> None:
    made = migrated(job())
    with pytest.raises(UserError, match="TrainJob/mnist is not a PyTorchJob") as caught:
        migrate(made.manifests)
    assert caught.value.code == 2


def test_a_kind_that_is_not_modelled_is_named() -> None:
    spec = {"mpiReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [{"name": "m", "image": "m:1"}]}}}}}
    item = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "m"}, "spec": spec}
    with pytest.raises(UserError, match=r"no job that trains; MPIJob \(kubeflow.org/v2beta1\) is not a kind"):
        migrated(item)


def test_every_cell_could_be_migrated() -> None:
    """The Component makes more of a cell: its retries below a podFailurePolicy."""
    made = migrate(locate.rendered("p5/llama-3-1-8b"))
    assert wiring.analyse(made.job).verdict.state is State.PASS


@pytest.mark.long
def test_the_command_prints_the_objects_and_the_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(TEXT, encoding="utf-8")
    assert invoke(["migrate", "-f", str(path)]) == 0
    shown = capsys.readouterr()
    assert [one["kind"] for one in parse(shown.out, "printed").objects] == ["TrainingRuntime", "TrainJob"]
    assert "one all-reduce over 3 ranks" in shown.err
