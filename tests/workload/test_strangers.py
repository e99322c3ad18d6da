"""Manifests in the shape of those that users bring, most with one fault, and the verdict on their wiring."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tools.core.verdict import State
from tools.kube.manifests import parse
from tools.simulator import wiring
from tools.workload import kinds

CASES = yaml.safe_load(Path(__file__).with_name("strangers.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_strangers_job_gets_its_verdict(case: dict[str, str]) -> None:
    job = kinds.find(parse(case["manifest"], case["name"])).workloads[0]
    verdict = wiring.analyse(job).verdict
    assert verdict.state is State(case["verdict"]), verdict
    assert case.get("says", "") in verdict.summary
