"""Follow the way to the job's rendezvous hop by hop: names and ports, as its own pods see them.

First what the API server tells: the pod that all meet at, its Service, the endpoints, the NetworkPolicies.
Then from each pod that runs: the cluster's DNS, the host's name, its port. Where containers do not run (they
crash before one can look), --ephemeral adds one to their pods, which stays there and ends by itself.

\b
Examples:
  yard job debug cpu-llama-tiny-train
  yard job debug --ephemeral -n team-a
  yard job debug --json

\b
Exit codes: 0 every hop is good, 1 one is not, 3 one could not be looked at.
"""

from __future__ import annotations

import click

from tools.cli.job import _options
from tools.core import output
from tools.core.verdict import State, Verdict
from tools.job import rendezvous_check
from tools.job.snapshot import collect, lookup
from tools.kube.kubectl import Kubectl


@click.command(help=__doc__, short_help="names and ports, hop by hop from the pods")
@_options.job
@_options.cluster
@click.option("--ephemeral", is_flag=True, help="Add a container to pods whose own does not run.")
@_options.as_json
def command(kubectl: Kubectl, job: str | None, ephemeral: bool, as_json: bool) -> None:
    seen = collect.collect(kubectl, lookup.job_name(kubectl, job), logs=False, run=False)
    here = Kubectl(kubectl.context, seen.namespace)
    found: list[Verdict] = []
    if not as_json:
        output.line(f"{seen.namespace}/{seen.name} ({seen.uid})")
    for one in rendezvous_check.told(seen, rendezvous_check.slices(here, seen)):
        found.append(one)
        _show(one, as_json)
    sources = rendezvous_check.sources(here, seen, ephemeral, output.note)
    for one in rendezvous_check.tried(here, seen, sources, output.note):
        found.append(one)
        _show(one, as_json)
    if not sources:
        found.append(Verdict(State.CANNOT_TELL, "no container runs to look from", details={"hop": "look"}))
        _show(found[-1], as_json)
        output.note("--ephemeral looks from the pods all the same, where they have a node")
    state = next((one for one in (State.FAIL, State.CANNOT_TELL) if _any(found, one)), State.PASS)
    if as_json:
        hops_found = [one.as_dict() for one in found]
        output.data({"job": seen.name, "uid": seen.uid, "verdict": state.value, "hops": hops_found})
    raise click.exceptions.Exit(state.exit_code)


def _any(found: list[Verdict], state: State) -> bool:
    return any(one.state is state for one in found)


def _show(one: Verdict, as_json: bool) -> None:
    if as_json:
        return
    output.line(f"{one.state.value:<11}  {one.details['hop']:<9}  {one.summary}")
    if one.state is State.FAIL and one.remedy:
        output.line(f"{'':<24}what to do: {one.remedy}")
