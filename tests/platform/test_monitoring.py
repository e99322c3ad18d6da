"""Alert rules and dashboards: they refer only to metrics that a pod tells or a rule records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tools.core import repo
from training.pod.exposition import FAMILIES

PLUGIN = repo.root() / "base/plugins/monitoring"
METRIC = re.compile(r"\btrainyard[_:][a-z0-9_:]+")
Object = dict[str, Any]


@pytest.fixture(scope="module")
def rules(objects: Callable[[str], list[Object]]) -> list[Object]:
    (made,) = objects((PLUGIN / "rules.yaml").read_text(encoding="utf-8"))
    return [rule for group in made["spec"]["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def known(rules: list[Object]) -> set[str]:
    return FAMILIES.keys() | {rule["record"] for rule in rules if "record" in rule}


def test_rules_use_metrics_that_exist(rules: list[Object], known: set[str]) -> None:
    used = {name for rule in rules for name in METRIC.findall(rule["expr"])}
    assert len(used) >= 8
    assert used <= known
    for rule in rules:
        if "alert" in rule:
            assert set(rule["annotations"]) == {"summary", "action"}
            assert rule["labels"]["severity"] in ("warning", "critical")


@pytest.mark.parametrize("name", ["training", "fleet", "goodput"])
def test_a_dashboard_uses_metrics_that_exist(name: str, known: set[str]) -> None:
    board = json.loads((PLUGIN / "dashboards" / f"{name}.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    used = {found for text in expressions for found in METRIC.findall(text)}
    assert len(expressions) >= 7
    assert used <= known
    assert board["uid"] == f"trainyard-{name}"
    places = [tuple(panel["gridPos"][key] for key in "xy") for panel in board["panels"]]
    assert len(set(places)) == len(places), "two panels lie on each other"
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])


def test_a_metric_that_does_not_exist_is_seen(known: set[str]) -> None:
    """Control: one letter more."""
    assert not {f"{name}x" for name in FAMILIES} & known
    assert METRIC.findall("rate(trainyard_steps[5m]) / trainyard:x:y") == ["trainyard_steps", "trainyard:x:y"]
