"""Check the path to the job's rendezvous hop by hop: names and ports, from its own pods."""

import itertools

from tools.cli.job import _options
from tools.core import State, Verdict, output, worst
from tools.job import rendezvous_check, status
from tools.job.snapshot import collect
from tools.kube import Kubectl


@_options.cluster
def command(kubectl: Kubectl, job: str | None, ephemeral: bool, as_json: bool) -> int:
    here, seen = collect.find(kubectl, job, logs=False, run=False, around=True)
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
    return state.exit_code


def _show(hop: Verdict, as_json: bool) -> None:
    if as_json:
        return
    output.line(f"{hop.state.value:<11}  {hop.details['hop']:<9}  {hop.summary}", state=hop.state)
    if hop.state is not State.PASS and hop.remedy:
        output.line(f"{'':<24}fix: {hop.remedy}")
