"""What may run in a cluster, with which rights, who reaches whom, and what Flux applies as whom."""

from __future__ import annotations

import ipaddress
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.parts import upstream
from tests.parts.ports import free_port
from tools.cells import kustomize
from tools.cells.knobs import Knobs, applied
from tools.cells.kustomize import Renderer
from tools.cluster import cluster_env, isolation, platform, validate
from tools.core import repo
from tools.core.verdict import State
from tools.gitops import flux_objects
from tools.gitops.run_file import RUNNER, Image, Run, read
from tools.job.snapshot import kinds, live_job
from tools.kube import network_policy
from tools.kube.manifests import Manifests, Object, parse
from tools.kube.selectors import selects
from tools.preflight.evaluate import evaluate

ROOT = repo.root()
FACTS = cluster_env.read(ROOT / "clusters/example/cluster.env")
TEAM = FACTS["TEAM_NAMESPACE"].value
CLUSTERS = flux_objects.names(ROOT)
PLUGINS = (
    "efa",
    "external-secrets",
    "fsx-csi",
    "fsx-csi/flux",
    "kueue",
    "namespace",
    "neuron",
    "nvidia",
    "s3-csi",
    "training-operator",
    "training-operator/flux",
    "volcano",
)
FLUX = ("Kustomization", "HelmRelease")
CELL = "overlays/cpu/llama-tiny"
JOB = {"training.kubeflow.org/job-name": "cpu-llama-tiny-train"}
# What `yard job` asks the API server for, by the verbs of RBAC: apply is get, create and patch.
APPLY = ("get", "create", "patch")
USED = {
    **dict.fromkeys(live_job.READ.values(), (*APPLY, "list", "delete")),
    "appwrappers.workload.codeflare.dev": ("get", "list", "patch", "delete"),
    "commands.bus.volcano.sh": ("create",),
    "trainingruntimes.trainer.kubeflow.org": (*APPLY, "list", "delete"),
    **{one: ("list",) for one in kinds.NOT_READ.values() if one.endswith(".kubeflow.org")},
    **dict.fromkeys(("configmaps", "serviceaccounts", "networkpolicies.networking.k8s.io"), (*APPLY, "delete")),
    **dict.fromkeys(("deployments.apps", "services"), (*APPLY, "delete")),
    "pods": (*APPLY, "list", "watch", "delete"),
    "pods/log": ("get",),
    **dict.fromkeys(("pods/exec", "pods/attach", "pods/portforward"), ("get", "create")),
    "pods/ephemeralcontainers": ("patch",),
    **dict.fromkeys({"events", *kinds.NAMESPACED.values()} - {"networkpolicies", "services"}, ("list",)),
    "endpointslices.discovery.k8s.io": ("list",),
    **dict.fromkeys(("workloads.kueue.x-k8s.io", "localqueues.kueue.x-k8s.io"), ("list",)),
    "podgroups.scheduling.volcano.sh": ("list",),
    "kustomizations.kustomize.toolkit.fluxcd.io": ("list",),
}


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return kustomize.ensure(ROOT, print)


@pytest.fixture(scope="module")
def platform_objects(renderer: Renderer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Object]]:
    """The objects of the folders of base/plugins, and of base/storage/local-nvme."""
    folders = [*(f"base/plugins/{name}" for name in PLUGINS), "base/storage/local-nvme"]
    fetcher = upstream.fetcher(renderer, tmp_path_factory.mktemp("upstream"))
    return {name: built(fetcher, name) for name in folders}


def built(renderer: Renderer, name: str) -> list[Object]:
    text = platform.substitute(renderer.build(ROOT / name), FACTS)
    return [one for one in YAML(typ="safe").load_all(text) if one]  # the C loader: a CRD has 9,000 lines


@pytest.fixture(scope="module")
def policies(platform_objects: dict[str, list[Object]], renderer: Renderer) -> list[Object]:
    """The NetworkPolicies of a team's namespace with one job."""
    objects = [*platform_objects["base/plugins/namespace"], *parse(renderer.build(ROOT / CELL), CELL).objects]
    return [one for one in objects if one["kind"] == "NetworkPolicy"]


