"""Jobs inside other objects, and kinds that are not modelled, in preflight and wiring."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.workload.beds import BEDS, TORCHRUN, Object, bed, made, template
from tools.cli import invoke
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.kube.manifests import Manifests, parse
from tools.preflight.evaluate import Evaluation, evaluate
from tools.preflight.subject import subject
from tools.simulator import wiring
from tools.workload import kinds


def app_wrapper(*inner: Object) -> Object:
    components = [{"template": one} for one in inner]
    return {
        **made("workload.codeflare.dev/v1beta2", "AppWrapper", {"components": components}),
        "metadata": {"name": "w"},
    }


def experiment(inner: Object, **parameters: Object) -> Object:
    """Return an Experiment of a trial, which declares those of its parameters that the trial uses."""
    declared = [
        *({"name": f"my-{name}", "reference": name} for name in parameters),
        {"name": "trial", "reference": "${trialSpec.Name}"},
    ]
    spec = {
        "parameters": [{"name": name, "feasibleSpace": space} for name, space in parameters.items()],
        "trialTemplate": {
            "primaryContainerName": "pytorch",
            "trialParameters": [one for one in declared if f"trialParameters.{one['name']}}}" in str(inner)],
            "trialSpec": {key: value for key, value in inner.items() if key != "metadata"},
        },
    }
    return {
        **made("kubeflow.org/v1beta1", "Experiment", spec),
        "metadata": {"name": "search", "namespace": "team"},
    }


def checked(*objects: Object) -> Evaluation:
    return evaluate(Manifests("here", [copy.deepcopy(one) for one in objects]))


def faults(found: Evaluation, rule: str, *states: State) -> list[str]:
    """Return the places of a rule's verdicts in some states."""
    wanted = states or (State.FAIL,)
    verdicts = [one for one in found.verdicts if one.details["rule"] == rule and one.state in wanted]
    return [f"{one.details['object']}: {one.details['path']}" for one in verdicts]


@pytest.mark.parametrize("name", BEDS)
def test_a_job_in_an_app_wrapper_is_the_same_job(name: str) -> None:
    plain = kinds.find(Manifests("here", bed(name))).workloads[0]
    found = kinds.find(Manifests("here", [app_wrapper(*bed(name))]))
    (workload,) = found.workloads
    assert (workload.wrapper, workload.prefix) == ("AppWrapper/w", "spec.components[0].template.")
    assert [pod.name for pod in workload.pods()] == [pod.name for pod in plain.pods()]
    assert wiring.analyse(workload).verdict.summary == wiring.analyse(plain).verdict.summary
    assert found.unknown == []


def test_faults_in_a_wrapper_name_the_wrapper_and_the_path_in_it() -> None:
    (job,) = bed("PyTorchJob")
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["name"] = "Not_Valid"
    found = checked(app_wrapper(job))
    path = "spec.components[0].template.spec.pytorchReplicaSpecs.Worker.template.spec.containers[0]"
    assert f"AppWrapper/w: {path}" in faults(found, "names")
    evidence = [line for one in found.verdicts for line in one.evidence]
    assert not any(line.startswith("PyTorchJob/job: ") for line in evidence)


def test_wrappers_in_wrappers_are_opened() -> None:
    (job,) = bed("PyTorchJob")
    (workload,) = kinds.find(Manifests("here", [app_wrapper(experiment(job))])).workloads
    assert workload.wrapper == "AppWrapper/w"
    assert workload.prefix == "spec.components[0].template.spec.trialTemplate.trialSpec."
    deep = job
    for _ in range(40):
        deep = app_wrapper(deep)
    assert kinds.find(Manifests("here", [deep])).workloads == []


def test_a_trials_placeholders_are_not_template_text() -> None:
    (job,) = bed("PyTorchJob")
    command = [*TORCHRUN, "--lr=${trialParameters.my-lr}", "--name=${trialParameters.trial}"]
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"] = template(command, "pytorch")
    found = checked(experiment(job, lr={"min": "0.01", "max": "0.1"}))
    assert faults(found, "template-left", State.FAIL, State.WARN, State.CANNOT_TELL) == []
    (workload,) = kinds.find(Manifests("here", [experiment(job, lr={"min": "0.01"})])).workloads
    assert workload.pods()[0].container["command"][-2:] == ["--lr=0.01", "--name=search-00000000"]
    assert workload.namespace == "team"


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        ([{"name": "my-lr", "reference": "lr"}], ""),
        ([], "spec.trialTemplate.trialParameters must be a list with my-lr"),
        ([{"name": "my-lr", "reference": "rate"}], "reference must be the name of one of spec.parameters"),
        ([{"name": "my-lr", "reference": "lr"}, {"name": "b", "reference": "lr"}], "a list without b"),
    ],
)
def test_katib_refuses_parameters_that_trial_and_template_do_not_share(parameters: list[Object], fault: str) -> None:
    (job,) = bed("PyTorchJob")
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"] = template(
        [*TORCHRUN, "--lr=${trialParameters.my-lr}"], "pytorch"
    )
    search = experiment(job, lr={"min": "0.01", "max": "0.1"})
    search["spec"]["trialTemplate"]["trialParameters"] = parameters
    told = [one.summary for one in checked(search).of(State.FAIL) if one.details["rule"] == "types"]
    assert bool(told) is bool(fault)
    assert fault in "".join(told)


