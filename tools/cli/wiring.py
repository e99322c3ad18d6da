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

\b
Examples:
  yard wiring overlays/cpu/llama-tiny
  yard wiring -f job.yaml --operator-version 1.7.0
  kubectl kustomize overlays/cpu/llama-tiny | yard wiring -f -

\b
Exit codes: 0 PASS, 1 FAIL, 3 CANNOT TELL.
"""

from __future__ import annotations

import click

from tools.core import output
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict
from tools.kube.manifests import Manifests, name_of, read
from tools.local import job as local_job
from tools.simulator import wiring, wiring_proof
from tools.workload import kinds, operator_pods

WORST_FIRST = (State.FAIL, State.CANNOT_TELL, State.PASS)


@click.command(help=__doc__, short_help="prove that a job's pods form one world")
@click.argument("cell", required=False)
@click.option("-f", "--file", metavar="FILE", help="Read manifests from FILE (- for standard input).")
@click.option("--pods", type=click.IntRange(1), metavar="N", help="Run only the first N pods.")
@click.option("--nproc", type=click.IntRange(1), metavar="N", help="Run N processes in each pod.")
@click.option(
    "--timeout", type=click.FloatRange(1), default=60, show_default=True, help="Seconds to wait for a world."
)
@click.option(
    "--operator-version",
    type=click.Choice(operator_pods.VERSIONS),
    default=operator_pods.LATEST,
    show_default=True,
    help="The training operator's version.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def command(
    cell: str | None,
    file: str | None,
    pods: int | None,
    nproc: int | None,
    timeout: float,
    operator_version: str,
    as_json: bool,
) -> None:
    manifests = _manifests(cell, file)
    found = kinds.find(manifests, operator_version)
    jobs = [job for job in found.workloads if job.trains]
    if not jobs and not found.unknown:
        seen = ", ".join(sorted({str(item.get("kind")) for item in manifests.objects})) or "nothing"
        raise UserError(f"{manifests.source}: contains no training job, only {seen}")
    verdicts = [_not_modelled(one) for one in found.unknown]
    for job in jobs:
        analysis = wiring.analyse(job)
        if analysis.verdict.state is State.PASS:
            output.note("starting the job's launchers with a probe; a few seconds")
        verdicts.append(wiring_proof.prove(analysis, pods, nproc, timeout))
    _show(verdicts, as_json)
    worst = next(state for state in WORST_FIRST if any(item.state is state for item in verdicts))
    if worst.exit_code:
        raise click.exceptions.Exit(worst.exit_code)


def _manifests(cell: str | None, file: str | None) -> Manifests:
    if (cell is None) == (file is None):
        raise UserError("give a cell, or a file with -f", "yard wiring overlays/cpu/llama-tiny")
    if cell is not None:
        return local_job.render(cell, output.note)
    return read(str(file))


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
