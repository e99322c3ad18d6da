"""What one container starts: its launcher, what becomes of SIGTERM, and whether a failure is seen.

The command is followed through shells, scripts and prefixes (`script`), and its launcher is read in
torchrun's terms (`launchers`). Nothing is run. What cannot be known without the pod is said.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath

from tools.simulator import launchers, script
from tools.simulator.environment import Environment
from tools.simulator.expansion import MARK, Scope
from tools.simulator.prefixes import AGENT, ENTRYPOINTS, PYTHON, TABLE, python_module
from tools.simulator.script import Outcome
from tools.simulator.shell import SHELLS
from tools.simulator.shell_run import ENDLESS, Started
from tools.simulator.torchrun import BadOptions, Torchrun, UnknownOptions


@dataclass(frozen=True)
class Launch:
    """What one container starts.

    `torchrun` is set if a launcher starts ranks; without it, python starts itself. `unknown` says what
    prevents an answer. `environment` is what the launcher gets, without the variables in `unsure`, whose
    values are not known. `code`: it is `python -c`, which is not read. `idle`: none of its programs trains.

    `signalled` says whether the launcher gets the SIGTERM that the container gets, None if that is not known,
    and `why` gives the reason. `lost` says why the container's exit code hides a failure of the launcher.
    """

    words: list[str]
    environment: dict[str, str]
    torchrun: Torchrun | None = None
    unknown: str = ""
    shown: str = ""
    launcher: str = ""
    signalled: bool | None = None
    why: str = ""
    lost: str = ""
    behind_entrypoint: bool = False
    unsure: Mapping[str, str] = field(default_factory=dict)
    effort: int = 0
    code: bool = False
    idle: bool = False


def read(
    command: Sequence[str],
    environment: Mapping[str, str],
    files: Mapping[str, str | None] | None = None,
    devices: int = 0,
    complete: bool = False,
    plain: Set[str] = frozenset(),
    resolved: Environment | None = None,
) -> Launch:
    """Follow a container's command under its environment. `resolved` says which variables are hidden.

    `files` are the files that the manifest gives the container, by path, and `plain` those without permission to
    execute them. `devices` is its number of GPUs; `complete` says that the environment has the image's own
    variables. Raises BadOptions when a launcher would refuse its options, or the command cannot start.
    """
    shown = " ".join(command)
    follow = partial(script.follow, command, environment, files or {}, complete, plain=plain, resolved=resolved)
    outcome = follow()
    if outcome.refused:
        raise BadOptions(outcome.refused)
    index, unknown = _main(outcome)
    if index is None:
        code = bool(outcome.programs) and not outcome.unreadable and _is_code(outcome, -1)
        idle = bool(command) and not (outcome.unreadable or code or unfamiliar(outcome))
        return Launch(list(command), dict(environment), unknown=unknown, shown=shown, code=code, idle=idle)
    started = outcome.programs[index]
    launcher, rest = launchers.kind(started.words)
    scope = outcome.scope
    unsure = {name: explained(scope, value) for name, value in started.environment.items() if MARK.search(value)}
    torchrun = None
    try:
        if launcher not in ("python", ""):
            known, explain = {**(files or {}), **scope.files}, partial(explained, scope)
            torchrun = launchers.options(launcher, rest, started.environment, known, devices, explain)
    except UnknownOptions as problem:
        unknown = f"{problem}"
    gets, why = signalled(started)
    return Launch(
        words=[scope.shown(word) for word in started.words],
        torchrun=torchrun,
        unknown=unknown,
        shown=shown,
        environment={name: value for name, value in started.environment.items() if name not in unsure},
        launcher=torchrun.launcher if torchrun else PurePosixPath(started.words[0]).name,
        signalled=gets,
        why=why,
        lost=_lost(outcome, follow, index),
        unsure=unsure,
        effort=outcome.effort,
        behind_entrypoint=any(parent.name in (ENTRYPOINTS[0], AGENT) for parent in started.parents),
    )


def explained(scope: Scope, text: str) -> str:
    """Return a text with marks as the script has it, and why its value is not known."""
    return f"{scope.shown(text)[:80]}: {scope.why(text)}"


def _main(outcome: Outcome) -> tuple[int | None, str]:
    """Return the index of the program that trains, or why it is not known."""
    found = [(index, launchers.kind(one.words)[0]) for index, one in enumerate(outcome.programs)]
    starting = [index for index, kind in found if kind not in ("", "python")]
    starting = [index for index in starting if found[index][1] != "sshd"] or starting
    if not starting and outcome.unreadable:
        return None, f"the script is not followed: {outcome.unreadable}"
    if not starting:
        pythons = [index for index, kind in found if kind == "python"]
        starting = ([index for index in pythons if not outcome.programs[index].condition] or pythons)[-1:]
        files = [index for index, _ in found if _is_file(outcome, index)]
        if files and (not starting or files[-1] > starting[0]):
            starting = files[-1:]
    if not starting:
        return None, _nothing(outcome)
    if len({tuple(outcome.programs[index].words[:-1]) for index in starting}) > 1:
        return None, _several(outcome, starting)
    # Of equal ones, such as the turns of a loop, one that starts in any case.
    index = next((one for one in reversed(starting) if not outcome.programs[one].condition), starting[-1])
    started = outcome.programs[index]
    if started.condition:
        name = PurePosixPath(started.words[0]).name
        said = outcome.scope.shown(started.condition)
        return None, f"whether {name} starts depends on what only the pod knows: {said}"
    if _is_file(outcome, index):
        words = started.words
        shell_ = PurePosixPath(words[0]).name in SHELLS and len(words) > 1
        path = outcome.scope.shown(words[1] if shell_ else words[0])
        return None, f"it runs {path[:80]}, a file of the image"
    return index, ""


def _is_file(outcome: Outcome, index: int) -> bool:
    """Return whether a program is a shell script that the manifest does not have."""
    words = outcome.programs[index].words
    return PurePosixPath(words[0]).name in SHELLS or words[0].endswith(".sh")


def _is_code(outcome: Outcome, index: int) -> bool:
    """Return whether a program is `python -c`, which mostly asks for a value, but may be the training."""
    words = outcome.programs[index].words
    return bool(PYTHON.fullmatch(PurePosixPath(words[0]).name)) and python_module(words[1:])[1][:1] == ["-c"]


def _nothing(outcome: Outcome) -> str:
    names = [PurePosixPath(one.words[0]).name for one in outcome.programs]
    if outcome.programs and _is_code(outcome, -1):
        return f"{names[-1]} -c runs code that is written in the command, and it is not read"
    other = unfamiliar(outcome)
    if other and MARK.search(other[-1].words[0]):
        return f"its program is {explained(outcome.scope, other[-1].words[0])}"
    if other:
        name_ = outcome.scope.shown(other[-1].words[0])[:80]
        return f"{name_} is neither torchrun nor python, nor another known launcher"
    if outcome.programs:
        return f"no program in it trains ({', '.join(dict.fromkeys(names[-3:]))})"
    return "an empty command"


def unfamiliar(outcome: Outcome) -> list[Started]:
    """Return the programs that may train."""
    return [one for one in outcome.programs if PurePosixPath(one.words[0]).name not in TABLE["harmless"]]


def _several(outcome: Outcome, indices: list[int]) -> str:
    programs = [outcome.programs[index] for index in indices]
    names = list(dict.fromkeys(PurePosixPath(one.words[0]).name for one in programs))
    conditions = [one.condition for one in programs if one.condition]
    if conditions:
        said = outcome.scope.shown(conditions[0])
        return f"which {' or '.join(names)} starts depends on what only the pod knows: {said}"
    return f"it starts several launchers with different options ({', '.join(names)}, {len(programs)} times)"


def signalled(started: Started) -> tuple[bool | None, str]:
    """Follow SIGTERM from process 1 down to a program: whether it arrives (None if unknown), and why."""
    for parent in started.parents:
        if parent.forwards == "all":
            return True, f"{parent.name} passes SIGTERM on to all processes"
        if parent.forwards == "unknown":
            return None, f"{parent.name} may stay above it: {parent.why}"
        if parent.forwards == "no":
            return False, f"{parent.name} stays above it ({parent.why}) and does not pass SIGTERM on"
    if started.parents:
        return True, f"{started.parents[-1].name} passes SIGTERM on to it"
    return True, "it is process 1"


def _lost(outcome: Outcome, follow: Callable[..., Outcome], index: int) -> str:
    """Return why the container ends with 0 although the launcher has failed, or an empty text."""
    started = outcome.programs[index]
    after = outcome.programs[index + 1 :]
    if any(one.words[:2] in ENDLESS for one in after):
        return f"the script continues with `{' '.join(after[-1].words[:2])}`, and the pod never ends"
    if started.background and not started.waited:
        return "it runs in the background, and the script ends without waiting for it"
    failed = follow(fails=index)
    if failed.unreadable or failed.undecided or failed.status not in (0, None):
        return ""
    if started.background:
        return "`wait` without a process number returns 0"
    if any(parent.why == "a pipe" for parent in started.parents):
        return "a pipe has the exit code of its last command, without `set -o pipefail`"
    return "the script has the exit code of a later command (`|| true`, or no `set -e`)"
