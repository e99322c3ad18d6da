"""Rules on whether the training operator makes one world of a job: shape, admission, wiring, elasticity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tools.core.verdict import Verdict, bad, good
from tools.preflight.rule import Place, rule
from tools.preflight.subject import Subject, title


@rule("types", "a value of another type is refused, or silently means something else")
def types(subject: Subject) -> Iterator[Verdict]:
    """Names, commands, variables, labels and resources have the types that Kubernetes has for them.

    The classics are `value: 1` or `value: true` for a variable (texts need quotes), an annotation `true`
    where HyperPod reads the text "true", `replicas: "2"`, and `args` as one text. YAML is read as kubectl
    reads it, so that `yes` and `on` are booleans here too. Objects with such a fault are not looked at by
    the other rules, but for `schema`.
    """
    for item, fault in subject.misshapen:
        yield bad(
            Place(title(item), fault.path, fault.value),
            f"{fault.path} must be {fault.wanted}",
            "write the value in quotes" if "quotes" in fault.wanted else f"give {fault.wanted}",
        )
    for template in subject.templates:
        yield good(
            Place(template.object, template.spec_path), "the pod has the shape that Kubernetes expects"
        )


@rule("api-version", "nothing acts on an object of a version that nobody serves")
def api_version(subject: Subject) -> Iterator[Verdict]:
    """A PyTorchJob is `kubeflow.org/v1`, and workloads have the versions that clusters still serve.

    The operator's 0.x releases knew v1alpha1 to v1beta2; manifests of those years still circulate.
    """
    for item in subject.objects:
        kind, version = str(item.get("kind")), item.get("apiVersion")
        known, group = _SERVED.get(kind), str(version).rpartition("/")[0]
        if known is None or group not in (known.rpartition("/")[0], "extensions"):
            continue  # a kind of another group may have this name too
        place = Place(title(item), "apiVersion", version)
        if version == known:
            yield good(place, f"{kind} {version} is served")
        else:
            yield bad(place, f"{kind} is {known}, not {version}", f"apiVersion: {known}")


_SERVED = {
    "PyTorchJob": "kubeflow.org/v1",
    "HyperPodPyTorchJob": "sagemaker.amazonaws.com/v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
    "Deployment": "apps/v1",
    "DaemonSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
}


@rule("admission", "the API server or the operator's webhook refuses the job")
def admission(subject: Subject) -> Iterator[Verdict]:
    """The operator (1.9.4) takes the job: a container named `pytorch`, an image in each, replica types
    Master and Worker, exactly one Master whose count is written, a name that can be a Service's, not both
    ways to give the processes per node.

    Source: pkg/webhooks/pytorch/pytorchjob_webhook.go of kubeflow/trainer v1.9.4.
    """
    for job in subject.jobs:
        for reason in job.refused:
            path, _, said = reason.partition(": ")
            yield bad(Place(job.object, path), f"refused: {said or reason}", "correct this field")
        if not job.refused:
            yield good(Place(job.object, "spec"), "operator 1.9.4 admits the job")


@rule("wiring", "pods that do not meet train as separate jobs, or wait for ever")
def wiring(subject: Subject) -> Iterator[Verdict]:
    """All pods of a job find each other and form one world of ranks.

    The pods, their environment and torchrun's options are worked out as the operator and torchrun do. A job
    with only Workers and no elasticPolicy gets no rendezvous from the operator: each pod waits or
    trains by itself. `yard wiring` starts the launchers on top of this.
    """
    for job in subject.jobs:
        if job.analysis is None:
            continue
        verdict = job.analysis.verdict
        details = {"object": job.object, "path": "spec", "value": None}
        yield replace(verdict, details=details)


@rule("elastic-bounds", "the operator admits bounds that can never be met")
def elastic_bounds(subject: Subject) -> Iterator[Verdict]:
    """minReplicas <= Worker.replicas <= maxReplicas.

    Neither the CRD nor the webhook checks it (v1.9.4). Below the minimum the rendezvous never starts; above
    the maximum the surplus pods wait outside and are paid for.
    """
    for job in subject.jobs:
        elastic = job.spec.get("elasticPolicy") or {}
        worker = (job.spec.get("pytorchReplicaSpecs") or {}).get("Worker") or {}
        count = worker.get("replicas", 1)
        low, high = elastic.get("minReplicas"), elastic.get("maxReplicas")
        if low is None and high is None:
            continue
        low, high = (low if low is not None else high), (high if high is not None else low)
        if not isinstance(low, int) or not isinstance(high, int):
            continue
        place = Place(job.object, "spec.elasticPolicy", f"min {low}, replicas {count}, max {high}")
        if low <= count <= high:
            yield good(place, "the replicas are within the elastic bounds")
        else:
            yield bad(
                place,
                f"{count} workers are not within {low} to {high}",
                f"give minReplicas <= {count} <= maxReplicas",
            )


@rule("elastic-flags", "a torchrun option wins over the operator's variable, and elasticity is off")
def elastic_flags(subject: Subject) -> Iterator[Verdict]:
    """A job that may grow or shrink leaves --nnodes to the operator.

    With `--nnodes` on the command line PET_NNODES, which holds min:max, is not read: the job runs at one size
    only, and pods that an autoscaler adds can never join.
    """
    for job in subject.jobs:
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
            yield bad(place, f"{given[0]} switches elasticity off", "take --nnodes from the command")
        else:
            yield good(place, "the elastic bounds reach torchrun")
