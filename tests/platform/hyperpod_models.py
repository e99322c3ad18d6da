"""Checks jobs with HyperPod's packages, in an environment of these packages. JSON in, JSON out.

A list of questions gives a list of answers. A question that is null is skipped.
In:  {"job": the HyperPodPyTorchJob, "flat": fields of the command line's form, "lines": [[second, line], ...]
      of rank 0, "rules": {name: rule, ...} to evaluate on the same lines}
Out: {"spec": [errors], "flat": the job that the command line would create, or [errors],
      "states": {rule: {"after": [[second, state], ...], "silent": state of a rank that prints nothing}}}
"""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType
from typing import Any

FOREVER = 20_000  # seconds of silence to try
STEP = 10


def main() -> None:
    answers = [
        {
            "spec": _spec_errors(asked["job"]["spec"]) if asked["job"] else None,
            "flat": _domain(asked["flat"]) if asked["flat"] else None,
            "states": {name: _states(rule, asked["lines"]) for name, rule in asked["rules"].items()},
        }
        for asked in json.load(sys.stdin)
    ]
    json.dump(answers, sys.stdout)


def _spec_errors(spec: dict[str, Any]) -> list[str]:
    from pydantic import ValidationError
    from sagemaker.hyperpod.training.config import (  # type: ignore[import-not-found]
        hyperpod_pytorch_job_unified_config as models,
    )

    # The outermost model ignores unknown fields, the nested models refuse them.
    known = models._HyperPodPytorchJob.model_fields
    errors = [f"{key}: not a field" for key in spec if key not in known]
    try:
        models._HyperPodPytorchJob.model_validate(spec, by_name=True, by_alias=False)
    except ValidationError as problem:
        errors += [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in problem.errors()]
    return errors


def _domain(flat: dict[str, Any]) -> Any:
    from hyperpod_pytorch_job_template.registry import SCHEMA_REGISTRY  # type: ignore[import-not-found]
    from pydantic import ValidationError

    newest = max(SCHEMA_REGISTRY, key=lambda version: [int(part) for part in version.split(".")])
    try:
        return SCHEMA_REGISTRY[newest](**flat).to_domain().model_dump(exclude_none=True)
    except ValidationError as problem:
        return [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in problem.errors()]


def _states(rule: dict[str, Any], lines: list[tuple[float, str]]) -> dict[str, Any]:
    """Return the states of a rule with the second of each change, with the lines and in silence."""
    agent = _log_agent()
    clock = [0.0]
    agent.__dict__["time"] = type("Clock", (), {"time": staticmethod(lambda: clock[0])})
    speaking, silent = agent.LogEvaluator(rule), agent.LogEvaluator(rule)
    after: list[tuple[float, str]] = []
    pending = list(lines)
    error = None
    while clock[0] < (lines[-1][0] if lines else 0) + FOREVER:
        line = pending.pop(0)[1] if pending and pending[0][0] <= clock[0] else None
        try:
            state = speaking.evaluate(line)[0].value
        except ValueError as problem:
            error = str(problem)
            state = "ERROR"
        if not after or after[-1][1] != state:
            after.append((clock[0], state))
        quiet = silent.evaluate()[0].value
        if line is None:
            clock[0] += STEP
    return {"after": after, "silent": quiet, "error": error}


def _log_agent() -> ModuleType:
    """Load only the agent's log module: its package imports torch."""
    package = importlib.util.find_spec("hyperpod_elastic_agent")
    assert package is not None
    assert package.submodule_search_locations is not None
    path = f"{package.submodule_search_locations[0]}/logagent/log_agent.py"
    spec = importlib.util.spec_from_file_location("log_agent", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