def reaches(policy: Object, address: str, port: int, protocol: str) -> bool:
    """Return whether an egress rule of a policy admits an address outside of the cluster's pods."""
    target = ipaddress.ip_address(address)

    def holds(peer: Object) -> bool:
        block = peer.get("ipBlock") or {"cidr": "255.255.255.255/32"}
        out = [ipaddress.ip_network(one) for one in block.get("except", [])]
        return target in ipaddress.ip_network(block["cidr"]) and not any(target in one for one in out)

    return any(
        (not rule.get("to") or any(map(holds, rule["to"])))
        and (not rule.get("ports") or {"protocol": protocol, "port": port} in rule["ports"])
        for rule in policy["spec"].get("egress") or []
    )


@pytest.mark.parametrize("labels", [{}, JOB], ids=["any pod", "a job's pod"])
@pytest.mark.parametrize(
    ("address", "port", "protocol", "allowed"),
    [
        ("1.1.1.1", 443, "TCP", True),
        ("2606:4700::1111", 443, "TCP", True),
        ("10.0.0.1", 443, "TCP", True),
        ("169.254.170.23", 80, "TCP", True),
        ("fd00:ec2::23", 80, "TCP", True),
        ("169.254.20.10", 53, "UDP", True),
        *(("169.254.169.254", port, "TCP", False) for port in (53, 80, 443, 8080)),
        *(("fd00:ec2::254", port, "TCP", False) for port in (80, 443)),
        *(("169.254.170.2", port, "TCP", False) for port in (80, 443)),
        ("169.254.169.253", 53, "UDP", False),
        ("1.1.1.1", 80, "TCP", False),
        ("1.1.1.1", 53, "UDP", False),
        ("1.1.1.1", 443, "UDP", False),
        ("10.0.0.1", 22, "TCP", False),
        ("10.0.0.1", 10250, "TCP", False),
    ],
)
def test_egress_is_what_training_needs(
    policies: list[Object], labels: Object, address: str, port: int, protocol: str, allowed: bool
) -> None:
    mine = [one for one in policies if network_policy.applies(one, "Egress", labels)]
    assert mine, "a pod that no policy selects is open"
    assert any(reaches(one, address, port, protocol) for one in mine) is allowed


def test_nobody_reaches_a_pod_but_the_pods_of_its_job(policies: list[Object]) -> None:
    assert any(network_policy.applies(one, "Ingress", {}) for one in policies)
    for labels, peer, allowed in ((JOB, JOB, True), (JOB, {}, False), ({}, JOB, False), ({}, {}, False)):
        for direction in network_policy.PEERS:
            mine = [one for one in policies if network_policy.applies(one, direction, labels)]
            assert any(network_policy.admits(one, direction, peer) for one in mine) is allowed
    assert not any(network_policy.is_open(one, 23456, {}) for one in policies)


def services(renderer: Renderer) -> Iterator[tuple[str, list[Object]]]:
    for name in ("debug", "tensorboard", "tensorboard-exposed"):
        yield name, parse(renderer.build(ROOT / "base/services" / name), name).objects


def test_each_service_has_its_own_policy(renderer: Renderer) -> None:
    for name, objects in services(renderer):
        pods = [one.get("spec", {}).get("template", one) for one in objects if one["kind"] in ("Pod", "Deployment")]
        own = [one for one in objects if one["kind"] == "NetworkPolicy"]
        for pod in pods:
            labels = pod["metadata"]["labels"]
            assert any(selects(one["spec"]["podSelector"], labels) for one in own), name
        assert not any(reaches(one, "169.254.169.254", 80, "TCP") for one in own)


