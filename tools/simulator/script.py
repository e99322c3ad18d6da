"""Follow a container's command to the programs that it starts, without running anything.

Shell scripts are followed with their variables, conditions, functions and files. A condition that only the
pod can decide leaves what depends on it unknown. Programs are assumed to succeed, unless `fails` names one:
then the exit status of the whole command shows whether a failure would be seen.

Which process is number 1, and which one gets SIGTERM, follows the shells' own rules: `bash -c` replaces
itself by the last simple command (`shell.final`), dash does not, and a script in a file does not. Measured
with bash 5.2 and dash 0.5.12.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from tools.simulator.expansion import LARGEST, Budget, Scope
from tools.simulator.shell import Unreadable
from tools.simulator.shell_process import Shell
from tools.simulator.shell_run import Exit, NotStarted, Run, Started


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
) -> Outcome:
    """Return the programs that a command starts.

    `files` are those of the manifest by path; None is a file whose text is not known. `complete`: the
    environment has the image's own variables. `fails` is the index of the program that fails.
    `plain` are the files that cannot be executed.
    """
    run = Run(dict(files), fails, plain)
    values = {name: value.replace("\0", "") for name, value in environment.items()}
    scope = Scope(Budget(), values, set(values), complete=complete, files=run.files)
    result = Outcome(run.programs, scope)
    try:
        result.status = Shell(run, scope, (), "").program([word.replace("\0", "") for word in words], ())
    except Exit as end:
        result.status = end.status
    except (Unreadable, RecursionError) as reason:
        result.unreadable = str(reason) if isinstance(reason, Unreadable) else "it is nested too deeply"
    except NotStarted as reason:
        result.refused = str(reason)
    result.undecided = run.undecided
    result.effort = run.steps + (LARGEST - scope.budget.left) // 64
    return result
