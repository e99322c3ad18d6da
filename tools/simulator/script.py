"""Follow a container's command to the programs that it starts, without running anything.

Shell scripts are followed with their variables, conditions, functions and files. A condition that only the
pod can decide leaves what depends on it unknown. Programs are assumed to succeed, unless `fails` names one:
then the exit status of the whole command shows whether a failure would be seen.

Which process is number 1, and which one gets SIGTERM, follows the shells' own rules: `bash -c` replaces
itself by the last simple command (`shell.final`), dash does not, and a script in a file does not. Measured
with bash 5.2 and dash 0.5.12.
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath

from tools.simulator import shell
from tools.simulator.expansion import LARGEST, MARK, Budget, Scope
from tools.simulator.prefixes import Parent, behind_prefixes
from tools.simulator.shell import ASSIGNMENT, NAME, SHELLS, Body, Command, Simple, Unreadable

MOST_STEPS = 5_000  # commands that are followed
DEEPEST = 12  # shells, functions and sourced files inside each other
# These files set no variable that a launcher reads.
ACTIVATION = re.compile(
    r".*(?:/activate|/conda\.sh|/setvars\.sh|\.bashrc|/\.profile|/etc/profile.*|/nvm\.sh)"
)
_DECLARE = frozenset(("export", "declare", "typeset", "local", "readonly"))
_FILE_TESTS = frozenset("abcdefghkprstuwxLOGSN")
_NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


@dataclass
class Started:
    """A program and what it gets. `condition` says on what it depends whether it starts."""

    words: list[str]
    environment: dict[str, str]
    condition: str = ""
    background: bool = False
    waited: bool = False
    parents: tuple[Parent, ...] = ()


@dataclass
class Outcome:
    """The programs in the order in which they start, and the exit status of the command.

    `undecided`: the status depends on what only the pod knows. `unreadable` says what could not be followed.
    """

    programs: list[Started]
    scope: Scope
    status: int | None = None
    undecided: bool = False
    unreadable: str = ""
    effort: int = 0  # commands that were followed, and words of about their cost


MAYBE = -1  # the status of a test that only the pod decides; None is a program's, assumed to be 0


class _Exit(Exception):
    def __init__(self, status: int | None) -> None:
        self.status = status


class _Return(_Exit):
    pass


class _Break(Exception):
    pass


@dataclass
class _Run:
    """What all shells of one command share."""

    files: dict[str, str | None]
    fails: int | None
    programs: list[Started] = field(default_factory=list)
    steps: int = 0
    undecided: bool = False
    conditions: list[str] = field(default_factory=list)
    may_end: str = ""

    def step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Unreadable(f"it runs more than {MOST_STEPS:,} commands")


def follow(
    words: Sequence[str],
    environment: Mapping[str, str],
    files: Mapping[str, str | None],
    complete: bool = False,
    fails: int | None = None,
) -> Outcome:
    """Return the programs that a command starts.

    `files` are those of the manifest by path; None is a file whose text is not known. `complete`: the
    environment has the image's own variables. `fails` is the index of the program that fails.
    """
    run = _Run(dict(files), fails)
    values = {name: value.replace("\0", "") for name, value in environment.items()}
    scope = Scope(Budget(), values, set(values), complete=complete, files=run.files)
    result = Outcome(run.programs, scope)
    try:
        result.status = _Shell(run, scope, (), "").program([word.replace("\0", "") for word in words], ())
    except _Exit as end:
        result.status = end.status
    except (Unreadable, RecursionError) as reason:
        result.unreadable = str(reason) if isinstance(reason, Unreadable) else "it is nested too deeply"
    result.undecided = run.undecided
    result.effort = run.steps + (LARGEST - scope.budget.left) // 64
    return result


class _Shell:
    """One shell process, or (without a name) the container's runtime."""

    def __init__(
        self, run: _Run, scope: Scope, parents: tuple[Parent, ...], name: str, depth: int = 0
    ) -> None:
        if depth > DEEPEST:
            raise Unreadable("its scripts call each other too deeply")
        self.run, self.scope, self.parents, self.name, self.depth = run, scope, parents, name, depth
        self.final: Simple | None = None
        self.functions: dict[str, Command] = {}
        self.traps: dict[str, str] = {}
        self.options: set[str] = set()
        self.where: list[str] = []  # the compounds around the command
        self.testing = 0
        self.in_background: int | None = None  # the status of the last background command
        self.own: list[Parent] = []
        self.calls = 0  # functions and sourced files inside each other

    def script(self, text: str, replaces: bool) -> int | None:
        """Run a text as this shell. `replaces`: it stands behind -c."""
        body = shell.parse(text)
        self.final = shell.final(body) if replaces else None
        try:
            status = self._run(body)
        except _Exit as end:
            status = end.status
        finally:
            self._forward()
        return status

    def _forward(self) -> None:
        """Let the shell pass signals on if a trap does so while the shell waits for a background command."""
        action = self.traps.get("TERM", "")
        function = self.functions.get(action.split(" ")[0]) if action else None
        said = f"{action} {_source(function) if function else ''}"
        for parent in self.own:
            if parent.why == _BACKGROUND and re.search(r"\b(?:kill|pkill)\b", said):
                parent.forwards = "child"

    # lists and compounds

    def _run(self, body: Body) -> int | None:
        status: int | None = 0
        for item in body.items:
            status = self._and_or(item)
            self.scope.status = status
        return status

    def _and_or(self, item: shell.AndOr) -> int | None:
        if item.background:
            with self._inside(_BACKGROUND):
                self.in_background = self._in_copy(partial(self._joined, item))
            return 0
        return self._joined(item)

    def _in_copy(self, run: Callable[[], int | None]) -> int | None:
        """Run a part in a process of its own: its variables and its exit stay there."""
        kept = self.scope
        self.scope = kept.copy()
        try:
            return run()
        except _Exit as end:
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
                ends = operator == "&&" and status is None and _source(pipeline).split(" ")[0] in _ENDS
                if status == MAYBE or ends or (operator == "||" and status is None):
                    before = item.pipelines[index - 1][1]
                    self._maybe(f"`{_said(before)}`", [partial(self._pipeline, pipeline)])
                    continue
                status = self._pipeline(pipeline)
            finally:
                self.testing -= index < last
            failed = status not in (0, None, MAYBE) and index == last and not pipeline.negated
            if failed and "errexit" in self.options and not self.testing:
                raise _Exit(status)
        return status

    def _pipeline(self, pipeline: shell.Pipeline) -> int | None:
        if len(pipeline.commands) == 1:
            with self._inside("time" if pipeline.timed else "!" if pipeline.negated else ""):
                self.testing += pipeline.negated
                try:
                    status = self._command(pipeline.commands[0])
                finally:
                    self.testing -= pipeline.negated
        else:
            status = self._pipe(pipeline.commands)
        return status if status in (None, MAYBE) or not pipeline.negated else int(status == 0)

    def _pipe(self, commands: list[Command]) -> int | None:
        with self._inside("a pipe"):
            statuses = [self._in_copy(partial(self._command, command)) for command in commands]
        self.scope.arrays["PIPESTATUS"] = [str(status or 0) for status in statuses]
        failed = [status for status in statuses if status not in (0, None)]
        return failed[-1] if failed and "pipefail" in self.options else statuses[-1]

    def _command(self, command: Command) -> int | None:
        self.run.step()
        match command:
            case Simple():
                return self._simple(command)
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
        with self._inside("a subshell" if subshell else "a group"):
            return self._in_copy(partial(self._run, body)) if subshell else self._run(body)

    def _if(self, command: shell.If) -> int | None:
        with self._inside("if"):
            for index, (condition, body) in enumerate(command.branches):
                status = self._tested(condition)
                if status in (None, MAYBE):
                    rest = [body for _, body in command.branches[index:]]
                    runs = [partial(self._run, body) for body in [*rest, command.otherwise]]
                    return self._maybe(f"`{_said(condition)}`", runs, every=bool(command.otherwise.items))
                if status == 0:
                    return self._run(body)
            return self._run(command.otherwise)

    def _tested(self, condition: Body) -> int | None:
        self.testing += 1
        try:
            return self._run(condition)
        finally:
            self.testing -= 1

    def _loop(self, command: shell.Loop) -> int | None:
        with self._inside(f"a {command.kind} loop"):
            if command.kind in ("while", "until"):
                status = self._tested(command.condition)
                decided = status not in (None, MAYBE)
                if decided and (status == 0) != (command.kind == "while"):
                    return 0
                if decided:
                    try:
                        self._run(command.body)
                    except _Break:
                        return 0
                    self.run.undecided = True  # how it ends depends on the next turn
                    return None
                said = f"the loop at `{_said(command.condition)}`"
            else:
                items = [word for raw in command.words for word in self.scope.words(raw)]
                known = re.fullmatch(NAME, command.name) and not any(MARK.search(item) for item in items)
                if known and not items:
                    return 0
                self.scope.values[command.name] = (
                    items[0] if known else self.scope.mark(f"${command.name}", "a loop sets it")
                )
                said = f"the loop over {command.name}"
                if known and len(items) == 1:
                    with contextlib.suppress(_Break):
                        return self._run(command.body)
                    return 0
            return self._maybe(said, [partial(self._run, command.body)])

    def _case(self, command: shell.Case) -> int | None:
        with self._inside("case"):
            value = self.scope.text(command.word)
            if MARK.search(value) or len(value) > 4096:
                runs = [partial(self._run, body) for _, body in command.arms]
                return self._maybe(f"`case {self.scope.shown(value)[:40]}`", runs)
            for patterns, body in command.arms:
                for pattern in (self.scope.text(raw) for raw in patterns):
                    if pattern.count("*") <= 3 and fnmatch.fnmatchcase(value, pattern):
                        return self._run(body)
            return 0

    def _maybe(
        self, reason: str, runs: Sequence[Callable[[], int | None]], every: bool = False
    ) -> int | None:
        """Run alternatives of which only the pod knows the right one. Keep what is equal after all."""
        before = self.scope
        after = [] if every else [before.copy()]
        self.run.undecided = True
        for run in runs:
            self.scope = before.copy()
            self.run.conditions.append(reason)
            try:
                run()
            except _Break:
                pass
            except _Exit as end:
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
            before.arrays.update(
                {name: item for name, item in scope.arrays.items() if name not in before.arrays}
            )
            before.sourced = before.sourced or scope.sourced
        return None

    @contextlib.contextmanager
    def _inside(self, what: str) -> Iterator[None]:
        if what:
            self.where.append(what)
        try:
            yield
        finally:
            if what:
                self.where.pop()

    # simple commands

    def _simple(self, command: Simple) -> int | None:
        raw = list(command.words)
        kept = dict(self.scope.values), set(self.scope.exported)
        assigned = []
        while raw and (match := ASSIGNMENT.match(raw[0])):
            self.scope.assign(match[1], raw.pop(0)[match.end() :], bool(match[2]))
            assigned.append(match[1])
        if not raw:
            if "allexport" in self.options:
                self.scope.exported |= set(assigned)
            return 0
        if raw[0] in _DECLARE:
            return self._declare(raw)
        if raw[0] in ("[[", "(("):
            return self._double(raw)
        self.scope.exported |= set(assigned)
        try:
            words = [word for item in raw for word in self.scope.words(item)]
            return self._words(command, words) if words else 0
        finally:
            if assigned and raw[0] not in ("exec", "eval", ".", "source"):
                for name in assigned:
                    self.scope.values.pop(name, None)
                self.scope.values |= {name: kept[0][name] for name in assigned if name in kept[0]}
                self.scope.exported = kept[1] | (self.scope.exported - set(assigned))

    def _words(self, command: Simple, words: list[str]) -> int | None:
        name = words[0]
        builtin = getattr(self, f"_do_{_BUILTINS.get(name, '')}", None)
        if builtin:
            status: int | None = builtin(words)
            return status
        if name in ("command", "builtin") and len(words) > 1 and not words[1].startswith("-"):
            return self._words(command, words[1:])
        if name in self.functions:
            return self._call(name, words[1:])
        return self._external(command, words)

    def _external(self, command: Simple, words: list[str]) -> int | None:
        replaced = words[0] == "exec"
        while replaced and len(words) > 1 and words[1].startswith("-"):
            del words[1 : 3 if words[1] == "-a" else 2]
        if replaced and len(words) == 1:
            return 0  # only redirections
        text = self._redirects(command, words)
        stays = self._stays(command, replaced)
        status = self.program(words[1:] if replaced else words, (stays,) if stays else (), text)
        if replaced and not _FORKED & set(self.where):
            raise _Exit(status)
        return status

    def _stays(self, command: Simple, replaced: bool) -> Parent | None:
        """Return this shell as the parent of a command, or None where the command replaces the shell."""
        if not self.name or (replaced and not _FORKED & set(self.where)):
            return None
        last = command is self.final and not any(self.traps.values())
        if last and self.name == "bash":
            return None
        why = self.where[0] if self.where else "a trap is set" if command is self.final and not last else ""
        if command.redirects and not why:
            why = "the command redirects its input or output"
        parent = Parent(self.name, "no", why or _MORE)
        if last and self.name in ("sh", "ash"):
            parent = Parent(
                self.name, "unknown", "bash as sh replaces itself by its last command, dash does not"
            )
        elif last:
            parent.why = f"{self.name} does not replace itself by its last command"
        self.own.append(parent)
        return parent

    def _redirects(self, command: Simple, words: list[str]) -> str:
        """Note the files that a command writes; return what it reads from a here-document."""
        given = ""
        written = []
        for item in command.redirects:
            if item.operator in ("<<", "<<-") and item.text is not None:
                quoted = any(mark in item.target for mark in "'\"\\")
                given = item.text if quoted else self._document(item.text)
            elif item.operator == "<<<":
                given = self.scope.text(item.target)
            elif item.operator in (">", ">>", ">|", "&>", "&>>"):
                written.append((item.operator, self.scope.text(item.target)))
        if words[0] == "tee" and given:
            written += [(">", word) for word in words[1:] if not word.startswith("-")]
        for operator, path in written:
            text = given if words[0] in ("cat", "tee") and given and operator == ">" else None
            if words[0] == "echo" and operator == ">":
                text = " ".join(word for word in words[1:] if word not in ("-e", "-n"))
            self.run.files[path] = None if text is None or MARK.search(text) else text
        return given

    def _document(self, text: str) -> str:
        try:
            return self.scope.document(text)
        except Unreadable as reason:
            return self.scope.mark("a here-document", str(reason))

    def program(self, words: list[str], parents: tuple[Parent, ...], given: str = "") -> int | None:
        """Start a program below `parents` and those of this shell, and return its status."""
        self.run.step()
        words, environment, above = behind_prefixes(words, self.scope.environment())
        parents = (*self.parents, *parents, *above)
        if not words:
            return 0
        text = self.run.files.get(words[0])
        name = PurePosixPath(words[0]).name
        if name in SHELLS:
            return self._shell(name, words[1:], environment, parents, given)
        if text is not None and (name.endswith(".sh") or text.startswith("#!")):
            first = text.partition("\n")[0]
            kind = next((kind for kind in SHELLS if re.search(rf"\b{kind}\b", first)), "sh")
            if not first.startswith("#!") or re.search(r"sh\b", first):
                return self._file(kind, words[0], words[1:], environment, parents)
        if given and len(words) == 1:
            words = [*words, "-"]
        condition = self.run.conditions[-1] if self.run.conditions else self.run.may_end
        background = _BACKGROUND in self.where
        self.run.programs.append(Started(words, environment, condition, background, False, parents))
        if len(self.run.programs) - 1 == self.run.fails:
            self.run.undecided = False
            return 1
        return None

    def _shell(
        self,
        name: str,
        words: list[str],
        environment: dict[str, str],
        parents: tuple[Parent, ...],
        given: str,
    ) -> int | None:
        options: set[str] = set()
        while words and re.fullmatch(r"[-+][A-Za-z]+|--[a-z]+", words[0]):
            option = words.pop(0)
            if option == "--":
                break
            if option.startswith("--"):
                continue
            options |= {"errexit"} if "e" in option else set()
            options |= {"allexport"} if "a" in option else set()
            if "o" in option and words:
                options.add(words.pop(0))
            if "c" in option:
                while len(words) > 1 and re.fullmatch(r"[-+][A-Za-z]+", words[0]):
                    words.pop(0)
                if not words:
                    raise Unreadable("-c has no text behind it")
                inner = self._child(name, environment, parents, words[2:])
                inner.scope.values["0"] = words[1] if len(words) > 1 else name
                inner.options |= options
                if MARK.fullmatch(words[0]):
                    raise Unreadable(f"the text behind -c is not known: {self.scope.why(words[0])}")
                return inner.script(words[0], replaces=True)
        if given and (not words or words[0] in ("-", "/dev/stdin")):
            inner = self._child(name, environment, parents, [])
            inner.options |= options
            return inner.script(given, replaces=False)
        if not words:
            self.run.programs.append(Started([name], environment, parents=parents))
            return None
        return self._file(name, words[0], words[1:], environment, parents, options)

    def _file(
        self, name: str, path: str, arguments: list[str], environment: dict[str, str],
        parents: tuple[Parent, ...], options: Sequence[str] | set[str] = (),
    ) -> int | None:  # fmt: skip
        text = self.run.files.get(path)
        if text is None:
            condition = self.run.conditions[-1] if self.run.conditions else ""
            self.run.programs.append(
                Started([name, path, *arguments], environment, condition, parents=parents)
            )
            return 1 if self.run.fails == len(self.run.programs) - 1 else None
        inner = self._child(name, environment, parents, arguments)
        inner.scope.values["0"] = path
        inner.options |= set(options)
        return inner.script(text, replaces=False)

    def _child(
        self, name: str, environment: dict[str, str], parents: tuple[Parent, ...], arguments: list[str]
    ) -> _Shell:
        scope = Scope(
            self.scope.budget, dict(environment), set(environment), {}, arguments,
            complete=self.scope.complete, files=self.run.files,
        )  # fmt: skip
        inner = _Shell(self.run, scope, parents, name, self.depth + 1)
        inner.where = [item for item in self.where if item == _BACKGROUND]
        return inner

    def _call(self, name: str, arguments: list[str]) -> int | None:
        kept = self.scope.arguments
        self.scope.arguments = arguments
        self.calls += 1
        if self.calls > DEEPEST:
            raise Unreadable(f"its function {name} calls itself")
        try:
            with self._inside("a function"):
                return self._command(self.functions[name])
        except _Return as end:
            return end.status
        finally:
            self.scope.arguments = kept
            self.calls -= 1

    # builtins

    def _declare(self, raw: list[str]) -> int | None:
        exports = raw[0] == "export" or any(re.fullmatch(r"-\w*x\w*", word) for word in raw[1:])
        for word in raw[1:]:
            match = ASSIGNMENT.match(word)
            if match:
                self.scope.assign(match[1], word[match.end() :], bool(match[2]))
            names = (
                [match[1]] if match else [name for name in self.scope.words(word) if re.fullmatch(NAME, name)]
            )
            self.scope.exported |= set(names) if exports else set()
        return 0

    def _double(self, raw: list[str]) -> int | None:
        if raw[0] == "((":
            value = self.scope.arithmetic(raw[1])
            for name in re.findall(
                rf"\b({NAME})\s*+(?:[-+*/%]?=(?!=)|\+\+|--)|(?:\+\+|--)\s*+({NAME})", raw[1]
            ):
                self.scope.values[name[0] or name[1]] = self.scope.mark("((", "it is calculated")
            return MAYBE if value is None else int(value == 0)
        return self._logical(
            [word if word in _TEST_WORDS else self.scope.text(word) for word in raw[1:-1]], patterns=True
        )

    def _do_true(self, words: list[str]) -> int | None:
        return 0

    def _do_false(self, words: list[str]) -> int | None:
        return 1

    def _do_exit(self, words: list[str]) -> int | None:
        status = self.scope.status
        if len(words) > 1:
            status = int(words[1]) % 256 if words[1].isdigit() and len(words[1]) < 6 else None
        raise (_Return if words[0] == "return" else _Exit)(status)

    def _do_break(self, words: list[str]) -> int | None:
        raise _Break

    def _do_set(self, words: list[str]) -> int | None:
        letters = {"e": "errexit", "a": "allexport"}
        index = 1
        while index < len(words) and words[index][:1] in "-+" and words[index] not in ("--", "-", ""):
            change = self.options.add if words[index].startswith("-") else self.options.discard
            for letter in words[index][1:]:
                change(letters.get(letter, letter))
            if "o" in words[index] and index + 1 < len(words):
                index += 1
                change(words[index])
            index += 1
        if index < len(words):
            self.scope.arguments = words[index + (words[index] == "--") :]
        return 0

    def _do_shift(self, words: list[str]) -> int | None:
        count = int(words[1]) if len(words) > 1 and words[1].isdigit() and len(words[1]) < 6 else 1
        self.scope.arguments = self.scope.arguments[count:]
        return 0

    def _do_unset(self, words: list[str]) -> int | None:
        for name in words[1:]:
            self.scope.values.pop(name, None)
            self.scope.arrays.pop(name, None)
            self.scope.unset.add(name)
        return 0

    def _do_read(self, words: list[str]) -> int | None:
        for name in words[1:]:
            if re.fullmatch(NAME, name):
                self.scope.values[name] = self.scope.mark(f"${name}", f"{words[0]} sets it in the pod")
        return None

    def _do_trap(self, words: list[str]) -> int | None:
        rest = words[2:] if words[1:2] == ["--"] else words[1:]
        for name in rest[1:]:
            action = "" if rest[0] == "-" else rest[0]
            self.traps[name.upper().removeprefix("SIG").replace("15", "TERM")] = action
        return 0

    def _do_wait(self, words: list[str]) -> int | None:
        for started in self.run.programs:
            started.waited = started.waited or started.background
        return self.in_background if len(words) > 1 else 0

    def _do_eval(self, words: list[str]) -> int | None:
        with self._inside("eval"):
            return self._run(shell.parse(" ".join(words[1:])))

    def _do_source(self, words: list[str]) -> int | None:
        path = words[1] if len(words) > 1 else ""
        text = self.run.files.get(path)
        if text is None:
            if not ACTIVATION.fullmatch(path):
                self.scope.sourced = self.scope.sourced or self.scope.shown(path)
            return None
        self.calls += 1
        if self.calls > DEEPEST:
            raise Unreadable(f"{path} reads itself")
        try:
            return self._run(shell.parse(text))
        except _Return as end:
            return end.status
        finally:
            self.calls -= 1

    def _do_test(self, words: list[str]) -> int | None:
        return self._logical(words[1:-1] if words[0] == "[" else words[1:], patterns=False)

    def _logical(self, words: list[str], patterns: bool) -> int:
        """Return 0 if a test is true, 1 if it is false, and MAYBE if only the pod knows."""
        for joint, decisive in (("||", 0), ("-o", 0), ("&&", 1), ("-a", 1)):
            if joint in words[1:-1]:
                at = words.index(joint, 1)
                both = [self._logical(part, patterns) for part in (words[:at], words[at + 1 :])]
                return decisive if decisive in both else MAYBE if MAYBE in both else 1 - decisive
        if words[:1] == ["!"]:
            inner = self._logical(words[1:], patterns)
            return MAYBE if inner == MAYBE else 1 - inner
        if any(MARK.search(word) for word in words):
            return MAYBE
        match words:
            case ["-n" | "-z" as kind, value]:
                return int((value == "") == (kind == "-n"))
            case [kind, path] if len(kind) == 2 and kind[0] == "-" and kind[1] in _FILE_TESTS:
                return 0 if path in self.run.files and kind in ("-f", "-e", "-r", "-s") else MAYBE
            case [value]:
                return int(value == "")
            case [left, "=" | "==" | "!=" as kind, right]:
                if patterns and set(right) & set("*?["):
                    equal = right.count("*") <= 3 and len(left) <= 4096 and fnmatch.fnmatchcase(left, right)
                else:
                    equal = left == right
                return int(equal == (kind == "!="))
            case [left, kind, right] if kind in _NUMBERS:
                holds = self.scope.arithmetic(f"({left}) {_NUMBERS[kind]} ({right})")
                return MAYBE if holds is None else 1 - holds
            case []:
                return 1
        return MAYBE


