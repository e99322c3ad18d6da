"""Parse a shell script into its commands, without running or expanding anything.

This is the grammar of POSIX sh with bash's `[[`, `((`, arrays and `function`. Words stay as they are
written. Parsers that exist were not fit for untrusted text under this licence: bashlex is under the GPL, and
tree-sitter-bash repairs what it cannot parse, so that a wrong tree looks like a right one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from tools.simulator.shell_lexer import DEEPEST, LONGEST, Lexer, Token, Unreadable, closing, operator_of

SHELLS = ("sh", "bash", "dash", "ash")
_ENDERS = frozenset(("then", "else", "elif", "fi", "do", "done", "esac", "}"))


class Redirect(NamedTuple):
    """A redirection: its operator without the descriptor, its target word, and a here-document's text."""

    operator: str
    target: str
    text: str | None = None


@dataclass(eq=False)
class Simple:
    """A simple command: its words, with assignments first, and redirections."""

    words: list[str] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)


@dataclass(eq=False)
class Group:
    """`{ ...; }`, or `( ... )` if it is a subshell."""

    body: Body
    subshell: bool


@dataclass(eq=False)
class If:
    """Conditions with their bodies, and the body of `else`."""

    branches: list[tuple[Body, Body]]
    otherwise: Body


@dataclass(eq=False)
class Loop:
    """`while` and `until` have a condition; `for` has a name and words."""

    kind: str
    condition: Body
    name: str
    words: list[str]
    body: Body


@dataclass(eq=False)
class Case:
    word: str
    arms: list[tuple[list[str], Body]]


@dataclass(eq=False)
class Function:
    name: str
    body: Command


Command = Simple | Group | If | Loop | Case | Function


@dataclass(eq=False)
class Pipeline:
    commands: list[Command]
    negated: bool = False
    timed: bool = False


@dataclass(eq=False)
class AndOr:
    """Pipelines joined by && and ||. `joined` is what stands before the list on its line: empty, ; or &."""

    pipelines: list[tuple[str, Pipeline]]
    joined: str = ""
    background: bool = False


@dataclass(eq=False)
class Body:
    """A list of commands. `rest`: lines without a command follow the last one."""

    items: list[AndOr] = field(default_factory=list)
    rest: bool = False


def parse(text: str) -> Body:
    """Return the commands of a script. Raises Unreadable, also for a text over LONGEST characters."""
    if len(text) > LONGEST:
        raise Unreadable(f"it is longer than {LONGEST:,} characters, the limit of Linux")
    return _Parser(Lexer(text)).script()


def simple_commands(part: Body) -> Iterator[list[str]]:
    """Yield the words of each simple command as they are written, also in functions and in $(...)."""
    for item in part.items:
        for _, one in item.pipelines:
            for command in one.commands:
                yield from _inside(command)


def _inside(command: Command) -> Iterator[list[str]]:
    match command:
        case Simple(words=words):
            yield words
            for word in words:
                for opening in re.finditer(r"(?<!\\)(?:\$\((?!\()|`)", word):
                    inner = word[opening.end() : closing(word, opening.start()) - 1]
                    yield from simple_commands(parse(inner))
        case Group(body=body):
            yield from simple_commands(body)
        case Loop(condition=condition, body=body):
            yield from (*simple_commands(condition), *simple_commands(body))
        case If(branches=branches, otherwise=otherwise):
            for body in (*(part for branch in branches for part in branch), otherwise):
                yield from simple_commands(body)
        case Case(arms=arms):
            for _, body in arms:
                yield from simple_commands(body)
        case Function(body=inside):
            yield from _inside(inside)


def pipeline(text: str) -> list[Simple]:
    """Return the simple commands of a text that is one pipeline, else nothing."""
    try:
        items = parse(text).items
    except Unreadable:
        return []
    found = [one for item in items for _, one in item.pipelines]
    commands = found[0].commands if len(found) == 1 else []
    simple = [one for one in commands if isinstance(one, Simple)]
    return simple if len(simple) == len(commands) else []


def final(body: Body) -> Simple | None:
    """Return the command by which `bash -c` replaces itself, if there are no traps.

    It is the last command of the text: simple, without redirections, and joined to what stands before it on
    its line by one ; && or ||. At most one newline follows it. Measured with bash 5.2.
    """
    if not body.items or body.rest:
        return None
    last = body.items[-1]
    _, pipeline = last.pipelines[-1]
    command = pipeline.commands[-1]
    alone = len(pipeline.commands) == 1 and not (pipeline.negated or pipeline.timed or last.background)
    joined = last.joined != "&" and not (last.joined and len(last.pipelines) > 1)
    if alone and joined and isinstance(command, Simple) and not command.redirects:
        return command
    return None


