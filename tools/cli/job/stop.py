"""Stop a job: its pods save a checkpoint, then the job is suspended or deleted."""

from tools.cli.job import _options
from tools.core import UserError, output
from tools.job import stop
from tools.job.snapshot import lookup
from tools.kube import Kubectl


@_options.cluster
def command(kubectl: Kubectl, job: str | None, delete: bool, as_json: bool) -> int:
    here = lookup.in_namespace(kubectl)
    found = lookup.find(here, job)
    name = found.workload.name
    if found.state in ("Succeeded", "Failed") and not delete:
        raise UserError(f"{name} has ended already: {found.state}", "--delete removes it", 1)
    if found.owner is not None and found.resource is not None:
        output.note(f"{found.workload.title} was made by {found.title}: that is what is stopped")
    drained = stop.drain(here, found, output.note, delete)
    if delete:
        stop.delete(here, found, output.note)
    verb = "deleted" if delete else "suspended"
    uid = found.workload.item["metadata"].get("uid") or found.top["metadata"]["uid"]
    facts = {"job": name, "through": found.title, "namespace": here.namespace, "uid": uid, "result": verb}
    facts |= {"step": drained.step, "saved": drained.saved, "evidence": drained.evidence}
    is_own = found.workload.kind == "PyTorchJob" and found.owner is None
    resume = [] if delete else [f"next: {'yard job submit CELL --resume' if is_own else found.resumption}"]
    output.answer(facts, [f"{verb}: {here.namespace}/{name} ({uid})", f"  {drained.evidence}", *resume], as_json)
    return 3 if not drained.saved and drained.ran else 0