@pytest.mark.parametrize("text", [None, "", "kind: [", "- a", "kind: 1\napiVersion: v1"])
def test_a_trial_in_a_config_map_is_opened_or_unknown(text: str | None) -> None:
    (job,) = bed("PyTorchJob")
    search = experiment(job)
    trial = search["spec"]["trialTemplate"].pop("trialSpec")
    search["spec"]["trialTemplate"]["configMap"] = {"configMapName": "trials", "templatePath": "a.yaml"}
    trials = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "trials"}}
    found = kinds.find(Manifests("here", [search, {**trials, "data": {"a.yaml": yaml.safe_dump(trial)}}]))
    assert [one.prefix for one in found.workloads] == ["spec.trialTemplate.configMap."]
    found = kinds.find(Manifests("here", [search, {**trials, "data": {} if text is None else {"a.yaml": text}}]))
    assert (found.workloads, [one.path for one in found.unknown]) == ([], ["spec.trialTemplate"])


def test_the_items_of_a_list_are_judged() -> None:
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [*bed("JobSet"), app_wrapper(*bed("Volcano"))]})
    found = kinds.find(parse(text, "list"))
    assert [one.kind for one in found.workloads] == ["JobSet", "Job"]


@pytest.mark.parametrize(
    "spec",
    [
        *({}, {"components": {}}, {"components": [5]}, {"components": [{"template": []}]}),
        *({"components": [{}]}, {"components": [{"template": {"kind": "PyTorchJob", "apiVersion": 5}}]}),
        {"components": [{"template": {"kind": "Job", "apiVersion": "batch/v1", "metadata": []}}]},
        {"components": [{"template": {"kind": "Job", "apiVersion": "batch/v1", "spec": {"parallelism": 10**9}}}]},
    ],
)
def test_a_misshapen_wrapper_is_one_error(spec: Object) -> None:
    found = checked({**app_wrapper(), "spec": spec})
    (place,) = faults(found, "types")
    assert place.startswith("AppWrapper/w: spec.components")
    assert found.state is State.FAIL


PARALLEL = {"parallelism": 2, "template": template(TORCHRUN)}
UNKNOWN = [
    (
        made("kubeflow.org/v2beta1", "MPIJob", {"mpiReplicaSpecs": {"Worker": {"template": template(["a"])}}}),
        "spec.mpiReplicaSpecs.Worker.template",
    ),
    (
        made("ray.io/v1", "RayJob", {"rayClusterSpec": {"headGroupSpec": {"template": template(["ray"])}}}),
        "spec.rayClusterSpec.headGroupSpec.template",
    ),
    (made("sparkoperator.k8s.io/v1beta2", "SparkApplication", {"image": "spark:3"}), "kind"),
    (
        made("example.org/v1", "MyJob", {"workers": [{"template": template(["a"])}]}),
        "spec.workers[0].template",
    ),
    (made("apps/v1", "StatefulSet", {"replicas": 2, "template": template(TORCHRUN)}), "spec.template"),
    (made("batch/v1", "CronJob", {"jobTemplate": {"spec": PARALLEL}}), "spec.jobTemplate.spec.template"),
]


@pytest.mark.parametrize(("item", "path"), UNKNOWN, ids=lambda one: one["kind"] if isinstance(one, dict) else "")
def test_a_kind_that_is_not_modelled_is_cannot_tell(
    item: Object, path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"{item['kind']}/job: {path}"
    assert faults(checked(item), "kind", State.CANNOT_TELL) == [place]
    inside = checked(app_wrapper(item))
    assert faults(inside, "kind", State.CANNOT_TELL) == [f"AppWrapper/w: spec.components[0].template.{path}"]
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(item))
    assert invoke(["wiring", "-f", str(file)]) == 3
    assert place in capsys.readouterr().out


@pytest.mark.parametrize(
    "item",
    [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "torchrun"}},
        made("apps/v1", "Deployment", {"template": template(["python", "serve.py"])}),
        made("kueue.x-k8s.io/v1beta1", "ClusterQueue", {"namespaceSelector": {}}),
        made("argoproj.io/v1alpha1", "Application", {"source": {"path": "x"}}),
        made("kyverno.io/v1", "ClusterPolicy", {"rules": [{"mutate": template(["a"])}]}),
    ],
    ids=lambda item: item["kind"],
)
def test_objects_that_train_nothing_are_not_unknown(item: Object) -> None:
    found = kinds.find(Manifests("here", [item]))
    assert (found.workloads, found.unknown) == ([], [])