class _Parser:
    def __init__(self, lexer: Lexer) -> None:
        self._tokens = lexer.tokens()
        self._bodies = lexer.bodies
        self._at = 0
        self._depth = 0
        self._text = lexer.text

    def script(self) -> Body:
        body = self._body(())
        if self._at < len(self._tokens):
            self._refuse()
        last = self._text.removesuffix("\n").rpartition("\n")[2].strip()
        body.rest = not last or last.startswith("#")
        return body

    def _refuse(self) -> NoReturn:
        found = self._tokens[self._at].text[:40] if self._at < len(self._tokens) else "its end"
        raise Unreadable(f"it has {found!r} where a command or its end is expected")

    def _peek(self) -> Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else Token("end", "")

    def _next(self) -> Token:
        token = self._peek()
        self._at += 1
        return token

    def _take(self, *texts: str) -> bool:
        token = self._peek()
        if token.kind in ("word", "operator", "newline") and token.text in texts:
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        self._newlines()
        if not self._take(text):
            self._refuse()

    def _newlines(self) -> None:
        while self._take("\n"):
            pass

    def _body(self, enders: tuple[str, ...]) -> Body:
        """Read commands up to one of the words `enders`, a closing parenthesis, or the end."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise Unreadable("its commands are nested too deeply")
        body, joined = Body(), ""
        while True:
            if self._take("\n"):
                joined = ""
                continue
            token = self._peek()
            if token.kind == "end" or (token.kind == "operator" and token.text in (")", ";;", ";&", ";;&")):
                break
            if token.kind == "word" and token.text in _ENDERS:
                if token.text not in enders:
                    self._refuse()
                break
            item = self._and_or(joined)
            body.items.append(item)
            separator = self._peek()
            if separator.kind == "operator" and separator.text in (";", "&"):
                self._at += 1
                joined = separator.text
                item.background = joined == "&"
            elif separator.kind == "word":
                self._refuse()
        self._depth -= 1
        return body

    def _and_or(self, joined: str) -> AndOr:
        found = [("", self._pipeline())]
        while (token := self._peek()).kind == "operator" and token.text in ("&&", "||"):
            self._at += 1
            self._newlines()
            found.append((token.text, self._pipeline()))
        return AndOr(found, joined)

    def _pipeline(self) -> Pipeline:
        result = Pipeline([])
        while True:
            if self._take("!"):
                result.negated = not result.negated
            elif self._take("time"):
                result.timed = True
                self._take("-p")
            else:
                break
        result.commands.append(self._command())
        while self._take("|", "|&"):
            self._newlines()
            result.commands.append(self._command())
        return result

    def _command(self) -> Command:
        token = self._peek()
        if token.kind == "operator" and token.text == "(":
            self._at += 1
            return self._redirected(Group(self._closed(")"), subshell=True))
        if token.kind == "word":
            compound = {
                "{": self._group, "if": self._if, "for": self._for, "select": self._for, "case": self._case,
                "while": self._while, "until": self._while, "function": self._function,
            }.get(token.text)  # fmt: skip
            if compound:
                self._at += 1
                return self._redirected(compound(token.text))
            following = self._tokens[self._at + 1 : self._at + 3]
            if [item.text for item in following] == ["(", ")"] and re.fullmatch(r"[\w.:-]+", token.text):
                self._at += 3
                self._newlines()
                return Function(token.text, self._command())
        return self._simple()

    def _closed(self, ending: str) -> Body:
        body = self._body((ending,))
        self._expect(ending)
        return body

    def _group(self, _: str) -> Command:
        return Group(self._closed("}"), subshell=False)

    def _function(self, _: str) -> Command:
        name = self._next().text
        if self._take("("):
            self._expect(")")
        self._newlines()
        return Function(name, self._command())

    def _if(self, _: str) -> Command:
        branches, otherwise = [], Body()
        while True:
            condition = self._body(("then",))
            self._expect("then")
            branches.append((condition, self._body(("elif", "else", "fi"))))
            if self._take("elif"):
                continue
            if self._take("else"):
                otherwise = self._body(("fi",))
            self._expect("fi")
            return If(branches, otherwise)

    def _while(self, kind: str) -> Command:
        condition = self._body(("do",))
        self._expect("do")
        return Loop(kind, condition, "", [], self._closed("done"))

    def _for(self, kind: str) -> Command:
        name, words = self._next().text, ['"$@"']
        if name == "((":
            self._at += 2  # the expression and ))
        self._newlines()
        if self._take("in"):
            words = []
            while self._peek().kind == "word":
                words.append(self._next().text)
        self._take(";")
        self._expect("do")
        return Loop(kind, Body(), name, words, self._closed("done"))

    def _case(self, _: str) -> Command:
        word = self._next().text
        self._expect("in")
        arms = []
        self._newlines()
        while not self._take("esac"):
            self._take("(")
            patterns = [self._next().text]
            while self._take("|"):
                patterns.append(self._next().text)
            if not self._take(")"):
                self._refuse()
            arms.append((patterns, self._body(("esac",))))
            if not self._take(";;", ";&", ";;&") and self._peek().text != "esac":
                self._refuse()
            self._newlines()
        return Case(word, arms)

    def _redirected(self, command: Command) -> Command:
        """Read redirections behind a compound. They do not change what it starts."""
        while self._peek().kind == "redirect":
            self._redirect()
        return command

    def _redirect(self) -> Redirect:
        index = self._at
        token, target = self._next(), self._next()
        if target.kind != "word":
            self._at -= 1
            self._refuse()
        return Redirect(operator_of(token), target.text, self._bodies.get(index))

    def _simple(self) -> Simple:
        result = Simple()
        while (token := self._peek()).kind in ("word", "redirect"):
            if token.kind == "redirect":
                result.redirects.append(self._redirect())
            else:
                result.words.append(self._next().text)
        if not result.words and not result.redirects:
            self._refuse()
        return result