_BACKGROUND = "the command runs in the background"
_MORE = "it runs further commands"
_FORKED = frozenset(("a pipe", "a subshell", _BACKGROUND))
_ENDS = frozenset(("exit", "return", "break", "continue"))
_TEST_WORDS = frozenset(("&&", "||", "!", "=", "==", "!=", "-a", "-o"))
_BUILTINS = {
    **{name: name for name in ("true", "false", "exit", "set", "shift", "unset", "read", "trap", "wait")},
    **{name: name for name in ("eval", "test", "source", "break")},
    ":": "true", "return": "exit", "continue": "break", "[": "test", ".": "source",
    "mapfile": "read", "readarray": "read", "getopts": "read",
}  # fmt: skip


def _said(part: Body | shell.Pipeline) -> str:
    """Return the beginning of a condition as it is written."""
    return _source(part)[:60]


def _source(part: object) -> str:
    """Return the words of a part of a script in their order."""
    match part:
        case Simple(words=words):
            return " ".join(words)
        case shell.Pipeline(commands=commands):
            return " | ".join(map(_source, commands))
        case shell.AndOr(pipelines=pipelines):
            return " ".join(f"{operator} {_source(one)}".strip() for operator, one in pipelines)
        case Body(items=items):
            return "; ".join(map(_source, items))
        case shell.Group(body=body) | shell.Loop(body=body):
            return _source(body)
        case shell.If(branches=branches):
            return "; ".join(f"{_source(condition)}; {_source(body)}" for condition, body in branches)
        case shell.Case(arms=arms):
            return "; ".join(_source(body) for _, body in arms)
    return ""
