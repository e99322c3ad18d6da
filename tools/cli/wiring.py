"""Prove that a job's pods form one world of ranks."""

import click

from tools.cells import knobs as cells_knobs
from tools.cells.knobs import Knobs
from tools.cli import _knobs
from tools.core import State, UserError, Verdict, output, worst
from tools.image import start
from tools.kube import name_of
from tools.simulator import wiring, wiring_proof
from tools.workload import kinds, operator_pods


@_knobs.knobs
@click.option(
    "--operator-version",
    type=click.Choice(operator_pods.VERSIONS),
    default=operator_pods.LATEST,
    show_default=True,
    help="The training operator's version.",
)
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
) -> int:
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
    output.verdicts(verdicts, as_json)
    return worst(item.state for item in verdicts).exit_code


def _not_modelled(one: kinds.Unknown) -> Verdict:
    """Return the verdict on an object whose pods are not looked at."""
    where = one.wrapper or f"{one.item.get('kind')}/{name_of(one.item)}"
    return Verdict(State.CANNOT_TELL, one.reason, [f"{where}: {one.prefix}{one.path or 'kind'}"])
