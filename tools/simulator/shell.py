"""Parse a shell script into its commands, without running or expanding anything.

This is the grammar of POSIX sh with bash's `[[`, `((`, arrays and `function`. Words stay as they are
written. Parsers that exist were not fit for untrusted text under this licence: bashlex is under the GPL, and
tree-sitter-bash repairs what it cannot parse, so that a wrong tree looks like a right one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

SHELLS = ("sh", "bash", "dash", "ash")
LONGEST = 131_072  # characters of a script; Linux takes no longer argument (MAX_ARG_STRLEN)
DEEPEST = 40  # compounds, quotes and expansions inside each other
NAME = r"[A-Za-z_][A-Za-z0-9_]*"
ASSIGNMENT = re.compile(rf"({NAME})(\+?)=")
_ARRAY = re.compile(rf"{NAME}\+?=")
_OPERATORS = re.compile(r"&&|\|\||;;&|;;|;&|\|&|[;&|()]")
_REDIRECT = re.compile(r"(?:\{[A-Za-z_]\w*\}|\d{1,4})?(?:<<<|<<-|<<|<>|<&|>>|>&|>\||&>>|&>|<|>)")
_BLANKS = re.compile(r"(?:[ \t]|\\\n)+")
_ENDS_WORD = frozenset(" \t\n;|&<>()")
_PLAIN = re.compile(r"[^ \t\n;|&<>()\\'\"$`]+")
_ANSI = re.compile(r"(?:[^'\\]|\\.)*+'", re.DOTALL)
_PARAMETER = re.compile(rf"{NAME}|[0-9@*#?$!-]")
_QUOTED = re.compile(r'[^"\\$`]+')
_STARTERS = frozenset(("if", "for", "then", "else", "elif", "while", "until", "do", "{", "!", "time"))
_ENDERS = frozenset(("then", "else", "elif", "fi", "do", "done", "esac", "}"))


class Unreadable(Exception):
    """The text is not a script that can be followed. The message says why."""


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


class _Token(NamedTuple):
    kind: str  # word, operator, redirect or newline
    text: str


def parse(text: str) -> Body:
    """Return the commands of a script. Raises Unreadable, also for a text over LONGEST characters."""
    if len(text) > LONGEST:
        raise Unreadable(f"it is longer than {LONGEST:,} characters, the limit of Linux")
    return _Parser(_Lexer(text)).script()


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


def closing(text: str, at: int) -> int:
    """Return the position behind the expansion or quote that begins at `at`. Raises Unreadable."""
    return _Lexer(text).closing(at, 0)


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.bodies: dict[int, str] = {}  # of here-documents, by the index of the redirect token

    def tokens(self) -> list[_Token]:
        found: list[_Token] = []
        waiting: list[int] = []
        at = 0
        while at < len(self.text):
            blank = _BLANKS.match(self.text, at)
            if blank:
                at = blank.end()
            elif self.text[at] == "#":
                end = self.text.find("\n", at)
                at = len(self.text) if end < 0 else end
            elif self.text[at] == "\n":
                found.append(_Token("newline", "\n"))
                at = self._here_documents(found, waiting, at + 1)
                waiting = []
            else:
                at = self._token(found, at)
                if len(found) > 1 and found[-2].kind == "redirect" and _operator(found[-2]) in ("<<", "<<-"):
                    waiting.append(len(found) - 2)
        return found

    def _token(self, found: list[_Token], at: int) -> int:
        redirect = None if self.text.startswith(("<(", ">("), at) else _REDIRECT.match(self.text, at)
        if redirect:
            found.append(_Token("redirect", redirect[0]))
            return redirect.end()
        starts = not found or found[-1].kind in ("newline", "operator") or found[-1].text in _STARTERS
        for opening, ending in (("[[", "]]"), ("((", "))")):
            if starts and self.text.startswith(opening, at) and (opening == "((" or self._blank(at + 2)):
                return self._test(found, at, opening, ending)
        operator = _OPERATORS.match(self.text, at)
        if operator:
            found.append(_Token("operator", operator[0]))
            return operator.end()
        end = self._word(at)
        found.append(_Token("word", self.text[at:end]))
        return end

    def _blank(self, at: int) -> bool:
        return self.text[at : at + 1] in (" ", "\t", "\n")

    def _test(self, found: list[_Token], at: int, opening: str, ending: str) -> int:
        """Read `[[ ... ]]` or `(( ... ))` as words up to the closing one."""
        found.append(_Token("word", opening))
        begin = at = at + 2
        while at < len(self.text) and not self.text.startswith(ending, at):
            blank = self.text[at] in " \t\n" and opening == "[["
            end = at + 1 if self.text[at] in _ENDS_WORD else self._word(at)
            if opening == "[[" and not blank:
                while end < len(self.text) and not self._blank(end):
                    end = end + 1 if self.text[end] in _ENDS_WORD else self._word(end)
                found.append(_Token("word", self.text[at:end]))
            at = end
        if at >= len(self.text):
            raise Unreadable(f"{opening} is not closed")
        if opening == "((":
            found.append(_Token("word", self.text[begin:at]))
        found.append(_Token("word", ending))
        return at + 2

    def _word(self, at: int) -> int:
        begin = at
        while at < len(self.text):
            char = self.text[at]
            if char in "<>" and self.text[at + 1 : at + 2] == "(" and at == begin:
                at = self._parenthesis(at + 2, 0)
            elif char == "(" and _ARRAY.fullmatch(self.text, begin, at):
                at = self._parenthesis(at + 1, 0)
            elif char in _ENDS_WORD:
                break
            else:
                at = self.closing(at, 0)
        return at

    def closing(self, at: int, depth: int) -> int:
        """Return the position behind the character, escape, quote or expansion at `at`."""
        if depth > DEEPEST:
            raise Unreadable("its quotes and expansions are nested too deeply")
        char = self.text[at]
        if char == "\\":
            return min(at + 2, len(self.text))
        if char in "'`":
            return self._find(char, at + 1)
        if char == '"':
            return self._double(at + 1, depth)
        if char == "$":
            return self._dollar(at, depth)
        plain = _PLAIN.match(self.text, at)
        return plain.end() if plain else at + 1

    def _find(self, quote: str, at: int) -> int:
        end = self.text.find(quote, at)
        while quote == "`" and end > 0 and self.text[end - 1] == "\\":
            end = self.text.find(quote, end + 1)
        if end < 0:
            raise Unreadable("a quote is not closed")
        return end + 1

    def _double(self, at: int, depth: int) -> int:
        while at < len(self.text):
            if self.text[at] == '"':
                return at + 1
            plain = _QUOTED.match(self.text, at)
            at = plain.end() if plain else self.closing(at, depth + 1)
        raise Unreadable("a quote is not closed")

    def _dollar(self, at: int, depth: int) -> int:
        following = self.text[at + 1 : at + 2]
        if following == "(":
            return self._parenthesis(at + 2, depth + 1)
        if following == "{":
            return self._nested(at + 2, "{", "}", depth + 1)
        if following == "'":
            end = _ANSI.match(self.text, at + 2)
            if end is None:
                raise Unreadable("a quote is not closed")
            return end.end()
        name = _PARAMETER.match(self.text, at + 1)
        return name.end() if name else at + 1

    def _parenthesis(self, at: int, depth: int) -> int:
        return self._nested(at, "(", ")", depth)

    def _nested(self, at: int, opening: str, ending: str, depth: int) -> int:
        open_ = 1
        while at < len(self.text):
            char = self.text[at]
            open_ += (char == opening) - (char == ending)
            if not open_:
                return at + 1
            special = char in "\\'\"`$" and not (char == "'" and opening == "{" and depth > 1)
            at = self.closing(at, depth + 1) if special else at + 1
        raise Unreadable(f"{opening} is not closed")

    def _here_documents(self, found: list[_Token], waiting: list[int], at: int) -> int:
        for index in waiting:
            word = found[index + 1].text
            delimiter = re.sub(r"['\"\\]", "", word)
            lines = []
            while at < len(self.text):
                end = self.text.find("\n", at)
                end = len(self.text) if end < 0 else end
                line, at = self.text[at:end], end + 1
                line = line.lstrip("\t") if _operator(found[index]) == "<<-" else line
                if line == delimiter:
                    break
                lines.append(line + "\n")
            self.bodies[index] = "".join(lines)
        return min(at, len(self.text))


def _operator(token: _Token) -> str:
    return re.sub(r"^(?:\{\w+\}|\d+)", "", token.text)


class _Parser:
    def __init__(self, lexer: _Lexer) -> None:
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

    def _peek(self) -> _Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else _Token("end", "")

    def _next(self) -> _Token:
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
        return Redirect(_operator(token), target.text, self._bodies.get(index))

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
