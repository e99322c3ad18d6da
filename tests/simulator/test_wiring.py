"""`yard wiring`: manifests that train as one job, as several, or never; and the proof by real launchers."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.workload import beds
from tools.core.errors import UserError
from tools.core.verdict import State
from tools.kube.manifests import Manifests
from tools.simulator import wiring, wiring_proof
from tools.simulator.node import GIVE_COMMAND, Given, Image
from tools.simulator.wiring import Analysis
from tools.workload import kinds
from tools.workload.pytorchjob import PyTorchJob

Job = Callable[..., dict[str, Any]]

TORCHRUN = ["torchrun", "-m", "trainer"]


def workload(job: dict[str, Any], version: str = "1.9.4", others: Sequence[Any] = ()) -> PyTorchJob:
    return PyTorchJob(job, manifests=Manifests("here", [job, *others]), version=version)


def analysed(job: dict[str, Any], version: str = "1.9.4", others: Sequence[Any] = ()) -> Analysis:
    return wiring.analyse(workload(job, version, others))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"pods": 1},
        {"pods": 1, "elastic": False},
        {"pods": 1, "elastic": False, "command": ["python", "a.py"]},
        {"pods": 1, "elastic": False, "command": ["python3", "-c", "import trainer"]},
        {"master": True},
        {"master": True, "command": ["python", "a.py"]},
        {
            "elastic": False,
            "command": ["torchrun", "--rdzv-backend=c10d", "--rdzv-endpoint=job-worker-0:5", "a.py"],
        },
        {"command": ["bash", "-c", "exec torchrun --rdzv_endpoint=$PET_RDZV_ENDPOINT \\\n a.py"]},
        {"command": ["torchrun", "--nnodes=2", "--rdzv-endpoint=job-worker-0.default.svc:23456", "a.py"]},
        {"spec": {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 8}}},
        {"command": ["bash", "-c", "set -e\ncd /app\npip install x\ntorchrun a.py 2>&1 | tee log\n"]},
        {
            "elastic": False,
            "command": [
                "sh",
                "-c",
                "torchrun --nnodes 2 --node_rank ${HOSTNAME##*-} --master_addr job-worker-0 --role $(x) a",
            ],
        },
        {"spec": {"runPolicy": {"suspend": True}}},
        {"command": ["bash", "-c", "for i in 1 2 3; do torchrun a.py && exit; sleep 5; done; exit 1"]},
    ],
)
def test_these_pass(make_job: Job, change: dict[str, Any]) -> None:
    analysis = analysed(make_job(**{"command": TORCHRUN, **change}))
    assert analysis.verdict.state is State.PASS, analysis.verdict
    assert len(analysis.nodes) == change.get("pods", 2)
    assert any("job-" in line and "rendezvous" in line for line in analysis.verdict.evidence)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"elastic": False},
            "it hangs: 2 pods wait in 2 places: a job without Master and without elasticPolicy",
        ),
        (
            {"elastic": False, "command": ["python", "a.py"]},
            "it trains as 2 separate jobs: python starts without RANK",
        ),
        ({"command": ["python", "a.py"]}, "it trains as 2 separate jobs: python starts without RANK"),
        (
            {"command": ["torchrun", "--standalone", "a.py"]},
            "separate jobs: --standalone makes each pod its own world",
        ),
        (
            {"command": ["torchrun", "--nnodes=1", "a.py"]},
            "it trains as separate jobs: nnodes is 1, but there are 2",
        ),
        ({"elastic": False, "command": ["torchrun", "--nnodes=1", "a.py"]}, "it trains as 2 separate jobs"),
        ({"spec": {"elasticPolicy": {"maxReplicas": 1}}}, "nnodes is 1, but there are 2 pods"),
        ({"spec": {"elasticPolicy": {"minReplicas": 4}}}, "it never starts: it waits for 4 nodes"),
        ({"spec": {"elasticPolicy": {"standalone": True}}}, "PET_STANDALONE is ''"),
        ({"spec": {"elasticPolicy": {"rdzvHost": "localhost"}}}, "it hangs: 2 pods wait in 2 places"),
        ({"spec": {"elasticPolicy": {"rdzvHost": "elsewhere"}}}, "elsewhere is not one of the job's pods"),
        ({"spec": {"elasticPolicy": {"rdzvConf": []}}}, "the operator fails on it"),
        ({"master": True, "command": ["torchrun", "--node-rank=0", "a.py"]}, "the node ranks are not 0 to 1"),
        (
            {"master": True, "command": ["torchrun", "--nnodes=3", "a.py"]},
            "it never starts: it waits for 3 nodes",
        ),
        (
            {"master": True, "command": ["python", "a.py"], "spec": {"nprocPerNode": "8"}},
            "starts one python process",
        ),
        ({"command": ["torchrun", "--nproc-per-node=0", "a.py"]}, "0 processes a node"),
        ({"command": ["torchrun", "--rdzv-backend=nonsense:", "--oops", "a.py"]}, "torchrun: "),
        ({"spec": {"elasticPolicy": {"rdzvBackend": "etcd"}}}, "job-worker-0, which runs no etcd server"),
        (
            {"command": ["bash", "-c", "cd /x && torchrun --nnodes=3 a.py"]},
            "it waits for 3 nodes, but there are 2",
        ),
        *(
            ({"command": ["bash", "-c", f"exec torchrun --rdzv-id={own} a.py"]}, "another one in each pod")
            for own in ("$RANDOM", "job-${RANDOM}", "$(uuidgen)", "$(date +%s)")
        ),
        ({"command": ["deepspeed", "a.py"]}, "deepspeed without a hostfile starts on its own pod only"),
        ({"command": ["hyperpodrun", "--nnodes=2", "a.py"]}, "hyperpodrun waits for HyperPod's operator"),
        ({"spec": {"nprocPerNode": 1}}, "the job is refused: spec.nprocPerNode: must be a string"),
    ],
)
def test_these_fail_with_the_reason(make_job: Job, change: dict[str, Any], reason: str) -> None:
    verdict = analysed(make_job(**{"command": TORCHRUN, **change})).verdict
    assert verdict.state is State.FAIL, verdict
    assert reason in verdict.summary


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"command": ["mpirun", "a.py"]}, "mpirun: MPI starts its ranks"),
        (
            {"elastic": False, "command": ["bash", "-c", "MASTER_ADDR=job-worker-0 python a.py"]},
            "python starts with MASTER_ADDR and without RANK, WORLD_SIZE, MASTER_PORT, which the program may",
        ),
        ({"command": ["bash", "-c", "/app/run.sh a.py"]}, "it runs /app/run.sh, a file of the image"),
        (
            {"command": ["bash", "-c", "torchrun --nnodes=$(cat /n) a.py"]},
            "--nnodes is $(cat /n): only the pod",
        ),
        (
            {"command": ["bash", "-c", ". e.sh; torchrun --rdzv-id=$I a.py"]},
            "--rdzv-id is $I: e.sh may set it",
        ),
        (
            {"spec": {"elasticPolicy": {"rdzvBackend": "etcd", "rdzvHost": "etcd"}}},
            "the etcd server etcd, which is not in this file",
        ),
        ({"spec": {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}}, "in another cluster"),
    ],
)
def test_the_verdict_on_these_is_cannot_tell(make_job: Job, change: dict[str, Any], reason: str) -> None:
    verdict = analysed(make_job(**{"command": TORCHRUN, **change})).verdict
    assert verdict.state is State.CANNOT_TELL
    assert reason in verdict.summary


def test_operator_1_7_starts_fewer_processes(make_job: Job) -> None:
    job = make_job(command=TORCHRUN, spec={"nprocPerNode": "8"})
    assert wiring.world_size(analysed(job, "1.7.0").nodes) == 2
    assert wiring.world_size(analysed(job, "1.8.0").nodes) == 16


def test_a_large_job_is_proved_small_and_says_so(make_job: Job) -> None:
    nodes = analysed(make_job(pods=16, command=TORCHRUN, spec={"nprocPerNode": "8"})).nodes
    assert wiring_proof.scale(nodes, None, None) == wiring_proof.Scale(2, 2, whole=False)
    assert wiring_proof.scale(nodes, 3, None) == wiring_proof.Scale(3, 8, whole=False)
    assert wiring_proof.scale(nodes, None, 1) == wiring_proof.Scale(16, 1, whole=False)
    for pods, nproc, message in ((17, None, "the job has 16 pods"), (16, 8, "too many for one machine")):
        with pytest.raises(UserError, match=message):
            wiring_proof.scale(nodes, pods, nproc)
    small = analysed(make_job(command=TORCHRUN)).nodes
    assert wiring_proof.scale(small, None, None) == wiring_proof.Scale(2, 1, whole=True)


def test_without_torch_the_proof_cannot_tell(make_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    verdict = wiring_proof.prove(analysed(make_job(command=TORCHRUN)), None, None, 60)
    assert verdict.state is State.CANNOT_TELL
    assert verdict.summary == "torch is not installed here, so the job's launchers cannot run"


@pytest.mark.parametrize(
    ("seen", "world", "state"), [(2, 2, State.PASS), (1, 2, State.CANNOT_TELL), (1, 1, State.FAIL)]
)
def test_a_launcher_that_is_slow_to_end_is_no_fault_when_every_rank_was_counted(
    make_job: Job, monkeypatch: pytest.MonkeyPatch, seen: int, world: int, state: State
) -> None:
    def run(nodes: list[Any], _size: Any, directory: Path, _timeout: float) -> tuple[dict[str, None], str]:
        for rank in range(seen):
            record = {"rank": rank, "world": world, "pod": str(rank), "counted": [1] * world}
            (directory / f"{rank}.json").write_text(json.dumps(record))
        return {node.pod.name: None for node in nodes}, "loopback"

    monkeypatch.setattr(wiring_proof, "_run", run)
    verdict = wiring_proof.prove(analysed(make_job(command=TORCHRUN)), None, None, 60)
    assert verdict.state is state
    assert any("still waiting" in line for line in verdict.evidence)


@pytest.mark.long
def test_an_elastic_job_is_proved_by_its_own_torchrun(checkout: Any, make_job: Job) -> None:
    env = {"OWN": "/shared/x", "LD_PRELOAD": "/in/the/image.so", "PYTHONPATH": "/in/the/image"}
    cell = checkout.cell(make_job("elastic", command=["torchrun", "-m", "no.such.trainer"], env=env))
    done = checkout.yard("wiring", cell, RANK="5", PET_NNODES="9")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("PASS: elastic is one job of 2 ranks (2 pods x 1 process)")
    for line in (
        "elastic-worker-0: rank 0 of 2",
        "elastic-worker-1: rank 1 of 2",
        "one all-reduce over 2 ranks",
    ):
        assert line in done.stdout
    assert list((checkout.root / "local").iterdir()) == []


@pytest.mark.long
def test_master_and_workers_are_proved_through_a_shell_and_a_pipe(checkout: Any, make_job: Job) -> None:
    script = "exec torchrun --nnodes=$PET_NNODES --node_rank=$RANK --master_addr=$MASTER_ADDR no_such.py --x"
    job = make_job("static", master=True, command=["bash", "-c", script])
    path = checkout.root / "job.yaml"
    with path.open("w") as file:
        YAML(typ="safe").dump(job, file)
    done = checkout.yard("wiring", "-f", str(path), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (verdict,) = json.loads(done.stdout)
    assert verdict["verdict"] == "PASS"
    assert [(rank["pod"], rank["rank"]) for rank in verdict["ranks"]] == [
        ("static-master-0", 0),
        ("static-worker-0", 1),
    ]


def test_plain_python_with_a_master_is_proved(checkout: Any, make_job: Job) -> None:
    done = checkout.yard("wiring", checkout.cell(make_job("plain", master=True, command=["python", "no_such.py"])))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "plain-worker-0: rank 1 of 2" in done.stdout


def test_a_launcher_that_fails_is_a_fail_and_one_that_has_not_started_is_unknown(checkout: Any, make_job: Job) -> None:
    bad = make_job("refuses", pods=1, command=["torchrun", "--start-method=none", "a.py"])
    done = checkout.yard("wiring", checkout.cell(bad))
    assert done.returncode == 1
    assert "torchrun: --start-method 'none' is not one of spawn, fork, forkserver" in done.stdout
    waits = checkout.yard("wiring", checkout.cell(make_job("waits", command=TORCHRUN)), "--timeout", "1")
    assert waits.returncode == 3
    assert "2 of 2 pods were still waiting after 1 s, and no rank had started" in waits.stdout
    assert not checkout.processes()


def test_fail_and_cannot_tell_have_their_exit_codes(checkout: Any, make_job: Job) -> None:
    apart = checkout.yard("wiring", checkout.cell(make_job("apart", elastic=False, command=TORCHRUN)))
    assert apart.returncode == 1
    assert apart.stdout.startswith("FAIL: it hangs")
    assert "fix: give the job elasticPolicy" in apart.stdout
    unknown = checkout.yard("wiring", checkout.cell(make_job("unknown", command=["mpirun", "a"])))
    assert unknown.returncode == 3
    assert unknown.stdout.startswith("CANNOT TELL: ")
    assert "looked at: mpirun a" in unknown.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Job\nmetadata: {name: x}\n", "contains no job that starts a distributed training, only Job"),
        ("a: [1\n", "not valid YAML"),
        ("{{- if .Values.train }}\nkind: Job\n{{- end }}\n", "hint: render it first: helm template"),
        ("kind: Job\nmetadata: {name: a}\nspec:\n  a: {{.a}}\n", "hint: fill in its {{...}} first"),
        ("kind: Job\nmetadata:\n\tname: a\n", "hint: YAML takes no tabs for indentation: use spaces"),
        ("- 1\n", "not a Kubernetes object"),
        ("kind: PyTorchJob\n", "PyTorchJob has no metadata.name"),
    ],
)
def test_files_that_hold_no_job(checkout: Any, text: str, message: str) -> None:
    path = checkout.root / "bad.yaml"
    path.write_text(text)
    done = checkout.yard("wiring", "-f", str(path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {path}")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


ETCD = {
    "selector": {"app": "etcd"},
    "labels": {"app": "etcd"},
    "containers": [{"name": "etcd", "image": "quay.io/coreos/etcd:v3.5.9", "command": ["etcd", "--enable-v2"]}],
}


@pytest.mark.parametrize("labels", [{"app": "etcd"}, {"app": "other"}])
def test_an_etcd_server_of_the_same_file_is_found(make_job: Job, labels: dict[str, str]) -> None:
    job = make_job(command=TORCHRUN, spec={"elasticPolicy": {"rdzvBackend": "etcd-v2", "rdzvHost": "etcd"}})
    pods = {"metadata": {"labels": labels}, "spec": {"containers": ETCD["containers"]}}
    server = {"kind": "Deployment", "metadata": {"name": "etcd"}, "spec": {"template": pods}}
    service = {"kind": "Service", "metadata": {"name": "etcd"}, "spec": {"selector": ETCD["selector"]}}
    verdict = analysed(job, others=[server, service]).verdict
    assert verdict.state is (State.PASS if labels == ETCD["labels"] else State.CANNOT_TELL), verdict
    if verdict.state is State.PASS:
        assert any("etcd-v2 rendezvous at etcd" in line for line in verdict.evidence)


def test_a_script_of_a_configmap_is_followed_and_its_secrets_are_masked(make_job: Job) -> None:
    job = make_job(command=["bash", "/scripts/run.sh", "2"])
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["volumes"] = [{"name": "s", "configMap": {"name": "scripts"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "s", "mountPath": "/scripts"}]
    token = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"
    text = f"#!/bin/bash\nhuggingface-cli login --token {token}\ntorchrun --nnodes=$1 a.py\n"
    maps = [{"kind": "ConfigMap", "metadata": {"name": "scripts"}, "data": {"run.sh": text}}]
    assert analysed(job, others=maps).verdict.state is State.PASS
    assert "/scripts/run.sh, a file of the image" in analysed(job).verdict.summary
    secret = make_job(command=["bash", "-c", f"huggingface-cli login --token {token}; ./train"])
    assert "***" in analysed(secret).verdict.summary
    assert token not in str(analysed(secret).verdict)


def test_the_image_or_the_user_says_what_starts(make_job: Job) -> None:
    job = make_job(command=TORCHRUN)
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    del container["command"]
    container["args"] = ["--nnodes=3", "a.py"]
    unknown = analysed(job).verdict
    assert (unknown.state, unknown.remedy) == (State.CANNOT_TELL, GIVE_COMMAND)
    image = Image(["torchrun"], ["b.py"], {"PET_NNODES": "9"})
    read = wiring.analyse(workload(job), Given({container["image"]: image})).verdict
    assert "it waits for 3 nodes" in read.summary
    container.pop("args")
    found = wiring.analyse(workload(job), Given({container["image"]: image}))
    assert found.verdict.state is State.PASS  # the operator's PET_NNODES counts, not the image's
    by_hand = wiring.analyse(workload(job), Given(command=["torchrun", "--nnodes=4", "a.py"]))
    assert "it waits for 4 nodes" in by_hand.verdict.summary


@pytest.mark.parametrize(
    ("processes", "state"), [("8", State.PASS), ("16", State.FAIL), ("4", State.WARN), ("auto", State.PASS)]
)
def test_processes_are_compared_with_gpus(make_job: Job, processes: str, state: State) -> None:
    job = make_job(command=["torchrun", f"--nproc-per-node={processes}", "a.py"])
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"nvidia.com/gpu": 8}}
    assert analysed(job).verdict.state is state


PUBLIC: dict[str, tuple[dict[str, Any], str, tuple[State, str]]] = {
    "a tutorial's Master and Worker": (
        {"master": True, "elastic": False},
        "torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=job-master-0:29500 t.py",
        (State.PASS, "forms one world"),
    ),
    "elastic workers with torchrun": (
        {"spec": {"elasticPolicy": {"rdzvBackend": "c10d", "minReplicas": 1, "maxReplicas": 64}}},
        "torchrun --nproc_per_node=1 --nnodes=2 train.py",
        (State.PASS, "forms one world"),
    ),
    "workers with variables that only a Master gets": (
        {"elastic": False},
        "torchrun --nnodes=2 --node_rank=$(RANK) --master_addr=$(MASTER_ADDR) train.py",
        (State.FAIL, "--node-rank '' is not an integer"),
    ),
    "elastic workers with python and a script in the manifest": (
        {},
        "set -e\npip install -q peft==0.14\ncat > /tmp/t.py << 'EOF'\nprint('$(')\nEOF\npython /tmp/t.py\n",
        (State.FAIL, "it trains as 2 separate jobs: python starts without RANK"),
    ),
    "workers with --standalone": (
        {"elastic": False},
        "cd /app && torchrun --standalone --nproc_per_node=2 train.py",
        (State.FAIL, "it trains as 2 separate jobs"),
    ),
    "accelerate without machines": (
        {"master": True},
        "pip install -r r.txt; accelerate launch --multi_gpu --num_processes 2 train.py",
        (
            State.PASS,
            "forms one world",
        ),  # the operator's PET_NNODES and PET_MASTER_ADDR reach torchrun inside
    ),
    "deepspeed without a hostfile": (
        {"master": True},
        "deepspeed --num_gpus 2 train.py --deepspeed ds.json",
        (State.FAIL, "it trains as 2 separate jobs: deepspeed without a hostfile"),
    ),
    "workers without elasticPolicy": (
        {"elastic": False},
        "export NCCL_DEBUG=INFO\nexec torchrun --nproc_per_node=1 train.py\n",
        (State.FAIL, "it hangs: 2 pods wait in 2 places"),
    ),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_manifests_of_the_kind_that_users_copy(make_job: Job, name: str) -> None:
    change, script, (state, reason) = PUBLIC[name]
    verdict = analysed(make_job(**change, command=["bash", "-c", script])).verdict
    assert verdict.state is state, verdict
    assert reason in verdict.summary


def test_scripts_of_many_pods_have_one_limit_together(make_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(pods=20, command=["bash", "-c", "f() { true; true; }; f; f; f; f; torchrun a.py"])
    assert analysed(job).verdict.state is State.PASS, "the control"
    monkeypatch.setattr(wiring, "MOST_EFFORT", 100)
    analysis = analysed(job)
    assert "too long to follow" in analysis.verdict.summary
    assert len(analysis.nodes) < 20


@pytest.mark.parametrize(
    ("command", "replicas", "devices", "state"),
    [
        (["python", "train.py"], 2, 0, State.CANNOT_TELL),
        (["python", "train.py"], 1, 8, State.PASS),
        (["./train.sh"], 2, 0, State.CANNOT_TELL),
        (["./train.sh"], 1, 8, State.CANNOT_TELL),
        ([], 1, 8, State.CANNOT_TELL),
        ([], 1, 0, None),
        (["sh", "-c", "ls && sleep 5"], 4, 0, None),
        (["sh", "-c", "python -c 'import train'"], 4, 0, State.CANNOT_TELL),
    ],
)
def test_pods_without_a_launcher_are_unknown_where_they_may_train(
    command: list[str], replicas: int, devices: int, state: State | None
) -> None:
    item = copy.deepcopy(beds.JOB)
    item["spec"] |= {"parallelism": replicas, "completions": replicas}
    container = item["spec"]["template"]["spec"]["containers"][0]
    container |= {"command": command, "resources": {"limits": {"nvidia.com/gpu": devices}}}
    job = kinds.of(item)
    assert job is not None
    verdict = wiring.unseen(job)
    assert (verdict and verdict.state) is state
    given = wiring.unseen(job, Given({}, ["torchrun", "--nnodes=9", "a.py"]))
    assert given is not None
    assert given.state is State.FAIL


@pytest.mark.parametrize(
    ("script", "nodes", "state"),
    [
        ("if [ $JOB_COMPLETION_INDEX = 0 ]; then sleep infinity; fi", "2", State.FAIL),
        ("if [ $JOB_COMPLETION_INDEX = 1 ]; then echo ready; exit 0; fi", "2", State.FAIL),
        ("if [ $JOB_COMPLETION_INDEX = 0 ]; then ./other; exit; fi", "2", State.CANNOT_TELL),
        ("if [ $JOB_COMPLETION_INDEX = 1 ]; then sleep infinity; fi", "1:2", State.CANNOT_TELL),
    ],
)
def test_pods_that_wait_for_one_that_never_trains_never_start(script: str, nodes: str, state: State) -> None:
    item = copy.deepcopy(beds.JOB)
    item["metadata"]["name"] = "a"
    item["spec"] |= {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}
    item["spec"]["template"]["spec"]["subdomain"] = "a"
    container = item["spec"]["template"]["spec"]["containers"][0]
    start = f"torchrun --nnodes={nodes} --rdzv-backend=c10d --rdzv-endpoint=a-0.a:29400 a.py"
    container["command"] = ["bash", "-c", f"{script}\nexec {start}"]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"clusterIP": "None"}}
    found = kinds.find(Manifests("a", [item, service])).workloads[0]
    verdict = wiring.analyse(found).verdict
    assert verdict.state is state, verdict
    assert ("it never starts: 2 nodes must join, and 1 pod can" in verdict.summary) is (state is State.FAIL)


@pytest.mark.parametrize("others", ["sleep", "none"])
def test_a_program_beside_pods_that_hold_gpus_and_wait_is_unknown(others: str) -> None:
    def replicated(name: str, command: list[str], count: int) -> dict[str, Any]:
        container = {"name": "main", "image": "a", "command": command, "resources": {"limits": {"nvidia.com/gpu": 8}}}
        template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
        return {"name": name, "template": {"spec": {"parallelism": count, "completions": count, "template": template}}}

    jobs = [replicated("leader", ["python", "train.py"], 1)]
    jobs += [replicated("worker", ["sleep", "infinity"], 3)] if others == "sleep" else []
    item = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "a"}}
    job = kinds.of({**item, "spec": {"replicatedJobs": jobs}})
    assert job is not None
    verdict = wiring.unseen(job)
    assert verdict is not None
    assert verdict.state is (State.CANNOT_TELL if others == "sleep" else State.PASS)
    assert ("worker: 3 pods" in str(verdict.evidence)) is (others == "sleep")


def test_indices_that_start_when_others_have_ended_do_not_train_with_them() -> None:
    item = copy.deepcopy(beds.JOB)
    item["spec"] |= {"parallelism": 2, "completions": 3, "completionMode": "Indexed"}
    container = item["spec"]["template"]["spec"]["containers"][0]
    container["command"] = ["torchrun", "--nnodes=2", "--node-rank=$(JOB_COMPLETION_INDEX)", "a.py"]
    job = kinds.of(item)
    assert job is not None
    found = wiring.analyse(job).verdict
    assert (found.state, "start when pods have ended" in found.summary) == (State.FAIL, True)


def test_a_program_that_takes_its_rendezvous_by_options_is_unknown(make_job: Job) -> None:
    words = ["python", "train.py", "--dist-url", "tcp://mnist-worker-0:23456"]
    found = analysed(make_job(command=words, elastic=False))
    assert found.verdict.state is State.CANNOT_TELL
    assert "--dist-url" in found.verdict.summary
