"""The plan of a job beside what its run does."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tools.core import UserError
from tools.job.metrics.series import Record
from tools.job.snapshot import Snapshot
from tools.kube import Object

if TYPE_CHECKING:  # slow to import, and most jobs have no plan
    from tools.plan.outlook import Plan


def of(snapshot: Snapshot, records: Sequence[Record]) -> Plan | None:
    """Return the plan from the configuration in the run directory, None if there is nothing to plan from.

    An elastic job is planned with the ranks of its newest record.
    """
    text = (snapshot.run or {}).get("config")
    if not text or not records:
        return None
    from pydantic import ValidationError

    from tools.cells import outlook
    from training.config import Config, ConfigError

    ranks = len(records[-1].rank_step_s)
    try:
        plan = outlook.of_job(snapshot.workload, Config.model_validate(json.loads(text)), ranks)
    except (UserError, ConfigError, ValidationError, ValueError):  # of another release, or not the trainer's
        return None
    return plan if plan.steps else None


def present(records: Sequence[Record]) -> list[Record]:
    """Return the timed steps with as many ranks as the newest one has."""
    timed = [record for record in records if record.step_s]
    return [record for record in timed if len(record.rank_step_s) == len(timed[-1].rank_step_s)]


def beside(snapshot: Snapshot, records: Sequence[Record]) -> Object | None:
    """Return the planned and the measured time of a step for JSON and in words, None if one of them is unknown."""
    timed = present(records)
    plan = of(snapshot, timed)
    if plan is None or plan.step_s is None:
        return None
    measured = statistics.median(record.step_s or 0.0 for record in timed)
    says = f"a step takes {measured:.3g} s, planned {plan.step_s:.3g} s (within {plan.error:.0%})"
    return {"step_s": plan.step_s, "measured_s": measured, "says": f"{says}: {plan.slower(measured) or 'as planned'}"}
