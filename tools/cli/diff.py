"""Show what applying a cell would change on the current cluster."""

from tools.cells import knobs as cells_knobs
from tools.cells.knobs import Knobs
from tools.cli import _knobs
from tools.core import output
from tools.job import submit
from tools.kube import Kubectl, Manifests
from tools.kube.kubectl import failure


@_knobs.knobs
def command(
    cell: str | None,
    file: str | None,
    knobs: Knobs,
    namespace: str | None,
    context: str | None,
    manager: str,
    as_json: bool,
) -> int:
    manifests, kubectl = cells_knobs.rendered(cell, file, knobs), Kubectl(context, namespace)
    if job := submit.awaits_runtime(kubectl, manifests):
        output.note(f"{job.title} is new, and left out: the API server takes it only after its runtime")
        manifests = Manifests(manifests.source, [one for one in manifests.objects if one is not job.item])
    done = kubectl.run(
        *("diff", "--server-side", f"--field-manager={manager}", "--filename=-"),
        stdin=manifests.as_list(),
        seconds=None,
        environment={"KUBECTL_EXTERNAL_DIFF": "diff -u -N"},  # another program may have other exit codes
    )
    if done.returncode not in (0, 1) or (done.returncode == 1 and not done.stdout.strip()):
        raise failure("diff", done.stderr)
    differs = done.returncode == 1
    if as_json:
        output.data({"cell": manifests.source, "differs": differs, "diff": done.stdout})
    else:
        output.block(done.stdout)
        output.line(f"{manifests.source}: " + ("differs from the cluster" if differs else "no difference"))
    if done.stderr.strip():
        output.notes(done.stderr)  # the API server's warnings
    return 1 if differs else 0
