"""What a few filters of shell scripts print: awk, cut, sed, grep -o, tr and rev, in the forms that take a
number out of a pod's name.

A form that is not listed gives None. Patterns are rebuilt from a few harmless parts, so that each of them is
fast on the short texts that are taken.
"""

import re
from collections.abc import Sequence

LONGEST = 128  # characters of a text that is filtered
MOST_REPEATED = 2  # parts of a pattern with * or +
_PART = re.compile(r"\[\^?[A-Za-z0-9_.-]+\]|\\[d.()+-]|[A-Za-z0-9_/:,.*+^$()-]|\[\^?\[:digit:\]\]")
_FIELD = re.compile(r"\{ *+print ++\$(NF|[1-9]|\(NF ?- ?1\)) *+(?:; *+)?\}")


def filtered(words: Sequence[str], text: str) -> str | None:
    """Return what a filter prints for a text, None where that is unknown; of several lines the first or the last."""
    match list(words):
        case ["head" | "tail" as end, "-1" | "-n1"] | ["head" | "tail" as end, "-n", "1"] | ["sed" as end, "-n", "1p"]:
            return (text.splitlines() or [""])[-1 if end == "tail" else 0]
    if len(text) > LONGEST or "\n" in text or not text.isprintable():
        return None
    match list(words):
        case ["rev"]:
            return text[::-1]
        case ["cat"]:
            return text
        case ["tr", "-dc" | "-cd", "0-9" | "[:digit:]" | "[0-9]"]:
            return "".join(char for char in text if char in "0123456789")
        case ["awk", *options, program] if field := _FIELD.fullmatch(program.strip()):
            return _field(text, _value(options, "-F"), field[1])
        case ["cut", *options]:
            return _cut(text, options)
        case ["sed", *options, program] if set(options) <= {"-E", "-r", "-e"}:
            return _substituted(text, program, "-E" in options or "-r" in options)
        case ["grep", "-o" | "-oE" | "-Eo" | "-oP" | "-Po" as option, pattern]:
            found = _pattern(pattern, option != "-o")
            return "\n".join(filter(None, (one[0] for one in found.finditer(text)))) if found else None
    return None


def _value(options: Sequence[str], name: str) -> str:
    """Return the value of the only option, joined to its name or behind it."""
    joined = "".join(options)
    return joined.removeprefix(name) if joined.startswith(name) and len(options) <= 2 else ""


def _field(text: str, separator: str, field: str) -> str | None:
    if len(separator) > 1 or separator in ("|", "^", "$", "*", "+", "?", "(", "[", "\\"):
        return None
    parts = text.split(separator) if separator else text.split()
    at = len(parts) - 1 if field == "NF" else int(field) - 1 if field.isdigit() else len(parts) - 2
    if not 0 <= at < len(parts):
        return "" if field.isdigit() else None
    return parts[at]


def _cut(text: str, options: Sequence[str]) -> str | None:
    match = re.fullmatch(r"(?:-d ?(.) -f ?([1-9][0-9]?)|-f ?([1-9][0-9]?) -d ?(.))", " ".join(options))
    if match is None:
        return None
    parts = text.split(match[1] or match[4])
    at = int(match[2] or match[3]) - 1
    return parts[0] if len(parts) == 1 else parts[at] if at < len(parts) else ""


def _substituted(text: str, program: str, extended: bool) -> str | None:
    """Return the text after sed's `s`, with a replacement that is plain or the first group."""
    if len(program) < 4 or program[0] != "s" or program[1] not in "/|#,:@":
        return None
    parts = program[2:].split(program[1])
    if len(parts) != 3 or parts[2] not in ("", "g") or not re.fullmatch(r"[A-Za-z0-9_.-]*|\\1", parts[1]):
        return None
    pattern = _pattern(parts[0], extended)
    if pattern is None or (parts[1] == "\\1" and not pattern.groups):
        return None
    return pattern.sub(parts[1], text, count=0 if parts[2] else 1)


def _pattern(text: str, extended: bool) -> re.Pattern[str] | None:
    """Return a pattern of grep and sed as Python's, or None where it has other parts than the known ones."""
    made, repeated, at = "", 0, 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            return None
        part, at = found[0], found.end()
        special = part[-1] in "+()" and (len(part) == 1) == extended
        if part == "*" or (special and part[-1] == "+"):
            repeated += 1
            if made[-1:] in ("", "(", ")", "^", "*", "+"):
                return None
        made += part[-1] if special else f"\\{part}" if part in ("+", "(", ")") else _python(part)
    try:
        return re.compile(made) if repeated <= MOST_REPEATED else None
    except re.error:
        return None


def _python(part: str) -> str:
    if part in ("\\+", "\\(", "\\)"):
        return part
    return part.replace("[:digit:]", "0-9").replace("\\d", "[0-9]")
