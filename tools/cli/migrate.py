"""Turn a PyTorchJob into a TrainJob of Kubeflow Trainer, with the proof that it is still one world.

Prints the objects of FILE with a TrainingRuntime and a TrainJob in place of the PyTorchJob. Command, image,
volumes and resources stay. The pods get the variables that the training operator gave them (RANK, WORLD_SIZE,
MASTER_ADDR, PET_RDZV_ENDPOINT and others) with the new names of the pods, because Trainer gives only five
PET_ variables. Then the launchers of the new pods are run here with a probe, as `yard wiring` does. What the
TrainJob does differently is said on standard error.

A job that cannot stay what it is, is refused with the reason: a Master that differs from its Workers, a label
that the new pods lack, a job that is not one world today.

\b
Examples:
  yard migrate -f job.yaml > trainjob.yaml
  yard migrate -f job.yaml | yard preflight -f -

\b
Exit codes: 0 it is one world, 1 it cannot or is not, 3 whether it is one world is unknown.
"""

import click

from tools.core import output
from tools.core.verdict import State
from tools.kube.manifests import read, written
from tools.new.trainjob import migrate
from tools.simulator import wiring, wiring_proof


@click.command(help=__doc__, short_help="turn a PyTorchJob into a TrainJob")
@click.option("-f", "--file", required=True, metavar="FILE", help="Read manifests from FILE (- for standard input).")
@click.option("--timeout", type=click.FloatRange(1), default=60, show_default=True, help="Seconds to wait for a world.")
@click.option("--json", "as_json", is_flag=True, help="Print objects, verdict and differences as JSON.")
def command(file: str, timeout: float, as_json: bool) -> None:
    made = migrate(read(file))
    analysis = wiring.analyse(made.job)
    verdict = wiring_proof.prove(analysis, None, None, timeout)
    if as_json:
        output.data({**verdict.as_dict(), "differences": made.said, "objects": made.manifests.objects}, raw=True)
    else:
        for text in made.said:
            output.note(text)
        if verdict.state is not State.FAIL:
            output.block(written(made.manifests.objects), raw=True)
        output.notes(f"{verdict.state.value}: {verdict.summary}")
        output.notes("\n".join(f"  {line}" for line in verdict.evidence))
    if verdict.state.exit_code:
        raise click.exceptions.Exit(verdict.state.exit_code)