def test_a_file_without_pods_gets_no_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n")
    assert invoke(["preflight", "-f", str(file)]) == 0
    assert "no pods to judge" in capsys.readouterr().out
    assert invoke(["wiring", "-f", str(file)]) == 2
    assert "contains no job that starts a distributed training, only ConfigMap" in capsys.readouterr().err


def test_an_unknown_kind_alone_is_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(UNKNOWN[1][0]))
    assert invoke(["preflight", "-f", str(file)]) == 3
    printed = capsys.readouterr().out
    assert printed.startswith("CANNOT TELL")
    assert "RayJob" in printed.splitlines()[0]


def test_the_containers_of_an_unknown_kind_are_checked() -> None:
    """Its controller may add variables and volumes, and nothing excuses a secret in plain text."""
    worker = template(["torchrun", "--master_addr=$(LWS_LEADER_ADDRESS)", "a.py"])
    container = worker["spec"]["containers"][0]
    container["volumeMounts"] = [{"name": "added", "mountPath": "/ssh"}]
    container["env"] = [{"name": "HF_TOKEN", "value": "hf_" + "aB3" * 12}]
    container["securityContext"] = {"privileged": True}
    found = checked(made("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {"groups": [{"template": worker}]}))
    at = "LeaderWorkerSet/job: spec.groups[0].template.spec.containers[0]"
    assert faults(found, "secret-literal") == [f"{at}.env[0].value"]
    assert faults(found, "privileged", State.WARN) == [f"{at}.securityContext"]
    assert [one for rule in ("env-reference", "volumes") for one in faults(found, rule)] == []
    assert found.needs == ["the variable LWS_LEADER_ADDRESS, by its controller"]
    assert (found.judged, found.unjudged) == ({}, {"LeaderWorkerSet": 1})


def test_a_volcano_job_that_hangs_and_asks_for_too_many_devices_fails() -> None:
    """Two machines with 8 GPUs, 16 asked, and a torchrun that waits for nobody."""
    (job,) = bed("Volcano")
    made_of = template(["torchrun", "--nnodes=2", "--nproc-per-node=16", "train.py"])
    pod = made_of["spec"]
    pod["nodeSelector"] = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    pod["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 16}}
    job["spec"]["tasks"][0]["template"] = made_of
    found = checked(job)
    assert found.state is State.FAIL
    rules = {one.details["rule"] for one in found.verdicts if one.state is State.FAIL}
    assert "wiring" in rules
    assert rules - {"wiring"}, "the devices of the machine"


def test_an_initializer_is_not_judged_as_a_rank() -> None:
    found = subject(Manifests("here", bed("TrainJob")))
    assert [(one.role, one.training, one.nodes) for one in found.templates] == [
        ("dataset", False, 1),
        ("node", True, 2),
    ]


def test_a_wrapper_is_judged_by_what_it_holds() -> None:
    found = checked(experiment(bed("PyTorchJob")[0]), app_wrapper(*bed("JobSet")))
    assert found.judged == {"PyTorchJob": 1, "JobSet": 1}
    assert found.unjudged == {}


@pytest.mark.parametrize("name", BEDS)
def test_a_version_that_is_not_served_is_a_fault_of_each_kind(name: str) -> None:
    job, *rest = bed(name)
    job["apiVersion"] = f"{job['apiVersion'].partition('/')[0]}/v0"
    found = checked(job, *rest)
    assert faults(found, "api-version") == [f"{job['kind']}/job: apiVersion"]
    assert faults(checked(*bed(name)), "api-version") == []


def test_what_a_webhook_refuses_is_a_fault_of_admission() -> None:
    job, runtime = bed("TrainJob")
    job["spec"]["trainer"]["env"] = [{"name": "PET_NNODES", "value": "3"}]
    assert faults(checked(job, runtime), "admission") == ["TrainJob/job: spec.trainer.env"]


def test_too_many_levels_of_lists_are_one_error() -> None:
    with pytest.raises(UserError):
        parse('{"kind": "List", "items": [' * 5000 + "]}" * 5000, "deep")


def test_wiring_says_what_is_wrong_with_a_job_of_a_wrong_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = bed("JobSet")[0]
    pod = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["containers"][0]["env"] = [{"name": "NNODES", "value": 2}]
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    assert invoke(["wiring", "-f", str(path)]) == 1
    assert "env[0].value: must be a string in quotes, not 2" in capsys.readouterr().out
