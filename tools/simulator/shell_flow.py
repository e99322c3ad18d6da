"""The lists, pipes, conditions and loops of a shell whose script is followed."""

import contextlib
import fnmatch
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tools.simulator import shell
from tools.simulator.expansion import MARK, Scope
from tools.simulator.shell import Node, beginning, statements, written
from tools.simulator.shell_builtins import Builtins
from tools.simulator.shell_run import BACKGROUND, MAYBE, Break, Exit, Run

_ENDS = ("exit", "return", "break", "continue")
_CONSTANT = ("true", ":", "false", "[ 1 ]", "((1))", "[[ 1 ]]")
MOST_TURNS = 8  # turns of a loop that are followed one by one
Alternative = Callable[[], int | None]


class Flow(Builtins):
    """Which of a script's commands run, as far as that is known."""

    def __init__(self, run: Run, scope: Scope) -> None:
        super().__init__(run, scope)
        self.testing = 0
        self.functions: dict[str, Node] = {}

    @abstractmethod
    def simple(self, statement: Node) -> int | None:
        """Run a simple command, and return its status."""

    def run_body(self, body: Sequence[Node]) -> int | None:
        status: int | None = 0
        for statement in body:
            status = self._background(statement) if statement.get("Background") else self._joined(statement)
            self.scope.status = status
        return status

    def _background(self, statement: Node) -> int:
        with self.inside(BACKGROUND):
            self.in_background = self._in_copy(partial(self._joined, statement))
        return 0

    def _in_copy(self, run: Alternative) -> int | None:
        """Run a part in a process of its own: its variables and its exit stay there."""
        kept = self.scope
        self.scope = kept.copy()
        try:
            return run()
        except Exit as end:
            return end.status
        finally:
            self.scope = kept

    @contextlib.contextmanager
    def _tests(self, is_test: bool = True) -> Iterator[None]:
        """Run commands whose failure `set -e` does not count."""
        self.testing += is_test
        try:
            yield
        finally:
            self.testing -= is_test

    def _joined(self, statement: Node) -> int | None:
        status: int | None = 0
        pipelines = shell.joined(statement)
        last = len(pipelines) - 1
        for index, (operator, pipeline) in enumerate(pipelines):
            if (operator == "&&" and status not in (0, None, MAYBE)) or (operator == "||" and status == 0):
                continue
            with self._tests(index < last):
                ends = operator == "&&" and status is None and written(pipeline).startswith(_ENDS)
                if status == MAYBE or ends or (operator == "||" and status is None):
                    before = pipelines[index - 1][1]
                    self._maybe(f"`{beginning(before)}`", [partial(self._pipeline, pipeline)])
                    continue
                status = self._pipeline(pipeline)
            failed = status not in (0, None, MAYBE) and index == last and not pipeline.get("Negated")
            if failed and "errexit" in self.options and not self.testing:
                raise Exit(status)
        return status

    def _pipeline(self, statement: Node) -> int | None:
        negated = bool(statement.get("Negated"))
        commands = shell.piped(statement)
        if len(commands) > 1:
            status = self._pipe(commands)
        else:
            with self.inside("!" if negated else ""), self._tests(negated):
                status = self.command(statement)
        return status if status in (None, MAYBE) or not negated else int(status == 0)

    def _pipe(self, commands: list[Node]) -> int | None:
        with self.inside("a pipe"):
            statuses = [self._in_copy(partial(self.command, command)) for command in commands]
        self.scope.arrays["PIPESTATUS"] = [str(status or 0) for status in statuses]
        failed = [status for status in statuses if status not in (0, None)]
        return failed[-1] if failed and "pipefail" in self.options else statuses[-1]

    def command(self, statement: Node) -> int | None:
        self.run.step()
        command = statement.get("Cmd") or {"Type": "CallExpr"}
        match command["Type"]:
            case "CallExpr":
                return self.simple(statement)
            case "DeclClause":
                return self.declare(command)
            case "ArithmCmd" | "LetClause":
                return self.calculated(command.get("Exprs") or [command["X"]])
            case "TestClause":
                return self.double(command["X"])
            case "Block":
                with self.inside("a group"):
                    return self.run_body(statements(command))
            case "Subshell":
                with self.inside("a subshell"):
                    return self._in_copy(partial(self.run_body, statements(command)))
            case "TimeClause":
                with self.inside("time"):
                    return self._pipeline(command["Stmt"]) if "Stmt" in command else 0
            case "CoprocClause":
                return self._background(command["Stmt"])
            case "IfClause":
                with self.inside("if"):
                    return self._if(command)
            case "WhileClause" | "ForClause":
                return self._loop(command)
            case "CaseClause":
                return self._case(command)
            case "FuncDecl":
                self.functions[command["Name"]["Value"]] = command["Body"]
        return 0

    def _if(self, command: Node) -> int | None:
        """Run an `if`, an `elif`, or an `else`, which has no condition."""
        condition = statements(command, "Cond")
        status = self._tested(condition)
        if status not in (None, MAYBE):
            branch = command if status == 0 else command.get("Else")
            return (self.run_body(statements(branch, "Then")) if status == 0 else self._if(branch)) if branch else 0
        bodies = []
        rest: Node | None = command
        while rest:
            bodies.append(statements(rest, "Then"))
            every, rest = not rest.get("Cond"), rest.get("Else")
        return self._maybe(f"`{beginning(*condition)}`", [partial(self.run_body, body) for body in bodies], every)

    def _tested(self, condition: Sequence[Node]) -> int | None:
        with self._tests():
            return self.run_body(condition)

    def _loop(self, command: Node) -> int | None:
        body = partial(self.run_body, statements(command, "Do"))
        if command["Type"] == "ForClause":
            with self.inside(f"a {'select' if command.get('Select') else 'for'} loop"):
                return self._for(command["Loop"], body)
        ends_with = int(not command.get("Until"))
        with self.inside("an until loop" if command.get("Until") else "a while loop"):
            condition = statements(command, "Cond")
            status = self._tested(condition)
            if status in (None, MAYBE):
                return self._maybe(f"the loop at `{beginning(*condition)}`", [body])
            if min(status or 0, 1) == ends_with:
                return 0
            try:
                body()
            except Break:
                return 0
            self.run.undecided = True  # how it ends depends on the next turn
            words = {word for command in shell.simple_commands(statements(command, "Do")) for word in command[:1]}
            if beginning(*condition) in _CONSTANT and words.isdisjoint((*_ENDS, "exec", "kill")):
                raise Exit(None)  # nothing behind it runs
            return None

    def _for(self, loop: Node, body: Alternative) -> int | None:
        if loop["Type"] != "WordIter":
            return self._maybe("the loop over ((", [body])
        name = loop["Name"]["Value"]
        items = [word for one in loop.get("Items", ()) for word in self.scope.words(one)]
        if not loop.get("InPos"):
            items = list(self.scope.arguments)
        if not items:
            return 0
        if len(items) > MOST_TURNS or any(MARK.search(item) for item in items):
            self.scope.values[name] = self.scope.mark(f"${name}", "a loop sets it")
            return self._maybe(f"the loop over {name}", [body])
        status = None
        with contextlib.suppress(Break):
            for self.scope.values[name] in items:
                status = body()
            return status
        return 0

    def _case(self, command: Node) -> int | None:
        with self.inside("case"):
            value = self.scope.text(command["Word"])
            arms = command.get("Items", ())
            if MARK.search(value) or len(value) > 4096:
                runs = [partial(self.run_body, statements(one)) for one in arms]
                return self._maybe(f"`case {self.scope.shown(value)[:40]}`", runs)
            for arm in arms:
                for pattern in map(self.scope.text, arm["Patterns"]):
                    if pattern.count("*") <= 3 and fnmatch.fnmatchcase(value, pattern):
                        return self.run_body(statements(arm))
            return 0

    def _maybe(self, reason: str, runs: Sequence[Alternative], every: bool = False) -> int | None:
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
