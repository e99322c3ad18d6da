"""Rules on how the training operator and torchrun use a job: types, admission, wiring, elasticity."""

from collections.abc import Iterator
from dataclasses import replace

from tools.core import output
from tools.core.verdict import State, Verdict, bad, doubtful, good, unclear
from tools.kube import Object
from tools.kube.json_patch import value_at
from tools.kube.manifests import from_base64
from tools.preflight.rule import Place, rule
from tools.preflight.rules.config import configurations, read_config
from tools.preflight.rules.enums import FIELDS
from tools.preflight.subject import Job, Subject, known_kind, title
from tools.workload import Workload, kinds
from training.config import Config

SAME_SIZE = (
    "a lost node then stops the job until it is back; set nodes to one number, or use a PyTorchJob without a queue"
)
FIXED: dict[str, str] = FIELDS["fixed size"]


@rule("types")
def types(subject: Subject) -> Iterator[Verdict]:
    for item, fault in subject.misshapen:
        remedy = "add the field" if fault.wanted == "set" else f"use {fault.wanted}"
        yield bad(Place(title(item), fault.path, fault.value), f"{fault.path} must be {fault.wanted}", remedy)
    told = {(title(item), fault.path) for item, fault in subject.misshapen}
    for item in subject.objects:
        encoded = known_kind(item) == "Secret" and "sops" not in item
        for key, value in ((item.get("data") or {}) if encoded else {}).items():
            if (title(item), f"data.{key}") not in told and from_base64(value) is None:
                bare = Place(title(item), f"data.{key}")
                yield bad(bare, f"data.{key} is not base64: the API server refuses it", "stringData takes plain texts")
    for template in subject.templates:
        yield good(Place(template.object, template.spec_path), "the pod has the types that Kubernetes expects")


@rule("api-version", each="objects")
def api_version(subject: Subject, item: Object) -> Iterator[Verdict]:
    kind, version = str(item.get("kind")), item.get("apiVersion")
    workload, group = kinds.of(item), str(version).rpartition("/")[0]
    meant = kinds.meant(item)
    if meant:
        place, summary = Place(title(item), "kind", kind), f"{group or version} has no kind {kind}: it is {meant}"
        yield (doubtful if workload else bad)(place, summary, f"kind: {meant}")  # AWS's pages have both spellings
    known = workload.api if workload else FIELDS["served"].get(kind)
    if known is None or group not in (known.rpartition("/")[0], "extensions"):
        return  # a kind of another group may have the same name
    place = Place(title(item), "apiVersion", version)
    if version == known:
        yield good(place, f"{kind} {version} is served")
    else:
        yield bad(place, f"{kind} is {known}, not {version}", f"apiVersion: {known}")


@rule("admission", each="workloads")
def admission(subject: Subject, workload: Workload) -> Iterator[Verdict]:
    for reason in workload.refused:
        path, _, fault = reason.partition(": ")
        yield bad(Place(workload.title, path), f"refused: {fault or reason}", "correct this field")
    if not workload.refused:
        yield good(Place(workload.title, "spec"), f"{workload.kind}: the job is admitted")


@rule("wiring")
def wiring(subject: Subject) -> Iterator[Verdict]:
    for job in subject.jobs:
        if job.analysis is not None:
            found = job.analysis.verdict
            if found.state is State.FAIL and _outside(job) and not _sets_nodes(job):
                continue  # the rule `elastic-bounds` reports it
            if job.analysis.one_world:  # the number of processes has a rule of its own
                summary, remedy = f"{job.workload.name} forms one world", None
                found = replace(found, state=State.PASS, summary=summary, remedy=remedy)
            yield replace(found, details=Place(job.object, "spec").details())
    for item, verdict in subject.unseen:
        yield replace(verdict, details=Place(title(item), "spec").details())


@rule("kind")
def kind(subject: Subject) -> Iterator[Verdict]:
    for job in subject.jobs:
        yield good(Place(job.object, "kind", job.workload.kind), f"{job.workload.kind} is modelled")
    for one in subject.unknown:
        place = Place(one.wrapper or title(one.item), f"{one.prefix}{one.path or 'kind'}")
        yield unclear(place, one.reason, "check this object by hand")


