"""Divide a shell script into words, operators, redirections and here-documents, as they are written."""

import re
from typing import NamedTuple

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


class Unreadable(Exception):
    """The text is not a script that can be followed. The message says why."""


class Token(NamedTuple):
    """A token: its kind and its text."""

    kind: str  # word, operator, redirect or newline
    text: str


def closing(text: str, at: int) -> int:
    """Return the position behind the expansion or quote that begins at `at`. Raises Unreadable."""
    return Lexer(text).closing(at, 0)


class Lexer:
    """The tokens of one text. Raises Unreadable where a quote or an expansion is not closed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.bodies: dict[int, str] = {}  # of here-documents, by the index of the redirect token

    def tokens(self) -> list[Token]:
        found: list[Token] = []
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
                found.append(Token("newline", "\n"))
                at = self._here_documents(found, waiting, at + 1)
                waiting = []
            else:
                at = self._token(found, at)
                if len(found) > 1 and found[-2].kind == "redirect" and operator_of(found[-2]) in ("<<", "<<-"):
                    waiting.append(len(found) - 2)
        return found

    def _token(self, found: list[Token], at: int) -> int:
        redirect = None if self.text.startswith(("<(", ">("), at) else _REDIRECT.match(self.text, at)
        if redirect:
            found.append(Token("redirect", redirect[0]))
            return redirect.end()
        starts = not found or found[-1].kind in ("newline", "operator") or found[-1].text in _STARTERS
        for opening, ending in (("[[", "]]"), ("((", "))")):
            if starts and self.text.startswith(opening, at) and (opening == "((" or self._blank(at + 2)):
                return self._test(found, at, opening, ending)
        operator = _OPERATORS.match(self.text, at)
        if operator:
            found.append(Token("operator", operator[0]))
            return operator.end()
        end = self._word(at)
        found.append(Token("word", self.text[at:end]))
        return end

    def _blank(self, at: int) -> bool:
        return self.text[at : at + 1] in (" ", "\t", "\n")

    def _test(self, found: list[Token], at: int, opening: str, ending: str) -> int:
        """Read `[[ ... ]]` or `(( ... ))` as words up to the closing one."""
        found.append(Token("word", opening))
        begin = at = at + 2
        while at < len(self.text) and not self.text.startswith(ending, at):
            blank = self.text[at] in " \t\n" and opening == "[["
            end = at + 1 if self.text[at] in _ENDS_WORD else self._word(at)
            if opening == "[[" and not blank:
                while end < len(self.text) and not self._blank(end):
                    end = end + 1 if self.text[end] in _ENDS_WORD else self._word(end)
                found.append(Token("word", self.text[at:end]))
            at = end
        if at >= len(self.text):
            raise Unreadable(f"{opening} is not closed")
        if opening == "((":
            found.append(Token("word", self.text[begin:at]))
        found.append(Token("word", ending))
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

    def _here_documents(self, found: list[Token], waiting: list[int], at: int) -> int:
        for index in waiting:
            word = found[index + 1].text
            delimiter = re.sub(r"['\"\\]", "", word)
            lines = []
            while at < len(self.text):
                end = self.text.find("\n", at)
                end = len(self.text) if end < 0 else end
                line, at = self.text[at:end], end + 1
                line = line.lstrip("\t") if operator_of(found[index]) == "<<-" else line
                if line == delimiter:
                    break
                lines.append(line + "\n")
            self.bodies[index] = "".join(lines)
        return min(at, len(self.text))


def operator_of(token: Token) -> str:
    """Return a redirection's operator without its descriptor."""
    return re.sub(r"^(?:\{\w+\}|\d+)", "", token.text)
