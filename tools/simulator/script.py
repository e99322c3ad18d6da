"""Follow a container's command to the programs that it starts, without running anything.

Shell scripts are followed with their variables, conditions, functions and files. A condition that only the
pod can decide leaves what depends on it unknown. Programs are assumed to succeed, unless `fails` names one:
then the exit status of the whole command shows whether a failure would be seen.

Which process is number 1, and which one gets SIGTERM, follows the shells' own rules: `bash -c` replaces
itself by the last simple command (`shell.final`), dash does not, and a script in a file does not. Measured
with bash 5.2 and dash 0.5.12.
"""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import PurePosixPath

from tools.simulator.environment import REFERENCE, Environment
from tools.simulator.expansion import LARGEST, Budget, Scope
from tools.simulator.shell import SHELLS, Unreadable
from tools.simulator.shell_process import Shell
from tools.simulator.shell_run import Exit, NotStarted, Run, Started

NAMED = re.compile(r"[A-Z_][A-Z0-9_]*")  # a variable that Kubernetes has not replaced


@dataclass
class Outcome:
    """The programs in the order in which they start, and the exit status of the command.

    `undecided`: the status depends on what only the pod knows. `unreadable` says what could not be followed,
    and `refused` why the command does not start.
    """

    programs: list[Started]
    scope: Scope
    status: int | None = None
    undecided: bool = False
    unreadable: str = ""
    refused: str = ""
    effort: int = 0  # commands that were followed, and words of about their cost


def follow(
    words: Sequence[str],
    environment: Mapping[str, str],
    files: Mapping[str, str | None],
    complete: bool = False,
    fails: int | None = None,
    plain: Set[str] = frozenset(),
    resolved: Environment | None = None,
) -> Outcome:
    """Return the programs that a command starts.

    `files` are those of the manifest by path; None is a file whose text is not known. `complete`: the
    environment has the image's own variables. `fails` is the index of the program that fails.
    `plain` are the files that cannot be executed. `resolved` says which variables are hidden.
    """
    run, seen = Run(dict(files), fails, plain), resolved or Environment()
    values = {name: value.replace("\0", "") for name, value in environment.items()}
    scope = Scope(Budget(), values, {*values, *seen.hidden}, complete=complete, files=run.files, sourced=seen.unread)
    values |= {name: scope.mark(f"${name}", reason) for name, reason in seen.hidden.items()}
    values |= {name: _marked(value, scope, seen, False) for name, value in values.items()}
    is_script = any(PurePosixPath(word).name in SHELLS for word in words)
    result = Outcome(run.programs, scope)
    try:
        given = [_marked(word.replace("\0", ""), scope, seen, is_script) for word in words]
        result.status = Shell(run, scope, (), "").program(given, ())
    except Exit as end:
        result.status = end.status
    except (Unreadable, RecursionError) as reason:
        result.unreadable = str(reason) if isinstance(reason, Unreadable) else "it is nested too deeply"
    except NotStarted as reason:
        result.refused = str(reason)
    result.undecided = run.undecided
    result.effort = run.steps + (LARGEST - scope.budget.left) // 64
    return result


def _marked(text: str, scope: Scope, seen: Environment, is_script: bool) -> str:
    """Return a text with marks for each `$(NAME)` whose value is outside of the manifest; a shell looks NAME up."""

    def mark(match: re.Match[str]) -> str:
        name = match[2] or ""
        if name in seen.hidden:
            return f"${{{name}}}" if is_script else scope.values[name]
        unread = seen.unread and not is_script and NAMED.fullmatch(name)
        return scope.mark(match[0], f"{seen.unread} may set it, which is not in the manifest") if unread else match[0]

    return REFERENCE.sub(mark, text)
