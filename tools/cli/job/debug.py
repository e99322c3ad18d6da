"""Check the path to the job's rendezvous hop by hop: names and ports, from its own pods.

First the command checks what the API server describes: the pod where all ranks meet, its Service, the
endpoints and the NetworkPolicies. Then it checks the cluster's DNS, the host's name and its port from each
running pod. --ephemeral adds a container to pods whose own container crashes too early; that container ends
by itself and stays in the pod's list.

\b
Examples:
  yard job debug cpu-llama-tiny-train
  yard job debug --ephemeral -n team-a
  yard job debug --json

\b
Exit codes: 0 every hop passes, 1 one fails, 3 one is unknown.
"""

import itertools

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.verdict import State, Verdict, worst
from tools.job import rendezvous_check, status
from tools.job.snapshot import collect
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="check the rendezvous hop by hop from the pods")
@_options.job
@_options.cluster
@click.option("--ephemeral", is_flag=True, help="Add a container to pods whose own is not running.")
@_options.as_json
def command(kubectl: Kubectl, job: str | None, ephemeral: bool, as_json: bool) -> None:
    here, seen = collect.find(kubectl, job, logs=False, run=False)
    rendezvous_check.rendezvous(seen)  # an error comes before the first line
    if not as_json:
        output.line(status.header(seen))
    objects = rendezvous_check.check_objects(seen, rendezvous_check.slices(here, seen))
    hops: list[Verdict] = []
    for hop in objects:
        hops.append(hop)
        _show(hop, as_json)
    sources = rendezvous_check.sources(here, seen, ephemeral, output.note)
    nowhere = Verdict(State.CANNOT_TELL, "no container is running to check from", details={"hop": "look"})
    from_pods = rendezvous_check.check_from_pods(here, seen, sources, output.note)
    for hop in itertools.chain(from_pods, [] if sources else [nowhere]):
        hops.append(hop)
        _show(hop, as_json)
    if not sources:
        output.note("--ephemeral adds a container to pods that have a node, and checks from there")
    state = worst(hop.state for hop in hops)
    if as_json:
        found = [hop.as_dict() for hop in hops]
        output.data({"job": seen.name, "uid": seen.uid, "verdict": state.value, "hops": found})
    raise click.exceptions.Exit(state.exit_code)


def _show(hop: Verdict, as_json: bool) -> None:
    if as_json:
        return
    output.line(f"{hop.state.value:<11}  {hop.details['hop']:<9}  {hop.summary}")
    if hop.state is not State.PASS and hop.remedy:
        output.line(f"{'':<24}fix: {hop.remedy}")
