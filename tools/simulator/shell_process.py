"""One shell process of a command that is followed: the programs that it starts, and what stays above them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from tools.simulator import shell
from tools.simulator.expansion import MARK, Scope
from tools.simulator.prefixes import Parent, behind_prefixes
from tools.simulator.shell import SHELLS, Node, Unreadable, written
from tools.simulator.shell_flow import Flow
from tools.simulator.shell_run import BACKGROUND, DEEPEST, ENDLESS, Exit, NotStarted, Return, Run, Started

_MORE = "it runs further commands"
# A parser's words about a text that no shell takes.
UNFINISHED = re.compile(
    r"without closing quote|can only be used to end|must be followed by|without matching `(?!\$?\(\()"
)
_FORKED = frozenset(("a pipe", "a subshell", BACKGROUND))


class Shell(Flow):
    """One shell process, or (without a name) the container's runtime."""

    def __init__(self, run: Run, scope: Scope, parents: tuple[Parent, ...], name: str, depth: int = 0) -> None:
        if depth > DEEPEST:
            raise Unreadable("its scripts call each other too deeply")
        super().__init__(run, scope)
        self.parents, self.name, self.depth = parents, name, depth
        self.final: Node | None = None
        self.own: list[Parent] = []

    def script(self, text: str, replaces: bool) -> int | None:
        """Run a text as this shell. `replaces`: it stands behind -c."""
        try:
            parsed = shell.parse(text)
        except Unreadable as problem:
            if self.depth == 1 and not self.run.conditions and UNFINISHED.search(str(problem)):
                raise NotStarted(f"{self.name} refuses its script: {problem}") from None
            raise
        self.final = shell.final(parsed) if replaces else None
        try:
            status = self.run_body(shell.statements(parsed))
        except Exit as end:
            status = end.status
        finally:
            self._forward()
        return status

    def _forward(self) -> None:
        """Let the shell pass signals on if a trap does so while the shell waits for a background command."""
        action = self.traps.get("TERM", "")
        function = self.functions.get(action.split(" ")[0]) if action else None
        said = f"{action} {written(function) if function else ''}"
        for parent in self.own:
            if parent.why == BACKGROUND and re.search(r"\b(?:kill|pkill)\b", said):
                parent.forwards = "child"

    def simple(self, statement: Node) -> int | None:
        command = statement.get("Cmd") or {}
        arguments, assigned = command.get("Args", []), [one["Name"]["Value"] for one in command.get("Assigns", ())]
        kept = dict(self.scope.values), set(self.scope.exported)
        for one in command.get("Assigns", ()):
            self.scope.assign(one)
        if not arguments:
            self.scope.exported |= set(assigned) if "allexport" in self.options else set()
            return 0
        self.scope.exported |= set(assigned)
        words: list[str] = []
        try:
            words += [word for one in arguments for word in self.scope.words(one)]
            return self._words(statement, words) if words else 0
        finally:
            if assigned and words[:1] not in (["exec"], ["eval"], ["."], ["source"]):
                for name in assigned:
                    self.scope.values.pop(name, None)
                self.scope.values |= {name: kept[0][name] for name in assigned if name in kept[0]}
                self.scope.exported = kept[1] | (self.scope.exported - set(assigned))

    def _words(self, statement: Node, words: list[str]) -> int | None:
        name = words[0]
        known, status = self.builtin(words)
        if known:
            return status
        if name in ("command", "builtin") and len(words) > 1 and not words[1].startswith("-"):
            return self._words(statement, words[1:])
        if name in self.functions:
            return self._call(name, words[1:])
        return self._external(statement, words)

    def _external(self, statement: Node, words: list[str]) -> int | None:
        replaced = words[0] == "exec"
        while replaced and len(words) > 1 and words[1].startswith("-"):
            del words[1 : 3 if words[1] == "-a" else 2]
        if replaced and len(words) == 1:
            return 0  # only redirections
        text = self._redirects(statement, words)
        stays = self._stays(statement, replaced)
        status = self.program(words[1:] if replaced else words, (stays,) if stays else (), text)
        if replaced and not _FORKED & set(self.where):
            raise Exit(status)
        return status

    def _stays(self, statement: Node, replaced: bool) -> Parent | None:
        """Return this shell as the parent of a command, or None where the command replaces the shell."""
        if not self.name or (replaced and not _FORKED & set(self.where)):
            return None
        last = statement is self.final and not any(self.traps.values())
        if last and self.name == "bash":
            return None
        why = self.where[0] if self.where else "a trap is set" if statement is self.final and not last else ""
        if statement.get("Redirs") and not why:
            why = "the command redirects its input or output"
        parent = Parent(self.name, "no", why or _MORE)
        if last and self.name in ("sh", "ash"):
            parent = Parent(self.name, "unknown", "bash as sh replaces itself by its last command, dash does not")
        elif last:
            parent.why = f"{self.name} does not replace itself by its last command"
        self.own.append(parent)
        return parent

    def _redirects(self, statement: Node, words: list[str]) -> str:
        """Note the files that a command writes; return what it reads from a here-document."""
        given = ""
        files = []
        for one in statement.get("Redirs", ()):
            if one["Op"] in ("<<", "<<-"):
                given = self.scope.document(one)
            elif one["Op"] == "<<<":
                given = self.scope.text(one["Word"])
            elif one["Op"] in (">", ">>", ">|", "&>", "&>>"):
                files.append((one["Op"], self.scope.text(one["Word"])))
        if words[0] == "tee" and given:
            files += [(">", word) for word in words[1:] if not word.startswith("-")]
        for operator, path in files:
            text = given if words[0] in ("cat", "tee") and given and operator == ">" else None
            if words[0] == "echo" and operator == ">":
                text = " ".join(word for word in words[1:] if word not in ("-e", "-n"))
            self.run.files[path] = None if text is None or MARK.search(text) else text
        return given

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
        self._executed(words[0], text, first=not self.name and not above)
        if text is not None and (name.endswith(".sh") or text.startswith("#!")):
            first = text.partition("\n")[0]
            kind = next((kind for kind in SHELLS if re.search(rf"\b{kind}\b", first)), "sh")
            if not first.startswith("#!") or re.search(r"sh\b", first):
                return self._file(kind, words[0], words[1:], environment, parents)
        if given and len(words) == 1:
            words = [*words, "-"]
        condition = self.run.conditions[-1] if self.run.conditions else self.run.may_end
        background = BACKGROUND in self.where
        self.run.programs.append(Started(words, environment, condition, background, False, parents))
        if len(self.run.programs) - 1 == self.run.fails:
            self.run.undecided = False
            return 1
        if words[:2] in ENDLESS and not background and not any(parent.name == "timeout" for parent in above):
            raise Exit(None)  # nothing behind it runs
        return None

    def _executed(self, path: str, text: str | None, first: bool) -> None:
        """Raise for a file that cannot be executed. `first`: no shell and no other program starts it."""
        fault = ""
        if path in self.run.plain:
            fault = "its mode lets no user execute it (Permission denied): set defaultMode: 0555"
        if self.name and re.search(r"\S\s+\S", path) and not MARK.search(path):
            fault = fault or "it is one word with spaces, and no program has that name"
        if first and text and not text.startswith("#!") and "\0" not in text:
            fault = fault or "it has no #! line (exec format error)"
        if fault and (self.run.conditions or self.run.may_end):
            raise Unreadable(f"{path} does not start: {fault}")
        if fault:
            raise NotStarted(f"{path} does not start: {fault}")

    def _shell(
        self, name: str, words: list[str], environment: dict[str, str], parents: tuple[Parent, ...], given: str
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
            self.run.programs.append(Started([name, path, *arguments], environment, condition, parents=parents))
            return 1 if self.run.fails == len(self.run.programs) - 1 else None
        inner = self._child(name, environment, parents, arguments)
        inner.scope.values["0"] = path
        inner.options |= set(options)
        return inner.script(text, replaces=False)

    def _child(
        self, name: str, environment: dict[str, str], parents: tuple[Parent, ...], arguments: list[str]
    ) -> Shell:
        scope = Scope(
            self.scope.budget, dict(environment), set(environment), {}, arguments,
            sourced=self.scope.sourced, complete=self.scope.complete, files=self.run.files,
        )  # fmt: skip
        inner = Shell(self.run, scope, parents, name, self.depth + 1)
        inner.where = [item for item in self.where if item == BACKGROUND]
        return inner

    def _call(self, name: str, arguments: list[str]) -> int | None:
        kept = self.scope.arguments
        self.scope.arguments = arguments
        self.calls += 1
        if self.calls > DEEPEST:
            raise Unreadable(f"its function {name} calls itself")
        try:
            with self.inside("a function"):
                return self.command(self.functions[name])
        except Return as end:
            return end.status
        finally:
            self.scope.arguments = kept
            self.calls -= 1
