"""Show what pods or local ranks really have: variables, packages, torch's build, devices, mounts, limits, kernel."""

from tools.cli.job import _options
from tools.core import UserError, output
from tools.job import pod_env
from tools.job.pod_env import Found
from tools.kube import Kubectl


@_options.cluster
def command(kubectl: Kubectl, job: str, rank: int | None, diff: str | None, as_json: bool) -> int:
    found = _asked(kubectl, job, rank, diff)
    envs = {name: one for each in found for name, one in each.envs.items() if not isinstance(one, str)}
    unknown = {name: one for each in found for name, one in each.envs.items() if isinstance(one, str)}
    if diff and len(envs) + len(unknown) == 1:
        (same,) = [*envs, *unknown]
        raise UserError(f"--diff {diff}: both are {same}", "name a rank in another pod, or another job")
    own = frozenset().union(*(each.own for each in found))
    rows = list(pod_env.differences(envs, own)) if diff is not None else []
    name = " and ".join(dict.fromkeys(each.job for each in found))
    if as_json:
        different = [{"section": section, "name": key, "values": values} for section, key, values in rows]
        output.data({"job": name, "different": different} if diff is not None else {"job": name, "pods": envs})
    elif diff is not None:
        if len(envs) > 1:
            _differences(name, rows, len(envs), {key: where for each in found for key, where in each.where.items()})
    else:
        for env in envs.values():
            for section, values in env.items():
                output.line(f"{section}:")
                output.table((key, output.short(value, 400)) for key, value in values.items())
    for key, why in unknown.items():
        output.note(f"CANNOT TELL: {key}: {why}")
    return 3 if unknown else int(bool(rows))


def _asked(kubectl: Kubectl, job: str, rank: int | None, diff: str | None) -> list[Found]:
    """Return what was asked for: one pod, all pods, two ranks, or the same rank of two jobs."""
    salt = pod_env.new_salt()
    if diff == "":
        if rank is not None:
            raise UserError("--diff compares all pods: give no --rank, or name the other one: --diff RANK")
        return [pod_env.of_job(kubectl, job, None, salt)]
    if diff is not None and diff.isdecimal():
        return [pod_env.of_job(kubectl, job, [rank or 0, int(diff)], salt)]
    return [pod_env.of_job(kubectl, one, [rank], salt) for one in ([job] if diff is None else [job, diff])]


def _differences(
    name: str, rows: list[tuple[str, str, dict[str, list[str]]]], asked: int, where: dict[str, str]
) -> None:
    output.line(f"{output.count(asked, 'pod')} of {name}: {output.count(len(rows), 'difference')}")
    for section, key, values in rows:
        output.line(f"{section}: {key}")
        for value, pods in sorted(values.items(), key=lambda item: len(item[1])):
            more = f" and {len(pods) - 4} more" if len(pods) > 4 else ""
            output.line(f"  {', '.join(where[pod] for pod in pods[:4])}{more}: {output.short(value, 200)}")
