"""A container's command line: its words, options and literal variables, as the manifest gives them."""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from tools.kube.manifests import Object
from tools.simulator.environment import LONGEST, check_size, expand
from tools.simulator.prefixes import behind_prefixes
from tools.simulator.shell import SHELLS


def literals(container: Object) -> dict[str, str]:
    """Return the variables with a literal value, `$(NAME)` expanded where it is known."""
    values: dict[str, str] = {}
    size = 0
    for entry in container.get("env") or []:
        if entry.get("value") is not None:
            values[entry["name"]] = expand(entry["value"], values)
            size += len(values[entry["name"]])
            check_size(size)
    return values


def command(container: Object) -> list[str]:
    """Return command and args, `$(NAME)` expanded where it is known."""
    values = literals(container)
    return [expand(word, values) for word in [*(container.get("command") or []), *(container.get("args") or [])]]


def script(container: Object) -> str | None:
    """Return the text that a shell gets with -c, or None for another command."""
    words = behind_prefixes(command(container), {})[0]
    if not words or PurePosixPath(words[0]).name not in SHELLS:
        return None
    for index, word in enumerate(words[1:-1], start=1):
        if word.startswith("-") and not word.startswith("--") and word.endswith("c"):
            return words[index + 1]
    return None


def words(container: Object) -> list[str]:
    """Return all words of the command and of a shell's script. Shell variables are not expanded."""
    text = script(container)
    if text is None:
        return command(container)
    if len(text) > LONGEST:
        return []  # Linux refuses to start it
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError:
        return text.split()


def option(given: Sequence[str], names: Sequence[str]) -> tuple[str, str] | None:
    """Return the last of the options `names`, in a section too (`--trainer.save-dir`), and its value. - equals _."""
    wanted = {name.replace("_", "-") for name in names}
    found = None
    for index, word in enumerate(given):
        key, separator, value = word.partition("=")
        name = key.lstrip("-+").rpartition(".")[2].replace("_", "-")
        if name not in wanted or not (separator or key.startswith("-")):
            continue
        following = given[index + 1] if index + 1 < len(given) else ""
        if separator or not following.startswith("-"):
            found = (key, value if separator else following)
    return found


def number(text: str) -> int | None:
    """Return a whole number, or None for any other text."""
    return int(text) if re.fullmatch(r"[0-9]+", text) else None
