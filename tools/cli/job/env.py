"""Show what running pods really have: variables, packages, torch's build, devices, mounts, limits, kernel."""

from tools.cli.job import _options
from tools.core import UserError, output
from tools.job import pod_env
from tools.job.ranks import pod_of
from tools.job.snapshot import Snapshot, collect
from tools.kube import Kubectl


@_options.cluster
def command(kubectl: Kubectl, job: str, rank: int | None, diff: bool, as_json: bool) -> int:
    if diff and rank is not None:
        raise UserError("--diff compares all pods: give no --rank")
    here, seen = collect.find(kubectl, job, logs=False, run=rank is not None)
    pods = seen.pods if diff else [pod_of(seen, rank)] if rank is not None else seen.pods[:1]
    if not pods:
        raise UserError(f"{seen.name} has no pods", code=3)
    answers = pod_env.of_pods(here, pods)
    unknown = {name: one for name, one in answers.items() if isinstance(one, str)}
    found = {name: one for name, one in answers.items() if not isinstance(one, str)}
    rows = list(pod_env.differences(found)) if diff else []
    if as_json:
        different = [{"section": section, "name": name, "values": values} for section, name, values in rows]
        output.data({"job": seen.name, "different": different} if diff else {"job": seen.name, "pods": found})
    elif diff:
        _differences(seen, rows, len(found))
    else:
        for env in found.values():
            for section, values in env.items():
                output.line(f"{section}:")
                output.table((name, output.short(value, 400)) for name, value in values.items())
    for name, why in unknown.items():
        output.note(f"CANNOT TELL: {name}: {why}")
    return 3 if unknown else int(bool(rows))


def _differences(seen: Snapshot, rows: list[tuple[str, str, dict[str, list[str]]]], asked: int) -> None:
    nodes = {pod.name: f"{pod.short} on {pod.node}" for pod in seen.pods}
    output.line(f"{output.count(asked, 'pod')} of {seen.name}: {output.count(len(rows), 'difference')}")
    for section, name, values in rows:
        output.line(f"{section}: {name}")
        few = sorted(values.items(), key=lambda item: len(item[1]))
        for value, pods in few:
            shown = ", ".join(nodes[pod] for pod in pods[:4]) + (f" and {len(pods) - 4} more" if len(pods) > 4 else "")
            output.line(f"  {shown}: {output.short(value, 200)}")
