"""The lists, pipes, conditions and loops of a shell whose script is followed."""

import contextlib
import fnmatch
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from tools.simulator import shell
from tools.simulator.expansion import MARK, Scope
from tools.simulator.shell import Body, Command, Simple
from tools.simulator.shell_builtins import Builtins
from tools.simulator.shell_lexer import NAME
from tools.simulator.shell_run import BACKGROUND, MAYBE, Break, Exit, Run

_ENDS = frozenset(("exit", "return", "break", "continue"))


MOST_TURNS = 8  # turns of a loop that are followed one by one


class Flow(Builtins):
    """Which of a script's commands run, as far as that is known."""

    def __init__(self, run: Run, scope: Scope) -> None:
        super().__init__(run, scope)
        self.testing = 0
        self.functions: dict[str, Command] = {}

    @abstractmethod
    def simple(self, command: Simple) -> int | None:
        """Run a simple command, and return its status."""

    def run_body(self, body: Body) -> int | None:
        status: int | None = 0
        for item in body.items:
            status = self._and_or(item)
            self.scope.status = status
        return status

    def _and_or(self, item: shell.AndOr) -> int | None:
        if item.background:
            with self.inside(BACKGROUND):
                self.in_background = self._in_copy(partial(self._joined, item))
            return 0
        return self._joined(item)

    def _in_copy(self, run: Callable[[], int | None]) -> int | None:
        """Run a part in a process of its own: its variables and its exit stay there."""
        kept = self.scope
        self.scope = kept.copy()
        try:
            return run()
        except Exit as end:
            return end.status
        finally:
            self.scope = kept

    def _joined(self, item: shell.AndOr) -> int | None:
        status: int | None = 0
        last = len(item.pipelines) - 1
        for index, (operator, pipeline) in enumerate(item.pipelines):
            if (operator == "&&" and status not in (0, None, MAYBE)) or (operator == "||" and status == 0):
                continue
            self.testing += index < last
            try:
                ends = operator == "&&" and status is None and source_of(pipeline).split(" ")[0] in _ENDS
                if status == MAYBE or ends or (operator == "||" and status is None):
                    before = item.pipelines[index - 1][1]
                    self._maybe(f"`{beginning(before)}`", [partial(self._pipeline, pipeline)])
                    continue
                status = self._pipeline(pipeline)
            finally:
                self.testing -= index < last
            failed = status not in (0, None, MAYBE) and index == last and not pipeline.negated
            if failed and "errexit" in self.options and not self.testing:
                raise Exit(status)
        return status

    def _pipeline(self, pipeline: shell.Pipeline) -> int | None:
        if len(pipeline.commands) == 1:
            with self.inside("time" if pipeline.timed else "!" if pipeline.negated else ""):
                self.testing += pipeline.negated
                try:
                    status = self.command(pipeline.commands[0])
                finally:
                    self.testing -= pipeline.negated
        else:
            status = self._pipe(pipeline.commands)
        return status if status in (None, MAYBE) or not pipeline.negated else int(status == 0)

    def _pipe(self, commands: list[Command]) -> int | None:
        with self.inside("a pipe"):
            statuses = [self._in_copy(partial(self.command, command)) for command in commands]
        self.scope.arrays["PIPESTATUS"] = [str(status or 0) for status in statuses]
        failed = [status for status in statuses if status not in (0, None)]
        return failed[-1] if failed and "pipefail" in self.options else statuses[-1]

    def command(self, command: Command) -> int | None:
        self.run.step()
        match command:
            case Simple():
                return self.simple(command)
            case shell.Group(body, subshell):
                return self._group(body, subshell)
            case shell.If():
                return self._if(command)
            case shell.Loop():
                return self._loop(command)
            case shell.Case():
                return self._case(command)
            case shell.Function(name):
                self.functions[name] = command.body
        return 0

    def _group(self, body: Body, subshell: bool) -> int | None:
        with self.inside("a subshell" if subshell else "a group"):
            return self._in_copy(partial(self.run_body, body)) if subshell else self.run_body(body)

    def _if(self, command: shell.If) -> int | None:
        with self.inside("if"):
            for index, (condition, body) in enumerate(command.branches):
                status = self._tested(condition)
                if status in (None, MAYBE):
                    rest = [body for _, body in command.branches[index:]]
                    runs = [partial(self.run_body, body) for body in [*rest, command.otherwise]]
                    return self._maybe(f"`{beginning(condition)}`", runs, every=bool(command.otherwise.items))
                if status == 0:
                    return self.run_body(body)
            return self.run_body(command.otherwise)

    def _tested(self, condition: Body) -> int | None:
        self.testing += 1
        try:
            return self.run_body(condition)
        finally:
            self.testing -= 1

    def _loop(self, command: shell.Loop) -> int | None:
        with self.inside(f"a {command.kind} loop"):
            if command.kind in ("while", "until"):
                status = self._tested(command.condition)
                decided = status not in (None, MAYBE)
                if decided and (status == 0) != (command.kind == "while"):
                    return 0
                if decided:
                    try:
                        self.run_body(command.body)
                    except Break:
                        return 0
                    self.run.undecided = True  # how it ends depends on the next turn
                    return None
                said = f"the loop at `{beginning(command.condition)}`"
            else:
                items = [word for raw in command.words for word in self.scope.words(raw)]
                known = re.fullmatch(NAME, command.name) and not any(MARK.search(item) for item in items)
                if known and not items:
                    return 0
                self.scope.values[command.name] = (
                    items[0] if known else self.scope.mark(f"${command.name}", "a loop sets it")
                )
                said = f"the loop over {command.name}"
                if known and len(items) <= MOST_TURNS:
                    status = None
                    with contextlib.suppress(Break):
                        for self.scope.values[command.name] in items:
                            status = self.run_body(command.body)
                        return status
                    return 0
            return self._maybe(said, [partial(self.run_body, command.body)])

    def _case(self, command: shell.Case) -> int | None:
        with self.inside("case"):
            value = self.scope.text(command.word)
            if MARK.search(value) or len(value) > 4096:
                runs = [partial(self.run_body, body) for _, body in command.arms]
                return self._maybe(f"`case {self.scope.shown(value)[:40]}`", runs)
            for patterns, body in command.arms:
                for pattern in (self.scope.text(raw) for raw in patterns):
                    if pattern.count("*") <= 3 and fnmatch.fnmatchcase(value, pattern):
                        return self.run_body(body)
            return 0

    def _maybe(self, reason: str, runs: Sequence[Callable[[], int | None]], every: bool = False) -> int | None:
        """Run alternatives of which only the pod knows the right one. Keep what is equal after all."""
        before = self.scope
        after = [] if every else [before.copy()]
        self.run.undecided = True
        for run in runs:
            self.scope = before.copy()
            self.run.conditions.append(reason)
            try:
                run()
            except Break:
                pass
            except Exit as end:
                if end.status in (0, None):
                    self.run.may_end = f"the script may end before it: {reason}"
                continue
            finally:
                self.run.conditions.pop()
                branch, self.scope = self.scope, before
            after.append(branch)
        for name in {name for scope in after for name in scope.values}:
            values = {scope.values.get(name) for scope in after}
            if len(values) > 1:
                before.values[name] = before.mark(f"${name}", f"it depends on {reason}")
            else:
                before.values[name] = values.pop() or ""
        for scope in after:
            before.exported |= scope.exported
            before.arrays.update({name: item for name, item in scope.arrays.items() if name not in before.arrays})
            before.sourced = before.sourced or scope.sourced
        return None


def beginning(part: Body | shell.Pipeline) -> str:
    """Return the beginning of a condition as it is written."""
    return source_of(part)[:60]


def source_of(part: object) -> str:
    """Return the words of a part of a script in their order."""
    match part:
        case Simple(words=words):
            return " ".join(words)
        case shell.Pipeline(commands=commands):
            return " | ".join(map(source_of, commands))
        case shell.AndOr(pipelines=pipelines):
            return " ".join(f"{operator} {source_of(one)}".strip() for operator, one in pipelines)
        case Body(items=items):
            return "; ".join(map(source_of, items))
        case shell.Group(body=body) | shell.Loop(body=body):
            return source_of(body)
        case shell.If(branches=branches):
            return "; ".join(f"{source_of(condition)}; {source_of(body)}" for condition, body in branches)
        case shell.Case(arms=arms):
            return "; ".join(source_of(body) for _, body in arms)
    return ""
