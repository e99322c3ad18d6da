"""The points of a sweep: the product of some keys' values, each with a name that tells its job apart."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tools.cells.knobs import Knobs
from tools.core import UserError

MOST = 64  # jobs of one sweep
EXAMPLE = "--sweep train.learning_rate=1e-4,3e-4"


def points(knobs: Knobs, sweeps: Sequence[str]) -> list[Knobs]:
    """Return the knobs of each job: only `knobs` without a sweep. Raises UserError."""
    values = dict(_parsed(one) for one in sweeps)
    if len(values) < len(sweeps):
        raise UserError("--sweep: a key is given twice", f"all its values in one: {EXAMPLE}")
    fixed = {one.partition("=")[0].strip() for one in knobs.settings}
    if both := sorted(fixed & set(values)):
        raise UserError(f"{both[0]}: given with --sweep and with --set", "remove one of them")
    pairs = [[(key, value) for value in values[key]] for key in values]
    found = list(itertools.islice(itertools.product(*pairs), MOST + 1))
    if len(found) > MOST:
        raise UserError(f"--sweep: more than {MOST} jobs, the most of one sweep", "give fewer values")
    if not sweeps:
        return [knobs]
    short = _short(list(values))
    made = [_point(knobs, pair, short) for pair in found]
    again = [name for name, count in Counter(one.name for one in made).items() if count > 1]
    if again:
        raise UserError(f"--sweep: two jobs would have the name {again[0]}", "give values that differ more")
    return made


def _parsed(text: str) -> tuple[str, list[str]]:
    key, equals, rest = text.partition("=")
    values = [one.strip() for one in rest.split(",")]
    if not key.strip() or not equals or not all(values):
        raise UserError(f"--sweep {text[:80]!r}: KEY=VALUE,VALUE is needed", EXAMPLE)
    if len(set(values)) < len(values):
        raise UserError(f"--sweep {text[:80]!r}: a value is given twice", EXAMPLE)
    return key.strip(), values


def _point(knobs: Knobs, pairs: Sequence[tuple[str, str]], short: dict[str, str]) -> Knobs:
    words = [f"{short[key]}-{value}" for key, value in pairs]
    name = "-".join(re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") for word in words)
    settings = tuple(f"{key}={value}" for key, value in pairs)
    return replace(knobs, settings=(*knobs.settings, *settings), name=f"{knobs.name}-{name}" if knobs.name else name)


def _short(keys: Sequence[str]) -> dict[str, str]:
    """Return a short name of each key: `lr` of train.learning_rate, the whole key if two have the same."""
    words = {key: key.rpartition(".")[2].split("_") for key in keys}
    initials = {
        key: "".join(word[:1] for word in parts) if len(parts) > 1 else parts[0] for key, parts in words.items()
    }
    count = Counter(initials.values())
    return {key: name if count[name] == 1 else key for key, name in initials.items()}