@rule("elastic-bounds", each="operator_jobs")
def elastic_bounds(subject: Subject, job: Job) -> Iterator[Verdict]:
    gang = value_at(job.spec, ("runPolicy", "schedulingPolicy", "minAvailable"))
    if isinstance(gang, int) and gang > job.workload.replicas:
        place = Place(job.object, "spec.runPolicy.schedulingPolicy.minAvailable", gang)
        verdict = bad if any(one.spec.get("schedulerName") for one in job.templates) else doubtful
        summary = f"a scheduler of gangs waits for {gang} pods, and the job has {job.workload.replicas}"
        yield verdict(place, summary, f"minAvailable: {job.workload.replicas}")
    bounds = _bounds(job)
    if bounds is None or job.analysis is None:
        return
    low, high, count = *bounds, job.workload.replicas
    place = Place(job.object, "spec.elasticPolicy", f"min {low}, replicas {count}, max {high}")
    if not _outside(job):
        yield good(place, "the replicas are within the elastic bounds")
    else:
        summary = f"{output.count(count, 'pod')}, not within {low} to {high}"
        yield bad(place, summary, f"set minReplicas <= {count} <= maxReplicas")


def _bounds(job: Job) -> tuple[int, int] | None:
    """Return the elastic bounds of a PyTorchJob, None if it has none."""
    elastic = job.workload.section("elasticPolicy") if job.workload.kind == "PyTorchJob" else {}
    low, high = elastic.get("minReplicas"), elastic.get("maxReplicas")
    if low is None and high is None:
        return None
    return (high if low is None else low) or 0, (low if high is None else high) or 0


def _outside(job: Job) -> bool:
    bounds = _bounds(job)
    return bounds is not None and not bounds[0] <= job.workload.replicas <= bounds[1]


def _sets_nodes(job: Job) -> bool:
    """Return whether the command sets the number of nodes itself, so that the bounds have no effect."""
    found = [node.launch.torchrun for node in job.analysis.nodes] if job.analysis else []
    return any(one is None or any(word.startswith("--nnodes") for word in one.words) for one in found)


def _wanted_sizes(subject: Subject, job: Job) -> str:
    """Return the bounds in the trainer's configuration of a job, empty without any."""
    for template, texts in configurations(subject):
        config = read_config(texts)  # the rule `config` reports an error
        if subject.job_of(template) is job and isinstance(config, Config) and config.nodes:
            return f"{config.nodes.min} to {config.nodes.max}"
    return ""


@rule("elastic-flags", each="jobs")
def elastic_flags(subject: Subject, job: Job) -> Iterator[Verdict]:
    workload, elastic = job.workload, job.spec.get("elasticPolicy") or {}
    asked, bounds = _wanted_sizes(subject, job), _bounds(job)
    place = Place(job.object, "cell.yaml: nodes", asked)
    if workload.kind in FIXED and asked:
        yield bad(place, f"the size of a {workload.kind} is fixed: {FIXED[workload.kind]}", SAME_SIZE)
    if asked and bounds and asked != f"{bounds[0]} to {bounds[1]}":
        summary = f"elasticPolicy has {bounds[0]} to {bounds[1]}: the key alone changes no pods"
        yield bad(place, summary, "set nodes of the cell in overlays/matrix.yaml, then `yard matrix sync`")
    if workload.kind != "PyTorchJob":
        return
    low, high = elastic.get("minReplicas"), elastic.get("maxReplicas")
    if job.analysis is None or not job.analysis.nodes or low is None or high is None or low == high:
        return
    torchrun = job.analysis.nodes[0].launch.torchrun
    if workload.queue:
        place = Place(job.object, "spec.elasticPolicy", f"{low} to {high}, queue {workload.queue}")
        yield bad(place, "Kueue admits all of the job's pods or none, and cannot shrink or grow it", SAME_SIZE)
    given = [] if torchrun is None else [word for word in torchrun.words if word.startswith("--nnodes")]
    place = Place(job.object, "spec.elasticPolicy", f"{low} to {high}; {' '.join(given) or 'no --nnodes'}")
    if given and ":" not in "".join(torchrun.words if torchrun else []):
        yield bad(place, f"{given[0]} turns elasticity off", "remove --nnodes from the command")
    else:
        yield good(place, "the elastic bounds reach torchrun")
