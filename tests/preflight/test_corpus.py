"""The rule for each fault finds it in a bad manifest, and no other rule does. Good manifests pass."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.preflight.headers import header
from tests.workload.beds import bed
from tools.core.errors import UserError
from tools.core.nested import mappings
from tools.core.rules import PRACTICE, TRAINS
from tools.core.verdict import State
from tools.kube.manifests import Manifests, parse, read, written
from tools.preflight.evaluate import Evaluation, evaluate
from tools.preflight.rule import rule as rules

CORPUS = Path(__file__).parent / "corpus"
KINDS = ("bad", "warn", "unclear", "good")
BAD, WARN, UNCLEAR, GOOD = (sorted((CORPUS / kind).glob("*.yaml")) for kind in KINDS)
# Most of the manifests have no policy, and do not keep pods with EFA in one zone. Both are warnings.
USUAL = {"network-policy", "efa-one-zone"}
ZONE, TOPOLOGY = "topology.kubernetes.io/zone", "kueue.x-k8s.io/podset-required-topology"
QUEUED = {"kueue.x-k8s.io/queue-name": "team"}
LETTERS = "qWmZ7rTnKpLx3VbHsJdGfYc9UaEoIq5RtYuBn2Xk93nd"
# Values that a typo or a template engine leaves in the place of another value.
RUBBISH: list[Any] = [
    *(None, "", "text", 0, -1, 1.5, True),
    *([], [None], ["a"], [{}], {}, {"name": 1}, {"a": {"b": []}}),
]


def failures(checked: Evaluation) -> list[tuple[str, str]]:
    return [(one.details["rule"], one.summary) for one in checked.of(State.FAIL)]


def reported(checked: Evaluation) -> set[str]:
    """Return the rules with a FAIL or a WARN, without the usual warnings."""
    failed, warned = ({one.details["rule"] for one in checked.of(state)} for state in (State.FAIL, State.WARN))
    return failed | (warned - USUAL)


@pytest.mark.parametrize("path", [*BAD, *WARN], ids=lambda path: path.stem)
def test_only_the_rules_of_a_fault_report_it(path: Path) -> None:
    _, rule, also = header(path)
    checked = evaluate(read(path, path.name))
    assert reported(checked) <= {rule} | also, failures(checked)
    assert bool(failures(checked)) is (path in BAD)
    assert (checked.answer(TRAINS) is State.FAIL) is (path in BAD)
    practice = [one for one in checked.verdicts if one.details["question"] == PRACTICE.value]
    assert {one.state for one in practice} <= {State.PASS, State.WARN}
    assert {one.details["question"] for one in checked.of(State.WARN)} <= {PRACTICE.value}
    state = State.FAIL if path in BAD else State.WARN
    found = [one for one in checked.of(state) if one.details["rule"] == rule]
    assert found
    assert all(verdict.evidence and verdict.details["object"] for verdict in found)
    assert any(one.remedy for one in found) or rule == "wiring"


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_manifest_passes(path: Path) -> None:
    checked = evaluate(read(path))
    assert failures(checked) == []
    assert reported(checked) == set()
    assert checked.of(State.PASS)


@pytest.mark.parametrize("path", UNCLEAR, ids=lambda path: path.stem)
def test_missing_information_is_reported_as_unknown(path: Path) -> None:
    checked = evaluate(read(path))
    assert checked.state is State.CANNOT_TELL, failures(checked)
    assert {one.details["rule"] for one in checked.of(State.CANNOT_TELL)} == {header(path)[1]}
    assert checked.state.exit_code == 3


def test_efa_in_one_zone_is_seen_in_every_form() -> None:
    """Without a form the verdict is a warning."""
    bad = ("another job", "keys alone", "topology.kubernetes.io/region", "")
    layer = "topology.k8s.aws/network-node-layer-1"
    for form in ("affinity", "layer", "match keys", "selector", "zone id", "topology.kubernetes.io/zone", layer, *bad):
        manifests = read(CORPUS / "good" / "p5-efa.yaml")
        template = manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
        affinity = template["spec"]["affinity"]
        (term,) = affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        if form == "match keys":
            template["metadata"] = {"labels": {"app": "x"}}
            term |= {
                "labelSelector": {"matchLabels": {"app": "x"}},
                "matchLabelKeys": ["training.kubeflow.org/job-name"],
            }
        elif form == "keys alone":
            term |= {"labelSelector": None, "matchLabelKeys": ["training.kubeflow.org/job-name"]}
        elif form == "layer":
            term["topologyKey"] = layer
        elif form == "another job":
            term["labelSelector"] = {"matchLabels": {"training.kubeflow.org/job-name": "other"}}
        elif form != "affinity":
            del affinity["podAffinity"]
        if form == "selector":
            template["spec"]["nodeSelector"] = {"topology.kubernetes.io/zone": "us-west-2a"}
        if form == "zone id":
            template["spec"]["nodeSelector"] = {"topology.k8s.aws/zone-id": "usw2-az1"}
        if "/" in form:
            template["metadata"] = {"annotations": {TOPOLOGY: form}}
            manifests.job()["metadata"]["labels"] = QUEUED
        (found,) = [one for one in evaluate(manifests).verdicts if one.details["rule"] == "efa-one-zone"]
        assert (found.state is State.PASS) is (form not in bad), form


OWN = {"matchLabels": {"training.kubeflow.org/job-name": "qwen-g5"}}
ROLE = {"matchLabels": {"training.kubeflow.org/replica-type": "worker"}}
SPREAD = {"topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": OWN}


@pytest.mark.parametrize(
    ("spec", "notes", "labels", "master", "state"),
    [
        ({"podAffinity": {"topologyKey": ZONE, "labelSelector": ROLE}}, {}, {}, False, "PASS"),
        ({"podAffinity": {"topologyKey": ZONE, "labelSelector": OWN, "namespaces": ["x"]}}, {}, {}, False, "WARN"),
        ({"podAntiAffinity": {"topologyKey": "topology.k8s.aws/zone-id", "labelSelector": OWN}}, {}, {}, False, "FAIL"),
        ({"topologySpreadConstraints": [{**SPREAD, "maxSkew": 3}]}, {}, {}, False, "FAIL"),
        ({"topologySpreadConstraints": [{**SPREAD, "maxSkew": 4}]}, {}, {}, False, "WARN"),
        ({"topologySpreadConstraints": [SPREAD], "nodeSelector": {ZONE: "a"}}, {}, {}, False, "PASS"),
        ({"zones": ["a"]}, {}, {}, False, "PASS"),
        ({"zones": ["a", None]}, {}, {}, False, "WARN"),  # the second term allows any zone
        ({}, {TOPOLOGY: ZONE}, QUEUED, False, "PASS"),
        ({}, {TOPOLOGY: ZONE}, {}, False, "WARN"),  # Kueue does not place a job without a queue
        ({}, {TOPOLOGY: ZONE}, QUEUED, True, "WARN"),  # the Master by itself
        ({}, {TOPOLOGY: ZONE, "kueue.x-k8s.io/podset-group-name": "all"}, QUEUED, True, "PASS"),
    ],
)
def test_what_keeps_pods_with_efa_in_one_zone(
    spec: Any, notes: dict[str, str], labels: dict[str, str], master: bool, state: str
) -> None:
    manifests = read(CORPUS / "warn" / "efa-in-any-zone.yaml")
    job, replicas = manifests.job(), manifests.job()["spec"]["pytorchReplicaSpecs"]
    own = replicas["Worker"]["template"]["spec"]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = own["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
    zones = spec.get("zones") or []
    if zones:
        (term,) = terms
        terms[:] = [copy.deepcopy(term) for _ in zones]
        for one, zone in zip(terms, zones, strict=True):
            one["matchExpressions"] += [{"key": ZONE, "operator": "In", "values": [zone]}] if zone else []
    own["affinity"] |= {key: {required: [value]} for key, value in spec.items() if key.startswith("pod")}
    own |= {key: value for key, value in spec.items() if not key.startswith("pod") and key != "zones"}
    replicas["Worker"]["template"]["metadata"] = {"annotations": notes}
    job["metadata"] |= {"name": "qwen-g5", "labels": labels}
    if master:
        replicas["Master"] = {**copy.deepcopy(replicas["Worker"]), "replicas": 1}
        del job["spec"]["elasticPolicy"]
    (found,) = [one for one in evaluate(manifests).verdicts if one.details["rule"] == "efa-one-zone"]
    assert found.state.value == state
    assert ("needs a queue" in str(found.remedy)) is (bool(notes) and state == "WARN")


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        ("PyTorchJob", "training.kubeflow.org/job-name"), ("Volcano", "volcano.sh/job-name"), ("Job", "job-name"),
        ("JobSet", "jobset.sigs.k8s.io/jobset-name"), ("TrainJob", "jobset.sigs.k8s.io/jobset-name"),
        ("HyperPodPyTorchJob", "HPJob"),
    ],
)  # fmt: skip
def test_one_zone_is_seen_by_the_label_of_each_kind(kind: str, label: str) -> None:
    objects, efa = bed(kind), {"vpc.amazonaws.com/efa": "1"}
    term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {label: objects[0]["metadata"]["name"]}}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for _, pod in [one for item in objects for one in mappings(item) if "containers" in one[1]]:
        pod["affinity"] = affinity
        pod["containers"][0]["resources"] = {"limits": efa, "requests": efa}
    verdicts = evaluate(Manifests("job.yaml", objects)).verdicts
    assert [one.state for one in verdicts if one.details["rule"] == "efa-one-zone"] == [State.PASS]


@pytest.mark.parametrize(
    ("command", "place", "remedy"),
    [
        (["torchrun", "-m", "train"], "PyTorchJob/mnist-cpu: spec.nprocPerNode: 4", 'nprocPerNode: "2"'),
        (["torchrun", "--nproc_per_node=4", "a.py"], ".command: --nproc-per-node=4", "--nproc-per-node=2"),
        (
            [
                *("accelerate", "launch", "--num_machines=2", "--num_processes=8", "--machine_rank=0"),
                *("--main_process_ip=mnist-cpu-worker-0", "--multi_gpu", "a.py"),
            ],
            ".command: --num_processes=8",
            "--num_processes=4",
        ),
    ],
)
def test_what_decides_the_number_of_processes_is_named(command: list[str], place: str, remedy: str) -> None:
    manifests = read(CORPUS / "good" / "worker-only-c10d.yaml")
    spec = manifests.job()["spec"]
    spec["nprocPerNode"] = "4"
    container = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container |= {"command": command, "args": [], "resources": {"limits": {"nvidia.com/gpu": 2}}}
    (found,) = [one for one in evaluate(manifests).of(State.FAIL) if one.details["rule"] == "processes"]
    assert found.evidence[0].endswith(place)
    assert found.remedy == remedy


def test_the_corpus_has_a_bad_manifest_for_each_rule() -> None:
    headers = [header(path) for path in [*BAD, *WARN]]
    assert {rule for _, rule, _ in [*headers, *map(header, UNCLEAR)]} == set(rules.all)
    assert all(also <= set(rules.all) for _, _, also in headers)
    assert len({fault for fault, _, _ in headers}) == len(headers) >= 100
    assert {rule for path in BAD if rules.all[rule := header(path)[1]].question is PRACTICE} == set()
    assert len(BAD) >= 60
    assert len(GOOD) >= 30


@pytest.mark.parametrize(
    ("kind", "token"),
    [
        ("a GitLab token", "glpat" + "-" + LETTERS[:20]),
        ("a Slack token", "xoxb" + "-123456789012-" + LETTERS[:24]),
        ("an NVIDIA key", "nvapi" + "-" + LETTERS),
        ("a GitHub token", "ghr" + "_" + LETTERS[:36]),
    ],
)
@pytest.mark.parametrize("form", ["{}", "exec train --key={}", "https://host/?key={}&x=1"])
def test_a_token_of_any_kind_fails_and_is_not_printed(kind: str, token: str, form: str) -> None:
    manifests = read(CORPUS / "good" / "worker-only-c10d.yaml")
    worker = manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    worker["containers"][0]["env"] = [{"name": "SETTING", "value": form.format(token)}]
    checked = evaluate(manifests)
    assert failures(checked) == [("secret-literal", f"{kind} in plain text")]
    assert token not in str(checked.verdicts)


def test_a_value_of_a_wrong_type_hides_no_other_fault() -> None:
    manifests = read(CORPUS / "good" / "worker-only-c10d.yaml")
    worker = manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    worker["nodeSelector"] = {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    container = worker["containers"][0]
    container |= {
        "command": ["torchrun", "--standalone", "a.py"],
        "env": [{"name": "SEED", "value": 1}],
        "resources": {"limits": {"nvidia.com/gpu": 16}},
    }
    checked = evaluate(manifests)
    assert [rule for rule, _ in failures(checked)] == ["types", "wiring", "devices-fit"]
    assert checked.unjudged == {}
    container["env"] = [{"name": "SEED", "value": [1]}]  # has no form that is right
    assert [rule for rule, _ in failures(evaluate(manifests))] == ["types", "wiring", "devices-fit"]
    del container["name"]
    named = ["types", "types", "admission", "wiring", "devices-fit"]
    assert [rule for rule, _ in failures(evaluate(manifests))] == named
    container |= {"name": "pytorch", "env": [], "command": "torchrun a.py"}
    checked = evaluate(manifests)
    assert [rule for rule, _ in failures(checked)] == ["types", "devices-fit"]


def test_a_template_text_in_place_of_a_number_is_not_a_wrong_type() -> None:
    manifests = read(CORPUS / "good" / "worker-only-c10d.yaml")
    manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = "$NODES"
    assert failures(evaluate(manifests)) == [("template-left", "$NODES is not filled in")]


KEYS = {"name": "keys", "secret": {"secretName": "keys"}}
MOUNT = {"name": "keys", "mountPath": "/keys"}


@pytest.mark.parametrize(
    ("value", "failed"),
    [
        ("//79/A==", []),  # a key in a form of bytes
        ("c2VjcmV0\nc2VjcmV0\n", []),
        ("REPLACE_ME", [("types", "data.key is not base64: the API server refuses it")]),
        (777, [("types", "data.key must be a string in quotes")]),
    ],
)
def test_a_secret_may_hold_bytes(value: Any, failed: list[tuple[str, str]]) -> None:
    manifests = read(CORPUS / "good" / "worker-only-c10d.yaml")
    worker = manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    worker["volumes"] = [*worker.get("volumes", []), KEYS]
    worker["containers"][0]["volumeMounts"] = [*worker["containers"][0].get("volumeMounts", []), MOUNT]
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": {"key": value}}
    checked = evaluate(Manifests("x", [*manifests.objects, secret]))
    assert failures(checked) == failed
    assert bool(checked.of(State.CANNOT_TELL)) is bool(failed)
    assert isinstance(value, int) or value not in str(checked.verdicts)


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"hostNetwork": True}, True),
        ({"dnsPolicy": "Default"}, True),
        ({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}, False),
        ({"hostNetwork": True, "dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.96.0.10"]}}, False),
        ({"hostNetwork": True, "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["mnist-cpu-worker-0"]}]}, False),
    ],
)
def test_pods_look_each_other_up_in_the_dns_of_the_cluster(changes: dict[str, Any], failed: bool) -> None:
    manifests = read(CORPUS / "good" / "worker-only-c10d.yaml")
    manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"] |= changes
    said = "it hangs: the pods ask the DNS of their node, which does not know mnist-cpu-worker-0"
    assert failures(evaluate(manifests)) == ([("wiring", said)] if failed else [])


@pytest.mark.parametrize(
    ("word", "mode", "failed"),
    [
        ("--shard=$(JOB_COMPLETION_INDEX)", "Indexed", False),
        ("--shard=$(JOB_COMPLETION_INDEX)", "NonIndexed", True),
        ("--api=$(KUBERNETES_SERVICE_HOST):$(DATA_SERVICE_PORT_HTTP)", "NonIndexed", False),
    ],
)
def test_a_command_may_use_what_the_controller_and_the_kubelet_set(word: str, mode: str, failed: bool) -> None:
    """In a Job that prepares data and starts no launcher."""
    (job, _) = bed("Job")
    job["spec"] |= {"completionMode": mode}
    job["spec"]["template"]["spec"]["containers"][0] |= {"command": ["aws", "s3", "cp", word], "args": []}
    assert ("env-reference" in dict(failures(evaluate(Manifests("x", [job]))))) is failed


SCRIPTED = ["bash", "-c", "export GLOO_SOCKET_IFNAME=lo OUT=/scratch/a\nexec torchrun /a.py \\\n --output_dir $OUT"]
SCRATCH = {"name": "TMPDIR", "value": "/fsx"}
READ_ONLY = {"securityContext": {"readOnlyRootFilesystem": True}}


@pytest.mark.parametrize(
    ("changes", "rules_"),
    [
        ({"command": ["torchrun", "/a.py", "trainer.default_local_dir=/scratch/a"]}, ["checkpoint-shared"]),
        ({"command": ["torchrun", "/a.py", "--job.dump_folder", "/out"]}, ["checkpoint-shared"]),
        ({"command": SCRIPTED}, ["checkpoint-shared", "loopback"]),
        ({"command": ["torchrun", "/a.py", "--data=<BUCKET_NAME>/a"]}, ["template-left"]),
        ({"image": "registry.example.com/t:{TAG}"}, ["template-left"]),
        ({"image": "__REGISTRY__/t:1"}, ["template-left"]),
        ({"command": ["torchrun", "--nproc-per-node=__GPUS__", "/a.py"]}, ["template-left", "wiring"]),
        ({"env": [{"name": "A", "value": "s3://__BUCKET__/a"}]}, ["template-left"]),
        ({"env": [{"name": "A", "value": "__main__"}, {"name": "B", "value": "-D__CUDA_ARCH__"}]}, []),
        ({"image": "YOUR_ACCOUNT/t:1"}, ["template-left"]),
        ({"command": ["torchrun", "/a.py", "--coordinator", "WILL_BE_REPLACED"]}, ["template-left"]),
        ({"workingDir": "<directory to be replaced, shared by all>"}, ["template-left"]),
        ({**READ_ONLY, "env": [SCRATCH, {"name": "TORCH_EXTENSIONS_DIR", "value": "/c"}]}, ["read-only-root"]),
        ({**READ_ONLY, "env": [SCRATCH, {"name": "A_CACHE", "value": "/c"}]}, ["read-only-root"]),
    ],
)
def test_a_fault_in_the_trainers_container_is_named(changes: dict[str, Any], rules_: list[str]) -> None:
    manifests = read(CORPUS / "good" / "worker-only-c10d.yaml")
    worker = manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    worker["containers"][0].update({**changes, **({"args": []} if "command" in changes else {})})
    assert reported(evaluate(manifests)) == set(rules_)


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("hydra.run.dir=out/${now:%Y-%m-%d}", State.WARN),
        ("model.hidden=${model.dim}", State.WARN),
        ("+run_name=${model}", State.WARN),
        ("--chat-template={% for m in messages %}{{ m.content }}{% endfor %}", State.WARN),
        ("run_name=${MODEL}", State.FAIL),
        ("--name=${model}", State.FAIL),
        ("--steps=${STEPS:-10}", State.FAIL),
        ("--image={{ .Values.image }}", State.FAIL),
    ],
)
def test_a_mark_that_a_program_may_fill_in_is_a_warning(word: str, state: State) -> None:
    manifests = read(CORPUS / "good" / "worker-only-c10d.yaml")
    worker = manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    worker["containers"][0].update(command=["torchrun", "/a.py", word], args=[])
    states = {one.state for one in evaluate(manifests).verdicts if one.details["rule"] == "template-left"}
    assert states - {State.PASS} == {state}


def test_one_fault_in_several_places_is_one_finding() -> None:
    manifests = read(CORPUS / "good" / "worker-only-c10d.yaml")
    worker = manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    worker["containers"][0]["resources"] = {kind: {"memory": "$MEMORY"} for kind in ("requests", "limits")}
    checked = evaluate(manifests)
    (one,) = checked.of(State.FAIL)
    assert one.summary == "$MEMORY is not filled in"
    assert [line.partition(".resources.")[2] for line in one.evidence] == [
        "requests.memory: $MEMORY",
        "limits.memory: $MEMORY",
    ]


def test_cells_are_clean(cells: list[Manifests]) -> None:
    assert len(cells) > 40
    for cell in cells:
        checked = evaluate(cell)
        assert failures(checked) == []
        assert checked.of(State.CANNOT_TELL) == []
        assert reported(checked) <= {"local-image"}, cell.source  # until `make push` pins the image
        applied = {one.details["rule"] for one in checked.verdicts}
        assert applied >= {
            "wiring",
            "config",
            "schema",
            "cpu-fits" if "/cpu/" not in cell.source else "types",
        }
        assert "PersistentVolumeClaim trainyard" in checked.needs


def test_a_broken_cell_is_not_clean(cells: list[Manifests]) -> None:
    """Control: each of these changes breaks any cell."""
    for cell in cells[::7]:
        renamed, apart, unused = (copy.deepcopy(cell) for _ in range(3))
        renamed.of_kind("ConfigMap")[0]["metadata"]["name"] = "other-7f9d66km9d"
        volumes = renamed.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["volumes"]
        volumes[0]["projected"]["sources"][0]["configMap"]["name"] = "other"
        apart.job()["spec"]["elasticPolicy"]["maxReplicas"] = 0
        unused.of_kind("ServiceAccount")[0]["metadata"]["name"] = "unused"
        broken = {"references": renamed, "elastic-bounds": apart, "service-account": unused}
        for rule, changed in broken.items():
            assert rule in reported(evaluate(changed)), cell.source


def _nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every value in an object as its container and its key."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(pairs):
        yield value, key
        yield from _nodes(inner)


@pytest.mark.parametrize("seed", range(4))
def test_no_manifest_crashes_a_rule(seed: int) -> None:
    """400 manifests with one wrong value each: the result is verdicts or one error."""
    dice = random.Random(seed)
    paths = [*BAD, *GOOD]
    checked = 0
    for _ in range(100):
        manifests = read(dice.choice(paths))
        places = [
            (holder, key)
            for item in manifests.objects
            for holder, key in _nodes(item)
            if key not in ("kind", "metadata") and not (key == "name" and holder is item.get("metadata"))
        ]
        holder, key = dice.choice(places)
        holder[key] = copy.deepcopy(dice.choice(RUBBISH))
        with contextlib.suppress(UserError):
            evaluate(manifests)
            checked += 1
    assert checked > 90


@pytest.mark.parametrize(
    ("name", "state"),
    [
        *(("a2-ultragpu-8g", "WARN"), ("Standard_ND96asr_v4", "WARN"), ("BM.GPU.H100.8", "WARN"), ("k3s", "WARN")),
        *(("p5", "FAIL"), ("P5.48xlarge", "FAIL"), ("p5-48xlarge", "FAIL"), ("ml.g5.12xl", "FAIL")),
    ],
)
def test_a_type_of_another_cloud_is_not_a_misspelt_one(name: str, state: str) -> None:
    manifests = read(CORPUS / "warn" / "instance-of-another-cloud.yaml")
    spec = manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    del spec["affinity"]
    spec["nodeSelector"] = {"node.kubernetes.io/instance-type": name}
    (found,) = [one for one in evaluate(manifests).verdicts if one.details["rule"] == "instance-types"]
    assert found.state.value == state, found


@pytest.mark.parametrize(("memory", "remedy"), [(32, "32Gi?"), ("512m", "512Mi?")])
def test_an_amount_without_its_unit_gets_the_one_that_is_meant(memory: int | str, remedy: str) -> None:
    manifests = read(CORPUS / "bad" / "memory-without-unit.yaml")
    (container,) = manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {"memory": memory}}
    (found,) = [one for one in evaluate(manifests).of(State.FAIL) if one.details["rule"] == "quantities"]
    assert str(found.remedy).endswith(f": {remedy}")


QUOTA: dict[str, Any] = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "team"}}
RANGE: dict[str, Any] = {**QUOTA, "kind": "LimitRange", "metadata": {"name": "r", "namespace": "team"}}
SMALL = {"type": "Container", "default": {"memory": "512Mi"}}
POD = {"type": "Pod", "max": {"memory": "2Gi"}}


@pytest.mark.parametrize(
    ("hard", "limits", "resources", "said"),
    [
        ({"limits.memory": "90Gi"}, [], {"requests": {"memory": "4Gi"}}, ["counts limits.memory, and container pytor"]),
        ({"requests.cpu": 90}, [], {"limits": {"memory": "4Gi"}}, ["counts requests.cpu"]),
        ({"cpu": 90, "memory": "90Gi"}, [], {"limits": {"memory": "4Gi"}}, ["counts cpu"]),
        ({"limits.memory": "90Gi"}, [], {"limits": {"memory": "4Gi"}}, []),
        ({"requests.nvidia.com/gpu": 9}, [], {}, []),
        ({"limits.cpu": 90}, [{"type": "Container", "default": {"cpu": 4}}], {}, []),
        ({}, [SMALL], {"requests": {"memory": "4Gi"}}, ["allows memory 512Mi"]),
        ({}, [SMALL], {"limits": {"memory": "4Gi"}}, []),
        ({}, [{"type": "Container", "min": {"cpu": 2}}], {"requests": {"cpu": 1}}, ["wants cpu 2 or more"]),
        ({}, [{"type": "Container", "min": {"cpu": 2}}], {}, []),
        ({}, [POD], {"limits": {"memory": "4Gi"}}, ["2048Mi in a pod, not 4096Mi"]),
        ({}, [POD], {"requests": {"memory": "1Gi"}}, ["not a container without a limit"]),
        ({}, [POD, SMALL], {}, []),
        ({"requests.memory": "900Mi"}, [SMALL], {}, ["all pods take requests.memory 1024Mi"]),
        ({"limits.ephemeral-storage": "1Gi"}, [], {"limits": {"ephemeral-storage": "1Gi"}}, ["ephemeral-storage 2"]),
        ({}, [{"type": "Container", "min": "2", "max": {"cpu": 4}}, None], {"requests": {"cpu": 1}}, []),
    ],
)  # fmt: skip
def test_what_the_namespace_refuses_is_seen(hard: Any, limits: list[Any], resources: Any, said: list[str]) -> None:
    manifests = read(CORPUS / "bad" / "limit-range.yaml")
    (container,) = manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["resources"] = resources
    objects = [manifests.job(), {**QUOTA, "spec": {"hard": hard}}, {**RANGE, "spec": {"limits": limits}}]
    found = [one.summary for one in evaluate(Manifests("x", objects)).of(State.FAIL) if one.details["rule"] == "quota"]
    assert len(found) == len(said)
    assert all(text in one for text, one in zip(said, found, strict=True)), found


def _server(kind: str, memory: str, **spec: Any) -> dict[str, Any]:
    pod = {"containers": [{"name": "a", "image": "a/b:1.0", "resources": {"limits": {"memory": memory, "cpu": 1}}}]}
    template = {"metadata": {"labels": {"app": "a"}}, "spec": pod}
    spec |= {"template": template, "selector": {"matchLabels": {"app": "a"}}} if kind != "CronJob" else {}
    if kind == "CronJob":
        spec |= {
            "schedule": "0 3 * * *",
            "jobTemplate": {"spec": {"template": {"spec": {**pod, "restartPolicy": "Never"}}}},
        }
    group = "batch/v1" if kind == "CronJob" else "apps/v1"
    return {"apiVersion": group, "kind": kind, "metadata": {"name": "a", "namespace": "team"}, "spec": spec}


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (_server("Deployment", "3Gi", replicas=5), ["all pods take limits.memory 15360Mi"]),
        (_server("Deployment", "3Gi"), ["it and PyTorchJob/mnist-cpu together take limits.memory 11264Mi"]),
        (_server("Deployment", "1Gi"), []),
        (_server("CronJob", "3Gi"), []),
        (_server("CronJob", "11Gi"), ["all pods take limits.memory 11264Mi"]),
    ],
)
def test_a_quota_counts_the_pods_of_every_object(item: dict[str, Any], said: list[str]) -> None:
    """Beside a training with two pods of 4 GiB, of which the quota allows ten."""
    job = read(CORPUS / "bad" / "limit-range.yaml").job()
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {"memory": "4Gi"}}
    objects = [item, job, {**QUOTA, "spec": {"hard": {"limits.memory": "10Gi"}}}]
    found = [one.summary for one in evaluate(Manifests("x", objects)).of(State.FAIL) if one.details["rule"] == "quota"]
    assert len(found) == len(said)
    assert all(one.startswith(text) for text, one in zip(said, found, strict=True)), found


ALLOWED = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.mark.parametrize(
    ("pod", "main", "refused"),
    [
        ({}, {}, {}),
        ({}, {"securityContext": {**ALLOWED, "runAsNonRoot": False}}, {"restricted": "without runAsNonRoot"}),
        ({}, {"securityContext": {**ALLOWED, "runAsUser": 0}}, {"restricted": "runs as user 0"}),
        (
            {},
            {"securityContext": {**ALLOWED, "capabilities": {"drop": ["ALL"], "add": ["KILL"]}}},
            {"restricted": "adds KILL"},
        ),
        ({"hostNetwork": True}, {}, dict.fromkeys(("baseline", "restricted"), "hostNetwork")),
        (
            {},
            {"securityContext": {**ALLOWED, "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}},
            dict.fromkeys(("baseline", "restricted"), "adds IPC_LOCK"),
        ),
        ({}, {"ports": [{"containerPort": 1, "hostPort": 1}]}, dict.fromkeys(("baseline", "restricted"), "a hostPort")),
        (
            {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]},
            {},
            dict.fromkeys(("baseline", "restricted"), "volume v"),
        ),
    ],
)
def test_what_each_pod_security_standard_refuses(pod: Any, main: Any, refused: dict[str, str]) -> None:
    for level in ("privileged", "baseline", "restricted"):
        manifests = read(CORPUS / "bad" / "limit-range.yaml")
        spec = manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        spec["containers"][0] |= {"securityContext": ALLOWED, **main}
        spec |= pod
        labels = {"pod-security.kubernetes.io/enforce": level}
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": labels}}
        checked = evaluate(Manifests("x", [space, manifests.job()]))
        found = [one for one in checked.verdicts if one.details["rule"] == "restricted"]
        assert len(found) == (level != "privileged")
        for one in found:
            assert one.state.value == ("FAIL" if level in refused else "PASS"), one
            assert refused.get(level, "standard is satisfied") in one.summary


@pytest.mark.parametrize("kind", ["JobSet", "TrainJob", "Job", "Volcano"])
def test_a_probe_withholds_no_name_that_is_published(kind: str) -> None:
    for published in (True, False, None):
        objects = bed(kind)
        for item in objects:
            for path, part in list(mappings(item)):
                if "containers" in part:
                    part["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": 29500}}
                if "replicatedJobs" in part and published is not None:
                    part["network"] = {"publishNotReadyAddresses": published}
                if path == "spec" and item["kind"] == "Service" and published is not None:
                    part["publishNotReadyAddresses"] = published
                if path == "spec" and kind == "Volcano" and "tasks" in part:
                    flag = f"--publish-not-ready-addresses={str(published).lower()}"
                    part["plugins"] = {**(part.get("plugins") or {}), "svc": [flag]}
        found = [one for one in evaluate(Manifests("x", objects)).verdicts if one.details["rule"] == "readiness"]
        has_names = kind in ("JobSet", "TrainJob") if published is None else published
        assert [one.state.value for one in found] == ["PASS" if has_names else "WARN"]


def test_keys_are_read_as_kubectl_sends_them() -> None:
    """YAML reads `on` and 1 as no texts; kubectl sends true and 1."""
    manifests = read(CORPUS / "good" / "worker-only-c10d.yaml")
    job = manifests.job()
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["nodeSelector"] = {True: "x", 3: "y"}
    job["metadata"]["annotations"] = {2: "a", False: "b"}
    assert failures(evaluate(manifests)) == []


def read_spec(text: str) -> Any:
    """Return the field `spec` of an object that is written in YAML."""
    return parse(f"kind: K\nmetadata: {{name: n}}\n{text}", "f").objects[0]["spec"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("012345678901", 12345678901.0), ("08", 8.0), ("1_000", 1000), ("2024_11_05", 20241105), ("0b11", 3)),
        *(("0o17", 15), ("0444", 292), ("1e3", 1000.0), ("1.5", 1.5), ("-7", -7), ("0", 0)),
        *(
            ("2024-11-05", "2024-11-05"),
            ("1:30", "1:30"),
            ("8m", "8m"),
            ("v1_2", "v1_2"),
            ("_1", "_1"),
            ("1.2.3", "1.2.3"),
        ),
    ],
)
def test_numbers_are_those_of_kubectl(text: str, value: Any) -> None:
    """An account's number without quotes is not text: the API server refuses it as a variable's value."""
    assert read_spec(f"spec: {{v: {text}}}") == {"v": value}
    assert yaml.safe_load(written([{"v": text}])) == {"v": text}


def test_a_merged_mapping_may_override_a_key() -> None:
    text = "x: &x {a: 1, b: 0}\nspec:\n  deep: &d\n    <<: *x\n    a: 2\nother:\n  <<: *d\n  y: 3\n"
    assert read_spec(text) == {"deep": {"a": 2, "b": 0}}
    with pytest.raises(UserError, match="duplicate key 'a'"):
        read_spec(text.replace("    a: 2\n", "    a: 2\n    a: 3\n"))


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("kind: PyTorchJob\nmetadata: {name: 17}\n", "must be a string in quotes, not 17", None),
        ("kind: Kustomization\nresources: []\n", "Kustomization has no metadata.name", "yard preflight DIRECTORY"),
    ],
)
def test_a_name_that_is_none_is_said(text: str, said: str, hint: str | None) -> None:
    with pytest.raises(UserError, match=said) as caught:
        parse(text, "f")
    assert (caught.value.hint or "").endswith(hint or "")