def test_a_job_without_a_fence_is_a_finding(renderer: Renderer) -> None:
    """No policy, one that selects nothing, and one that admits everybody: the job trains, with a warning."""
    whole = parse(renderer.build(ROOT / CELL), CELL)

    def found(policy: Object | None) -> tuple[State, str]:
        others = [one for one in whole.objects if one["kind"] != "NetworkPolicy"]
        made = evaluate(Manifests(CELL, [*others, *([policy] if policy else [])]))
        mine = [one for one in made.verdicts if one.details["rule"] == "network-policy"]
        worst = next((one for one in mine if one.state is not State.PASS), mine[0])
        return worst.state, worst.summary

    (good,) = whole.of_kind("NetworkPolicy")
    spec = good["spec"]
    assert found(good)[0] is State.PASS
    assert found(None)[0] is State.WARN
    other = {**good, "spec": {**spec, "podSelector": {"matchLabels": {"app": "other"}}}}
    assert found(other) == (
        State.WARN,
        "no NetworkPolicy of this manifest selects the pods: every pod reaches them",
    )
    everybody: tuple[Any, ...] = (
        {},
        {"from": []},
        {"from": [{"namespaceSelector": {}}]},
        {"from": [{"namespaceSelector": {}, "podSelector": {}}]},
        {"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]},
        {"ports": [{"port": 1, "endPort": 65535}]},
        {"ports": [{"port": "pytorchjob-port"}]},
    )
    for rule in everybody:
        state, summary = found({**good, "spec": {**spec, "ingress": [*spec["ingress"], rule]}})
        assert (state, "every pod of the cluster" in summary) == (State.WARN, True), rule
    fenced: Object = {"from": [{"podSelector": {}}]}
    assert found({**good, "spec": {**spec, "ingress": [*spec["ingress"], fenced]}})[0] is State.PASS


def roles(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    for one in objects:
        if one["kind"] in ("Role", "ClusterRole"):
            yield from ((f"{one['kind']} {one['metadata']['name']}", rule) for rule in one["rules"])


def test_no_role_has_wildcards_or_rights_to_become_more(platform_objects: dict[str, list[Object]]) -> None:
    for objects in platform_objects.values():
        for name, rule in roles(objects):
            words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not words & {"*", "escalate", "bind", "impersonate", "roles", "rolebindings"}, name
            assert not words & {
                "clusterroles",
                "clusterrolebindings",
                "nodes/proxy",
                "serviceaccounts/token",
            }, name
            if "secrets" in rule["resources"]:
                assert name == "Role training-operator"
            if "ClusterRole" in name:
                assert not words & {"pods/exec", "pods/attach"}, name


def test_the_operator_s_role_is_small(platform_objects: dict[str, list[Object]]) -> None:
    objects = platform_objects["base/plugins/training-operator"]
    (deployment,) = (one for one in objects if one["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    (namespace,) = (one for one in objects if one["kind"] == "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for name, rule in roles(objects):
        if "validatingwebhookconfigurations" in rule["resources"] and "update" in rule["verbs"]:
            assert rule["resourceNames"] == ["validator.training-operator.kubeflow.org"], name


def test_daemonsets_have_seccomp_and_a_read_only_root(platform_objects: dict[str, list[Object]]) -> None:
    """A privileged plugin is named here. Those with a token that changes objects have an admission policy."""
    privileged = set()
    for objects in platform_objects.values():
        for one in objects:
            if one["kind"] not in ("DaemonSet", "Deployment"):
                continue
            name, pod = one["metadata"]["name"], one["spec"]["template"]["spec"]
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
            for container in pod["containers"]:
                context = container["securityContext"]
                assert container["resources"]["requests"], name
                if context.get("privileged"):
                    privileged.add(name)
                else:
                    assert context["allowPrivilegeEscalation"] is False, name
                    assert context["readOnlyRootFilesystem"] is True, name
                    assert context["capabilities"]["drop"] == ["ALL"], name
    assert privileged == {"aws-efa-k8s-device-plugin", "neuron-device-plugin", "fsx-csi-node"}
    for folder in ("base/plugins/neuron", "base/storage/local-nvme"):
        found = {one["kind"] for one in platform_objects[folder]}
        assert {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} <= found


def test_the_team_may_do_what_yard_does_and_no_more(platform_objects: dict[str, list[Object]]) -> None:
    objects = platform_objects["base/plugins/namespace"]
    (role,) = (one for one in objects if (one["kind"], one["metadata"]["name"]) == ("Role", "trainyard-team"))
    given: dict[str, set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                given.setdefault(f"{resource}.{group}".rstrip("."), set()).update(rule["verbs"])
    used = {resource: set(verbs) for resource, verbs in USED.items()}
    assert given.keys() == used.keys()
    assert all(verbs <= given[resource] for resource, verbs in used.items())
    assert all(given[resource] - verbs <= {"get", "list", "watch"} for resource, verbs in used.items())
    needed = [one for kind in validate.JOB_KINDS for one in validate.wanted_rights(kind)]
    assert all(verb in given[resource] for verb, resource in needed)
    (binding,) = (one for one in objects if one["kind"] == "RoleBinding" and one["roleRef"]["name"] == "trainyard-team")
    assert [one["name"] for one in binding["subjects"]] == [f"trainyard-team:{TEAM}"]
    assert {one["metadata"]["namespace"] for one in objects if one["kind"] != "Namespace"} == {TEAM}


def test_a_run_may_create_what_a_cell_consists_of(
    platform_objects: dict[str, list[Object]], renderer: Renderer
) -> None:
    plural = {"ConfigMap": "configmaps", "NetworkPolicy": "networkpolicies", "PyTorchJob": "pytorchjobs"}
    plural |= {"ServiceAccount": "serviceaccounts", "TrainJob": "trainjobs", "TrainingRuntime": "trainingruntimes"}
    cell = parse(renderer.build(ROOT / CELL), CELL)
    made = [*cell.objects, *applied(cell, Knobs(features=("trainjob",))).objects]
    wanted = {plural[one["kind"]] for one in made}
    objects = platform_objects["base/plugins/namespace"]
    (role,) = (one for one in objects if (one["kind"], one["metadata"]["name"]) == ("Role", RUNNER))
    assert {resource for rule in role["rules"] for resource in rule["resources"]} == wanted


@pytest.mark.parametrize("name", CLUSTERS)
def test_flux_is_not_admin(name: str, renderer: Renderer, platform_objects: dict[str, list[Object]]) -> None:
    """Each object of Flux names its account. Each run is the team's, of the repository that Flux watches."""
    cluster = ROOT / "clusters" / name
    team, source = flux_objects.team(cluster), flux_objects.source(cluster, renderer)
    objects = parse(renderer.build(cluster), name).objects
    plugins = [one for found in platform_objects.values() for one in found if one["kind"] in FLUX]
    accounts = {one["metadata"]["name"]: one["spec"]["serviceAccountName"] for one in plugins}
    assert {"training-operator", "fsx-csi", "kueue"} <= accounts.keys()
    applied = [one for one in objects if str(one["apiVersion"]).startswith("kustomize.toolkit")]
    accounts |= {one["metadata"]["name"]: one["spec"]["serviceAccountName"] for one in applied}
    runs = accounts.pop("runs")
    assert (runs, set(accounts.values())) == (f"flux-runs-{team}", {"flux-platform"})
    made = {one["metadata"]["name"] for one in objects if one["kind"] == "ServiceAccount"}
    assert made == {runs, "flux-platform"}
    bound = [subject["name"] for one in objects if "subjects" in one for subject in one["subjects"]]
    assert bound == ["flux-platform"], "flux-runs has rights in the team's namespace only"
    (params,) = (one for one in objects if one["metadata"]["name"] == "run-source")
    assert params["data"] == {"url": source["url"]}
    files = [read(path.read_text(encoding="utf-8"), path.name) for path in (cluster / "runs").glob("*.yaml")]
    new = Run("x", "x", CELL, "0" * 40, Image("a", "b", "sha256:" + "0" * 64), team, source)
    files.append(read(new.text(), "x.yaml"))
    for run in files:
        assert {run.source["metadata"]["namespace"], run.kustomization["metadata"]["namespace"]} == {team}
        assert (run.spec["serviceAccountName"], run.namespace) == (RUNNER, team)
        assert run.source["spec"]["url"] == source["url"]


def test_the_install_has_the_flags_of_the_lockdown(renderer: Renderer, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "base/flux/install", tmp_path / "install", dirs_exist_ok=True)
    names = ("source-controller", "kustomize-controller", "helm-controller", "notification-controller")
    made = [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": "flux-system"},
            "spec": {"template": {"spec": {"containers": [{"name": "manager", "args": ["--log-level=info"]}]}}},
        }
        for name in names
    ]
    text = "---\n".join(f"{json.dumps(one)}\n" for one in made)
    (tmp_path / "install/gotk-components.yaml").write_text(text, encoding="utf-8")
    objects = parse(renderer.build(tmp_path / "install"), "install").objects
    flags = {one["metadata"]["name"]: one["spec"]["template"]["spec"]["containers"][0]["args"][1:] for one in objects}
    refs, remote, account = (
        *("--no-cross-namespace-refs=true", "--no-remote-bases=true", "--default-service-account=default"),
    )
    stage = "--custom-apply-stage-kinds=trainer.kubeflow.org/TrainingRuntime"
    assert flags == {
        "source-controller": [],
        "kustomize-controller": [refs, remote, stage, account],
        "helm-controller": [refs, account],
        "notification-controller": [refs],
    }


def test_signed_commits_are_asked_of_the_sync_and_of_its_runs(renderer: Renderer, tmp_path: Path) -> None:
    for name in ("base/flux", "clusters/cpu-demo"):
        shutil.copytree(ROOT / name, tmp_path / name)
    path = tmp_path / "clusters/cpu-demo/kustomization.yaml"
    text = path.read_text(encoding="utf-8").replace(
        "base/flux/platform\n", "base/flux/platform\n  - ../../base/flux/verify\n"
    )
    path.write_text(text, encoding="utf-8")
    verify = {"mode": "HEAD", "secretRef": {"name": "git-signers"}}
    source = flux_objects.source(tmp_path / "clusters/cpu-demo", renderer)
    assert source["verify"] == verify
    run = Run("x", "x", CELL, "0" * 40, Image("a", "b", "c"), TEAM, source)
    assert run.objects()[0]["spec"]["verify"] == verify


@pytest.mark.parametrize(("held", "state"), [(3, State.FAIL), (1, State.PASS), (0, State.CANNOT_TELL)])
def test_the_probe_tells_enforcement_from_its_absence(tmp_path: Path, held: int, state: State) -> None:
    """Its two scripts on loopback. The control is a listener whose other ports are closed."""
    ports = [str(port) for port in {free_port() for _ in range(9)}][:3]
    scripts = isolation.objects("isolation-x")["scripts"]
    script = scripts["listener"].replace("time.sleep", "print('up', flush=True); time.sleep")
    here = script.replace("socket.has_dualstack_ipv6()", "False").replace('("",', '("127.0.0.1",')
    listener = subprocess.Popen([sys.executable, "-c", here, *ports[:held]], stdout=subprocess.PIPE)
    try:
        assert listener.stdout is not None
        assert listener.stdout.readline() == b"up\n"
        prober = scripts["prober"].replace("/dev/termination-log", str(tmp_path / "log"))
        subprocess.run([sys.executable, "-c", prober, "127.0.0.1", "0", *ports], check=True, timeout=300)
    finally:
        listener.kill()
        listener.communicate()
    said = (tmp_path / "log").read_text(encoding="utf-8")
    found = [isolation.OPEN + ports.index(str(port)) for port in json.loads(said)]
    assert isolation.judge(found).state is state


def test_the_probe_s_policies_open_one_port_in_common() -> None:
    into, out = isolation.objects("isolation-x")["policies"]
    listener, prober = (
        isolation.objects("isolation-x", side)["pod"]["metadata"]["labels"] for side in ("listener", "prober")
    )
    for port, allowed in ((isolation.OPEN, [True, True]), (isolation.NO_INGRESS, [False, True])):
        asked = range(port, port + 1)
        assert [
            network_policy.admits(into, "Ingress", prober, asked),
            network_policy.admits(out, "Egress", listener, asked),
        ] == allowed
    assert not network_policy.admits(into, "Ingress", {}, range(isolation.OPEN, isolation.OPEN + 1))
