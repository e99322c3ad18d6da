"""Check manifests by all rules before they are applied, offline."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.cells import knobs as cells_knobs
from tools.cells import kustomize, locate, published
from tools.cells.knobs import Knobs
from tools.cli import _knobs, _preflight_fix
from tools.cluster import fit
from tools.cluster import spec as specs
from tools.core import State, UserError, Verdict, output, repo, wait, worst
from tools.core.rules import PRACTICE, TRAINS, Question
from tools.image import start
from tools.kube import Kubectl, Manifests
from tools.kube.manifests import parse, read
from tools.preflight import live as preflight_live
from tools.preflight.evaluate import Evaluation, evaluate
from tools.preflight.rule import rule
from tools.prove import proofs
from tools.workload import kinds

RENDERED_AT_ONCE = 4  # cells, each by a program that takes 0.1 s of a processor
SHOWN = (State.FAIL, State.CANNOT_TELL, State.WARN, State.PASS)


@_knobs.knobs
def command(
    cells: tuple[str, ...],
    every: bool,
    files: tuple[str, ...],
    knobs: Knobs,
    base: str | None,
    cluster: str | None,
    live: bool,
    namespace: str | None,
    context: str | None,
    proof: Path | None,
    fix: bool,
    words: str | None,
    image_config: bool,
    strict: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    if fix:
        if image_config or live or any(one is not None for one in (base, cluster, proof, words)):
            raise UserError("--fix takes no --base, --cluster, --live, --proof, --command and --image-config")
        if knobs:
            raise UserError(f"--fix repairs what is written: give no {knobs.arguments()[0]}")
        checked = _preflight_fix.run(
            cells, every, files, lambda one: _show(one, verbose), _as_data if as_json else None
        )
    else:
        described = None if base is None else published.read(base)
        sources = _manifests(cells, every, files)
        made = [cells_knobs.applied(manifests, knobs) for manifests in sources]
        given = [start.given(kinds.find(one).workloads, words, image_config) for one in made]
        known = None if cluster is None else specs.load(repo.project(), cluster)
        kubectl = _kubectl(context, namespace) if live else None
        checked = []
        for written, how in zip(made, given, strict=True):
            manifests, lost = preflight_live.with_runtimes(kubectl, written) if kubectl else (written, [])
            operator, right = preflight_live.operator(kubectl, manifests) if kubectl else ("", "")
            operator = operator or (fit.operator(known.directory) if known else "")
            one = evaluate(manifests, described, how, operator, right)
            one = one.with_more(fit.check(known, manifests)) if known else one
            one = one.with_more([*lost, *preflight_live.check(kubectl, manifests)]) if kubectl else one
            checked.append(one.with_more(proofs.check(proof, manifests, how)) if proof is not None else one)
        _print(checked, verbose, as_json)
    state = worst(one.state for one in checked)
    return 1 if strict and state is State.WARN else state.exit_code


def _kubectl(context: str | None, namespace: str | None) -> Kubectl:
    from tools.job.snapshot import lookup  # slow to import, and only --live needs it

    return lookup.in_namespace(Kubectl(context, namespace))


def _print(checked: list[Evaluation], verbose: bool, as_json: bool) -> None:
    if as_json:
        output.data([_as_data(one) for one in checked])
        return
    for one in checked:
        _show(one, verbose)
    if len(checked) > 1:
        _total(checked)


def _manifests(cells: tuple[str, ...], every: bool, files: tuple[str, ...]) -> list[Manifests]:
    """Return the manifests to check, each rendered or read once."""
    sources = [*files, *(cell for cell in cells if cell == "-")]
    named = [cell for cell in cells if cell != "-"]
    if every and named:
        raise UserError("give cells or --all, not both", "yard preflight --all")
    named = locate.cells() if every else named
    if not named and not sources:
        raise UserError("nothing to check: give a cell, --all, or a file with -f", "yard preflight --all")
    if sources.count("-") > 1:
        raise UserError("standard input can only be read once")
    manifests = _rendered(named) if named else []
    for name in sources:
        manifest = read(name)
        if not manifest.objects:
            raise UserError(f"{manifest.source}: contains no object")
        manifests.append(manifest)
    return manifests


def _rendered(names: list[str]) -> list[Manifests]:
    renderer, paths = kustomize.ensure(repo.root(), output.note), [locate.cell_path(name) for name in names]
    say = wait.sparing(output.note)
    manifests = []
    with ThreadPoolExecutor(RENDERED_AT_ONCE) as pool:
        pool.submit(lambda: rule.all)  # import the rules while the first cell renders
        for path, text in zip(paths, pool.map(renderer.build, paths), strict=True):
            manifests.append(parse(text, repo.shown(path)))
            if len(manifests) < len(paths):
                say(f"rendered {len(manifests)} of {output.count(len(paths), 'cell')}")
    return manifests


def _show(one: Evaluation, verbose: bool) -> None:
    failed, unknown, warned, passed = (one.of(state) for state in SHOWN)
    output.line(f"{one.state.value}: {one.source}: {_summary(one)}", state=one.state)
    for verdict in [*failed, *unknown, *warned, *(passed if verbose else [])]:
        output.rule_verdict(verdict, _reason(verdict))
    if one.needs and (verbose or failed or unknown):
        output.line(f"  needs from the cluster: {', '.join(one.needs)}")


def _reason(verdict: Verdict) -> str:
    name = str(verdict.details["rule"])
    found = rule.all.get(name)
    reasons = {proofs.RULE: proofs.REASON, preflight_live.RULE: preflight_live.REASON}
    return found.why if found else reasons.get(name, fit.REASON)


def _summary(one: Evaluation) -> str:
    """Return both answers, and what was judged, in one line."""
    failed, unknown, warned = (len(one.of(state)) for state in SHOWN[:3])
    faults = [output.count(failed, "fault")] if failed else []
    faults += [f"{unknown} unknown"] if unknown else []
    warnings = [output.count(warned, "warning")] if warned else []
    answers = {
        TRAINS.value: _answer(one, TRAINS, faults),
        PRACTICE.value: _answer(one, PRACTICE, warnings),
        "judged": _kinds(one.judged),
        "not judged": _kinds(one.unjudged),
    }
    return "; ".join(f"{name}: {answer}" for name, answer in answers.items())


def _answer(one: Evaluation, question: Question, counts: list[str]) -> str:
    return one.answered(question) + (f" ({', '.join(counts)})" if counts else "")


def _kinds(counts: Mapping[str, int]) -> str:
    return ", ".join(output.count(count, kind) for kind, count in counts.items()) or "nothing"


def _total(checked: list[Evaluation]) -> None:
    states = [one.state for one in checked]
    counts = {state: states.count(state) for state in SHOWN}
    listed = ", ".join(f"{count} {state.value}" for state, count in counts.items() if count)
    output.line(f"{output.count(len(checked), 'manifest')}: {listed}")


def _as_data(one: Evaluation) -> dict[str, object]:
    return {
        "source": one.source,
        "verdict": one.state.value,
        "answers": {question.value: one.answered(question) for question in Question},
        "judged": one.judged,
        "not_judged": one.unjudged,
        "needs": one.needs,
        "verdicts": [verdict.as_dict() for verdict in one.verdicts],
    }
