"""Prove that a job's pods form one world of ranks.

Every job of a cell or a file is checked by the rules of its controller: PyTorchJob, TrainJob with its
runtime, HyperPodPyTorchJob, Volcano Job, JobSet and Job, also inside an AppWrapper, a Katib Experiment or a
List. What passes is run here, with a probe in place of the trainer: world size, unique ranks, one all-reduce
over all of them. On other kinds of job the verdict is CANNOT TELL.

Nothing of the manifest's own code runs, and none of its files is read or written. What starts is this Python
(-I, isolated), torch's torchrun and this project's probe. The manifest decides the numbers of nodes,
processes and ranks, the rendezvous backend and its time limits, and which pods meet. Its variables, its other
options and its images are not used. The processes listen on loopback only. Where the kernel allows it, they
have a network of their own; the evidence says whether they had. A cell, unlike a file, is rendered by
kustomize, which may fetch remote bases by https; plugins and exec functions stay off.

The command is followed as the pod runs it: shell scripts, variables, torchrun, accelerate, deepspeed and
hyperpodrun. If the manifest has no command, only the image knows what starts: give it with --command, or let
--image-config ask your docker engine, and the image's registry, for its ENTRYPOINT and CMD. Without the
option neither is asked.

\b
Examples:
  yard wiring overlays/cpu/llama-tiny
  yard wiring -f job.yaml --operator-version 1.7.0
  yard wiring -f job.yaml --command "torchrun --nnodes 2 train.py"
  kubectl kustomize overlays/cpu/llama-tiny | yard wiring -f -

\b
Exit codes: 0 PASS or WARN, 1 FAIL, 3 CANNOT TELL.
"""

import click

from tools.cells import knobs as cells_knobs
from tools.cells.knobs import Knobs
from tools.cli import _knobs, _start
from tools.core import output
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict, worst
from tools.image import start
from tools.kube.manifests import name_of
from tools.simulator import wiring, wiring_proof
from tools.workload import kinds, operator_pods


@click.command(help=__doc__, short_help="prove that a job's pods form one world")
@_knobs.target
@_knobs.options
@click.option("--pods", type=click.IntRange(1), metavar="N", help="Run only the first N pods of the job.")
@click.option("--timeout", type=click.FloatRange(1), default=60, show_default=True, help="Seconds to wait for a world.")
@click.option(
    "--operator-version",
    type=click.Choice(operator_pods.VERSIONS),
    default=operator_pods.LATEST,
    show_default=True,
    help="The training operator's version.",
)
@_start.options
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def command(
    cell: str | None,
    file: str | None,
    knobs: Knobs,
    pods: int | None,
    timeout: float,
    operator_version: str,
    words: str | None,
    image_config: bool,
    as_json: bool,
) -> None:
    manifests = cells_knobs.rendered(cell, file, knobs)
    found = kinds.find(manifests, operator_version)
    given = start.given(found.workloads, words, image_config)
    jobs = [job for job in found.workloads if job.trains or job.misshapen]
    unseen = [wiring.unseen(job, given) for job in found.workloads if job not in jobs]
    verdicts = [verdict for verdict in unseen if verdict] + [_not_modelled(one) for one in found.unknown]
    if not jobs and not verdicts:
        seen = ", ".join(sorted({str(item.get("kind")) for item in manifests.objects})) or "nothing"
        reason = f"contains no job that starts a distributed training, only {seen}"
        raise UserError(f"{manifests.source}: {reason}")
    for job in jobs:
        analysis = wiring.analyse(job, given)
        if analysis.verdict.state in (State.PASS, State.WARN):
            output.note("starting the job's launchers with a probe; a few seconds")
        verdicts.append(wiring_proof.prove(analysis, pods, knobs.nproc, timeout))
    _show(verdicts, as_json)
    code = worst(item.state for item in verdicts).exit_code
    if code:
        raise click.exceptions.Exit(code)


def _not_modelled(one: kinds.Unknown) -> Verdict:
    """Return the verdict on an object whose pods are not looked at."""
    where = one.wrapper or f"{one.item.get('kind')}/{name_of(one.item)}"
    evidence = [f"{where}: {one.prefix}{one.path or 'kind'}"]
    return Verdict(State.CANNOT_TELL, one.reason, evidence)


def _show(verdicts: list[Verdict], as_json: bool) -> None:
    if as_json:
        output.data([verdict.as_dict() for verdict in verdicts])
        return
    for verdict in verdicts:
        output.verdict(verdict)
