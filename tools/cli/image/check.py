"""Check a Dockerfile before it is built: matching versions, pins, secrets, user, signals."""

from tools.cli.image._options import arguments
from tools.core import State, output, repo
from tools.facts.instances import instance
from tools.image.rules.evaluate import Result, Target, evaluate, find, subject
from tools.image.rules.rule import rule


def command(
    what: str,
    root: str | None,
    given: tuple[str, ...],
    machine: str | None,
    driver: int | None,
    strict: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    kind = instance(machine) if machine else None
    target = find(what, root)
    result = evaluate(subject(target, arguments(given), kind, driver))
    if as_json:
        output.data(_as_data(result))
    else:
        _show(result, target, verbose)
    return 1 if strict and result.state is State.WARN else result.state.exit_code


def _show(result: Result, target: Target, verbose: bool) -> None:
    shown = (State.FAIL, State.CANNOT_TELL, State.WARN, State.PASS)
    failed, unknown, warned, passed = (result.of(state) for state in shown)
    answers = (
        f"{question}: {state.value}" + (f" ({counts})" if counts else "")
        for question, (state, counts) in result.answers.items()
    )
    output.line(f"{result.state.value}: {result.source}: {'; '.join(answers)}", state=result.state)
    if result.context != target.context:
        output.line(f"  context: {repo.shown(result.context)}, which has the sources of COPY; --context names one")
    for verdict in [*failed, *unknown, *warned, *(passed if verbose else [])]:
        output.rule_verdict(verdict, rule.all[verdict.details["rule"]].why)
    for note in result.remarks if verbose else []:
        output.line(f"  hadolint {note.level} {note.code}: {result.source}:{note.line}: {note.message}")
    if result.remarks and not verbose:
        output.line(f"  {output.count(len(result.remarks), 'remark')} of hadolint; -v prints them")
    if failed or warned:
        output.line(f"next: yard image fix {result.source}")


def _as_data(result: Result) -> dict[str, object]:
    return {
        "source": result.source,
        "context": str(result.context),
        "verdict": result.state.value,
        "answers": {question: state.value for question, (state, _) in result.answers.items()},
        "verdicts": [verdict.as_dict() for verdict in result.verdicts],
        "hadolint": None if result.notes is None else [note.__dict__ for note in result.notes],
    }
