"""Logs as collectors write them: several pods in one text, JSON behind a tag."""

from __future__ import annotations

import json

from tests.job.corpus import PEER
from tools.job.diagnosis import log_causes
from tools.job.snapshot import log_lines

TRACEBACK = ("Traceback (most recent call last):", '  File "/w/train.py", line 9, in main')


def test_json_behind_a_time_and_a_tag_is_read() -> None:
    """Fluentd writes its lines so."""
    tag = "2026-03-01 10:00:00.000000000 +0000 kube.var.log.containers.train-0: "
    text = "\n".join(
        tag + json.dumps({"log": f"{line}\n"}) for line in (*TRACEBACK, "torch.OutOfMemoryError: CUDA out of memory.")
    )
    found = log_causes.first_cause(log_lines.read(text))
    assert found is not None
    assert found.kind == "oom-device"


def test_tracebacks_of_two_pods_may_be_mixed() -> None:
    """stern writes pod and container before each line."""
    victim = ['  File "/w/train.py", line 9, in main', PEER]
    errors = {"train-0": victim, "train-1": ['  File "/w/model.py", line 3, in forward', "KeyError: 'labelz'"]}
    rows = zip(*(["Traceback (most recent call last):", *lines] for lines in errors.values()), strict=True)
    mixed = [f"{pod} pytorch {line}" for row in rows for pod, line in zip(errors, row, strict=True)]
    found = log_causes.first_cause(log_lines.read("\n".join(mixed)))
    assert found is not None
    assert (found.kind, found.place) == ("script", "/w/model.py:3, in forward")
