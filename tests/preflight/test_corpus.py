"""Bad manifests are caught by the rule that is for them, and by no other; good ones raise no alarm."""

from __future__ import annotations

import contextlib
import copy
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tools.core.errors import UserError
from tools.core.verdict import State
from tools.kube.manifests import Manifests, read
from tools.kube.schemas import Schemas
from tools.preflight.evaluate import evaluate, rules

CORPUS = Path(__file__).parent / "corpus"
BAD = sorted((CORPUS / "bad").glob("*.yaml"))
UNCLEAR = sorted((CORPUS / "unclear").glob("*.yaml"))
GOOD = sorted((CORPUS / "good").glob("*.yaml"))
# What a wrong hand or a template engine leaves in the place of a value.
RUBBISH: list[Any] = [
    None,
    "",
    "text",
    0,
    -1,
    1.5,
    True,
    [],
    [None],
    ["a"],
    [{}],
    {},
    {"name": 1},
    {"a": {"b": []}},
]


@dataclass(frozen=True)
class Bad:
    """A bad manifest: the rule that must catch it, and those that see the same fault from another side."""

    manifests: Manifests
    fault: str
    rule: str
    also: frozenset[str]


def bad(path: Path) -> Bad:
    """Read a bad manifest with its header."""
    head = path.read_text(encoding="utf-8").split("\napiVersion:")[0]
    said = re.search(r"# fault: (.*(?:\n#   .*)*)\n# rule: (\S+)(?:\n# also: (.*))?", head)
    assert said, f"{path.name} needs a header: # fault: ..., # rule: ..., and # also: ... where there is more"
    also = frozenset(said[3].split(", ")) if said[3] else frozenset()
    return Bad(read(path, path.name), said[1], said[2], also)


def names(path: Path) -> str:
    """Return a file's name for a test's id."""
    return path.stem


@pytest.mark.parametrize("path", BAD, ids=names)
def test_bad_manifest_is_caught_by_its_rule_and_no_other(path: Path, known: Schemas) -> None:
    example = bad(path)
    judged = evaluate(example.manifests)
    failed = {verdict.details["rule"] for verdict in judged.of(State.FAIL)}
    assert failed == {example.rule} | example.also, [one.summary for one in judged.of(State.FAIL)]
    assert judged.state is State.FAIL
    for verdict in judged.of(State.FAIL):
        assert verdict.evidence
        assert verdict.details["object"]
    caught = [one for one in judged.of(State.FAIL) if one.details["rule"] == example.rule]
    assert any(verdict.remedy for verdict in caught) or example.rule == "wiring"


@pytest.mark.parametrize("path", GOOD, ids=names)
def test_good_manifest_raises_no_alarm(path: Path, known: Schemas) -> None:
    judged = evaluate(read(path))
    assert [(one.details["rule"], one.summary) for one in judged.of(State.FAIL)] == []
    assert judged.of(State.PASS)


@pytest.mark.parametrize("path", UNCLEAR, ids=names)
def test_what_cannot_be_told_is_not_guessed(path: Path, known: Schemas) -> None:
    said = re.search(r"^# open: .*(?:\n#   .*)*\n# rule: (\S+)\n", path.read_text(encoding="utf-8"))
    assert said
    judged = evaluate(read(path))
    assert judged.state is State.CANNOT_TELL, [one.summary for one in judged.of(State.FAIL)]
    assert {one.details["rule"] for one in judged.of(State.CANNOT_TELL)} == {said[1]}
    assert judged.state.exit_code == 3


def test_the_corpus_is_whole() -> None:
    """Each rule has a bad example, and no example names a rule that is not there."""
    examples = [bad(path) for path in BAD]
    assert {example.rule for example in examples} == set(rules())
    assert all(example.also <= set(rules()) for example in examples)
    assert len(BAD) >= 60
    assert len(GOOD) >= 20
    assert len(UNCLEAR) >= 8
    assert len({example.fault for example in examples}) == len(BAD)


def test_cells_are_clean(cells: list[Manifests], known: Schemas) -> None:
    assert len(cells) > 40
    for cell in cells:
        judged = evaluate(cell)
        found = [
            (one.state, one.details["rule"], one.summary)
            for one in judged.verdicts
            if one.state is not State.PASS
        ]
        assert found == [], cell.source
        judging = {one.details["rule"] for one in judged.verdicts}
        assert judging >= {
            "wiring",
            "config",
            "schema",
            "cpu-fits" if "/cpu/" not in cell.source else "types",
        }
        assert "PersistentVolumeClaim trainyard" in judged.needs


def test_a_broken_cell_is_not_clean(cells: list[Manifests], known: Schemas) -> None:
    """Control: each of these breaks any cell, and is said by the rule that is for it."""
    for cell in cells[::7]:
        renamed, apart, unused = (copy.deepcopy(cell) for _ in range(3))
        renamed.of_kind("ConfigMap")[0]["metadata"]["name"] = "other-7f9d66km9d"
        volumes = renamed.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["volumes"]
        volumes[0]["projected"]["sources"][0]["configMap"]["name"] = "other"
        apart.job()["spec"]["elasticPolicy"]["maxReplicas"] = 0
        unused.of_kind("ServiceAccount")[0]["metadata"]["name"] = "somebody"
        for changed, rule in (
            (renamed, "references"),
            (apart, "elastic-bounds"),
            (unused, "service-account"),
        ):
            assert rule in {one.details["rule"] for one in evaluate(changed).of(State.FAIL)}, cell.source


def _nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in an object at which a value stands: its container and its key."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    for key, inner in pairs:
        yield value, key
        yield from _nodes(inner)


@pytest.mark.parametrize("seed", range(4))
def test_no_manifest_makes_a_rule_stumble(seed: int, known: Schemas) -> None:
    """Rubbish in any place ends in verdicts, or in one error; 400 manifests with one wrong value each."""
    dice = random.Random(seed)
    paths = [*BAD, *GOOD]
    judged = 0
    for _ in range(100):
        manifests = copy.deepcopy(read(dice.choice(paths)))
        places = [
            (holder, key)
            for item in manifests.objects
            for holder, key in _nodes(item)
            if key not in ("kind", "metadata") and not (key == "name" and holder is item.get("metadata"))
        ]
        holder, key = dice.choice(places)
        holder[key] = copy.deepcopy(dice.choice(RUBBISH))
        with contextlib.suppress(UserError):
            evaluate(manifests)
            judged += 1
    assert judged > 90
