"""The rule for each fault fails a bad manifest, and no other rule does. Good manifests pass."""

from __future__ import annotations

import contextlib
import copy
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.core.errors import UserError
from tools.core.verdict import State
from tools.kube.manifests import Manifests, read
from tools.kube.schemas import Schemas
from tools.preflight.evaluate import Evaluation, evaluate, rules

CORPUS = Path(__file__).parent / "corpus"
BAD, UNCLEAR, GOOD = (sorted((CORPUS / kind).glob("*.yaml")) for kind in ("bad", "unclear", "good"))
LETTERS = "qWmZ7rTnKpLx3VbHsJdGfYc9UaEoIq5RtYuBn2Xk93nd"
# Values that a typo or a template engine leaves in the place of another value.
RUBBISH: list[Any] = [
    *(None, "", "text", 0, -1, 1.5, True),
    *([], [None], ["a"], [{}], {}, {"name": 1}, {"a": {"b": []}}),
]


def header(path: Path) -> tuple[str, str, set[str]]:
    """Return the header of a manifest: its fault, its rule, and other rules that report the same fault."""
    head = re.match(
        r"# (?:fault|open): (.*(?:\n#   .*)*)\n# rule: (\S+)(?:\n# also: (.*))?\n",
        path.read_text(encoding="utf-8"),
    )
    assert head, f"{path.name} needs a header: # fault: (or # open:), # rule:, and # also: if there are more"
    return head[1], head[2], set(head[3].split(", ")) if head[3] else set()


def failures(checked: Evaluation) -> list[tuple[str, str]]:
    return [(one.details["rule"], one.summary) for one in checked.of(State.FAIL)]


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_only_the_rules_of_a_fault_fail(path: Path, known: Schemas) -> None:
    _, rule, also = header(path)
    checked = evaluate(read(path, path.name))
    assert {name for name, _ in failures(checked)} == {rule} | also, failures(checked)
    assert checked.state is State.FAIL
    assert all(verdict.evidence and verdict.details["object"] for verdict in checked.of(State.FAIL))
    remedies = [one.remedy for one in checked.of(State.FAIL) if one.details["rule"] == rule]
    assert any(remedies) or rule == "wiring"


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_manifest_passes(path: Path, known: Schemas) -> None:
    checked = evaluate(read(path))
    assert failures(checked) == []
    assert checked.of(State.PASS)


@pytest.mark.parametrize("path", UNCLEAR, ids=lambda path: path.stem)
def test_missing_information_is_reported_as_unknown(path: Path, known: Schemas) -> None:
    checked = evaluate(read(path))
    assert checked.state is State.CANNOT_TELL, failures(checked)
    assert {one.details["rule"] for one in checked.of(State.CANNOT_TELL)} == {header(path)[1]}
    assert checked.state.exit_code == 3


def test_the_corpus_has_a_bad_manifest_for_each_rule() -> None:
    headers = [header(path) for path in BAD]
    assert {rule for _, rule, _ in headers} == set(rules())
    assert all(also <= set(rules()) for _, _, also in headers)
    assert len({fault for fault, _, _ in headers}) == len(BAD) >= 60
    assert len(GOOD) >= 20
    assert len(UNCLEAR) >= 8


@pytest.mark.parametrize(
    ("kind", "token"),
    [
        ("a GitLab token", "glpat" + "-" + LETTERS[:20]),
        ("a Slack token", "xoxb" + "-123456789012-" + LETTERS[:24]),
        ("an NVIDIA key", "nvapi" + "-" + LETTERS),
        ("a GitHub token", "ghr" + "_" + LETTERS[:36]),
    ],
)
@pytest.mark.parametrize("form", ["{}", "exec train --key={}", "https://host/?key={}&x=1"])
def test_a_token_of_any_kind_fails_and_is_not_printed(kind: str, token: str, form: str) -> None:
    manifests = read(CORPUS / "good" / "worker-only-c10d.yaml")
    worker = manifests.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    worker["containers"][0]["env"] = [{"name": "SETTING", "value": form.format(token)}]
    checked = evaluate(manifests)
    assert failures(checked) == [("secret-literal", f"{kind} in plain text")]
    assert token not in str(checked.verdicts)


def test_cells_are_clean(cells: list[Manifests], known: Schemas) -> None:
    assert len(cells) > 40
    for cell in cells:
        checked = evaluate(cell)
        others = [one for one in checked.verdicts if one.state is not State.PASS]
        assert others == [], cell.source
        applied = {one.details["rule"] for one in checked.verdicts}
        assert applied >= {
            "wiring",
            "config",
            "schema",
            "cpu-fits" if "/cpu/" not in cell.source else "types",
        }
        assert "PersistentVolumeClaim trainyard" in checked.needs


def test_a_broken_cell_is_not_clean(cells: list[Manifests], known: Schemas) -> None:
    """Control: each of these changes breaks any cell."""
    for cell in cells[::7]:
        renamed, apart, unused = (copy.deepcopy(cell) for _ in range(3))
        renamed.of_kind("ConfigMap")[0]["metadata"]["name"] = "other-7f9d66km9d"
        volumes = renamed.job()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["volumes"]
        volumes[0]["projected"]["sources"][0]["configMap"]["name"] = "other"
        apart.job()["spec"]["elasticPolicy"]["maxReplicas"] = 0
        unused.of_kind("ServiceAccount")[0]["metadata"]["name"] = "unused"
        broken = {"references": renamed, "elastic-bounds": apart, "service-account": unused}
        for rule, changed in broken.items():
            assert rule in dict(failures(evaluate(changed))), cell.source


def _nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every value in an object as its container and its key."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(pairs):
        yield value, key
        yield from _nodes(inner)


@pytest.mark.parametrize("seed", range(4))
def test_no_manifest_crashes_a_rule(seed: int, known: Schemas) -> None:
    """400 manifests with one wrong value each: the result is verdicts or one error."""
    dice = random.Random(seed)
    paths = [*BAD, *GOOD]
    checked = 0
    for _ in range(100):
        manifests = read(dice.choice(paths))
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
            checked += 1
    assert checked > 90
