"""Rules on how the training operator and torchrun use a job: types, admission, wiring, elasticity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tools.core.verdict import State, Verdict, bad, good
from tools.preflight.rule import PRACTICE, Place, rule
from tools.preflight.subject import Subject, title
from tools.workload import kinds


@rule("types", "a value of another type is refused, or silently means something else")
def types(subject: Subject) -> Iterator[Verdict]:
    """Names, commands, variables, labels and resources have the types that Kubernetes expects.

    Common faults are `value: 1` or `value: true` for a variable (strings need quotes), an annotation `true`
    where HyperPod expects the string "true", `replicas: "2"`, and `args` as one string. YAML is read as
    kubectl reads it: `yes` and `on` are booleans. An object with such a fault is not checked by the other
    rules, except `schema`.
    """
    for item, fault in subject.misshapen:
        remedy = "add the field" if fault.wanted == "set" else f"use {fault.wanted}"
        yield bad(Place(title(item), fault.path, fault.value), f"{fault.path} must be {fault.wanted}", remedy)
    for template in subject.templates:
        yield good(
            Place(template.object, template.spec_path), "the pod has the types that Kubernetes expects"
        )


@rule("api-version", "no controller acts on an object of a version that clusters do not serve")
def api_version(subject: Subject) -> Iterator[Verdict]:
    """A PyTorchJob is `kubeflow.org/v1`, and workloads have API versions that clusters still serve.

    Manifests for the operator's 0.x releases (v1alpha1 to v1beta2) are still in circulation.
    """
    for item in subject.objects:
        kind, version = str(item.get("kind")), item.get("apiVersion")
        workload, group = kinds.of(item), str(version).rpartition("/")[0]
        known = workload.api if workload else _SERVED.get(kind)
        if known is None or group not in (known.rpartition("/")[0], "extensions"):
            continue  # a kind of another group may have the same name
        place = Place(title(item), "apiVersion", version)
        if version == known:
            yield good(place, f"{kind} {version} is served")
        else:
            yield bad(place, f"{kind} is {known}, not {version}", f"apiVersion: {known}")


_SERVED = {
    "CronJob": "batch/v1",
    "Deployment": "apps/v1",
    "DaemonSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
}


@rule("admission", "the API server or a controller's webhook refuses the job")
def admission(subject: Subject) -> Iterator[Verdict]:
    """The webhook of the job's kind admits the job.

    The training operator (1.9.4) requires a container named `pytorch` with an image in each replica type, the
    replica types Master and Worker only, one Master with an explicit count of 1, a name that is valid for a
    Service, and only one of the two fields for the processes per node. Trainer refuses its own variables in
    spec.trainer.env. JobSet refuses names of Jobs and pods above 63 characters, and a coordinator that does
    not exist. An Indexed Job with parallelism needs completions.

    Sources: pkg/webhooks/pytorch/pytorchjob_webhook.go of kubeflow/trainer v1.9.4;
    pkg/runtime/framework/plugins/torch/torch.go of v2.3.0; pkg/webhooks/jobset_webhook.go of
    kubernetes-sigs/jobset v0.12.0.
    """
    for job in subject.jobs:
        for reason in job.refused:
            path, _, fault = reason.partition(": ")
            yield bad(Place(job.object, path), f"refused: {fault or reason}", "correct this field")
        if not job.refused:
            yield good(Place(job.object, "spec"), f"{job.workload.kind}: the job is admitted")


@rule("wiring", "pods that do not meet train as separate jobs, or wait forever")
def wiring(subject: Subject) -> Iterator[Verdict]:
    """All pods of a job find each other and form one world of ranks.

    The rule derives the pods, their environment and torchrun's options as the operator and torchrun do. In a
    job with only Workers and without elasticPolicy, the operator sets no rendezvous: each pod waits or trains
    alone. `yard wiring` also starts the launchers.
    """
    for job in subject.jobs:
        if job.analysis is not None:
            found = job.analysis.verdict
            if found.state is State.WARN:  # on the number of processes, which has a rule of its own
                found = replace(found, state=State.PASS, summary=found.summary.partition(", but ")[0])
            yield replace(found, details=Place(job.object, "spec").details())


@rule("elastic-bounds", "the operator admits bounds that can never be met")
def elastic_bounds(subject: Subject) -> Iterator[Verdict]:
    """minReplicas <= the pods of the job <= maxReplicas. The Master is one of the pods.

    Neither the CRD nor the webhook checks this (v1.9.4). Below the minimum the rendezvous never starts. Above
    the maximum the extra pods stay outside of it and still cost money. torchrun gets the bounds as the
    numbers of nodes, and the Master is a node too.
    """
    for job in subject.operator_jobs():
        elastic = job.spec.get("elasticPolicy") or {}
        count = sum(template.replicas for template in job.templates)
        low, high = elastic.get("minReplicas"), elastic.get("maxReplicas")
        if low is None and high is None:
            continue
        low, high = (high if low is None else low) or 0, (low if high is None else high) or 0
        place = Place(job.object, "spec.elasticPolicy", f"min {low}, replicas {count}, max {high}")
        if low <= count <= high:
            yield good(place, "the replicas are within the elastic bounds")
        else:
            summary = f"{count} pods are not within {low} to {high}"
            yield bad(place, summary, f"set minReplicas <= {count} <= maxReplicas")


@rule(
    "elastic-flags", "a torchrun option overrides the operator's variable and turns elasticity off", PRACTICE
)
def elastic_flags(subject: Subject) -> Iterator[Verdict]:
    """A job that may grow or shrink does not set --nnodes.

    With `--nnodes` on the command line torchrun ignores PET_NNODES, which holds min:max. The job then runs at
    one size only, and pods that an autoscaler adds can never join.
    """
    for job in subject.operator_jobs():
        elastic = job.spec.get("elasticPolicy") or {}
        low, high = elastic.get("minReplicas"), elastic.get("maxReplicas")
        if job.analysis is None or not job.analysis.nodes or low is None or high is None or low == high:
            continue
        torchrun = job.analysis.nodes[0].launch.torchrun
        given = [] if torchrun is None else [word for word in torchrun.words if word.startswith("--nnodes")]
        place = Place(
            job.object, "spec.elasticPolicy", f"{low} to {high}; {' '.join(given) or 'no --nnodes'}"
        )
        if given and ":" not in "".join(torchrun.words if torchrun else []):
            yield bad(place, f"{given[0]} turns elasticity off", "remove --nnodes from the command")
        else:
            yield good(place, "the elastic bounds reach torchrun")
