"""The class of a failed container's log is that of its first failure, whatever else is in the log."""
# ruff: noqa: E501 - other programs' lines are as long as they are

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.job import needed_words
from tests.job.conftest import NewWorld
from tests.job.corpus import STEP
from tests.job.log_corpus import CASES, HEALTHY, Case
from tools.core.verdict import State
from tools.job.diagnosis import cause, exit_codes, log_causes, log_failures, log_patterns, log_topics
from tools.job.diagnosis.explain import explain
from tools.job.snapshot import log_lines


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_log_has_the_class_of_its_first_failure(case: Case) -> None:
    """A log without a failure has no class: the container failed of something that the log does not show."""
    found = log_causes.first_cause(log_lines.read(case.text))
    assert (found.kind if found else HEALTHY) == case.why, found


def test_the_corpus_is_wide_enough() -> None:
    """At least 540 logs of failures and 105 of healthy jobs."""
    healthy = sum(case.why == HEALTHY for case in CASES)
    assert healthy >= 105
    assert len(CASES) - healthy >= 540


def test_lines_of_other_writers_are_not_part_of_a_message() -> None:
    """torchrun --tee marks all lines of a rank, torch only those of the exception that ended it."""
    log = """\
[default0]:Traceback (most recent call last):
[default0]:  File "/w/train.py", line 10, in main
[default0]:    step()
[default0]:KeyError: 'labels'
[default0]:saved: no space left on device is not the case"""
    found = log_causes.first_cause(log_lines.read(log))
    assert found is not None
    assert found.kind == "script"


def test_a_log_without_a_failure_has_no_cause() -> None:
    log = """\
INFO config file not found
x:1:1 [0] NCCL WARN NET/OFI no device
val error: 0.31
{"level":"warning","msg":"OSError: [Errno 28] No space left on device"}"""
    steps = [STEP.format(n=n) for n in range(1, 13)]
    assert log_causes.first_cause(log_lines.read("\n".join([log, *steps]))) is None
    assert log_causes.first_cause(log_lines.read(log)) is None


def test_a_training_job_is_healthy_whatever_its_log_says(world: NewWorld) -> None:
    for case in CASES:
        if case.why == HEALTHY:
            made = world()
            made.log(0, *case.text.splitlines(), *(STEP.format(n=n) for n in range(1, 9)), seconds=60)
            found = explain(made.snapshot())
            assert found.state is State.PASS, (case.name, found.causes)


def reported(case: Case) -> Iterator[str]:
    """The lines of a log, each report of a failure on one line, and the places that raised exceptions."""
    yield from case.text.splitlines()
    for report in log_failures.Reading(log_lines.read(case.text)).reports:
        yield from (report.text, report.place)


def patterns() -> Iterator[tuple[str, str | None, dict[str, str]]]:
    """Section, class and entry of every pattern."""
    for section, rows in log_patterns.document().items():
        for row in rows:
            yield from ((section, row.get("class"), one) for one in row.get("patterns") or [row])


EVENTS = {
    "unschedulable": "  Warning  FailedScheduling  9s  default-scheduler  0/6 nodes are available: 6 Insufficient cpu.",
    "unschedulable/ports": "Warning FailedScheduling 0/1 nodes are available: 1 node(s) didn't have free ports for the"
    " requested pod ports.",
    "image-auth": 'Warning  Failed  5s  kubelet  Failed to pull image "a/b:1": denied: 403 Forbidden',
    "image-name": 'Warning  Failed  5s  kubelet  Failed to pull image "a/b:1": manifest unknown',
    "secret-missing": 'Warning  FailedMount  8s  kubelet  MountVolume.SetUp failed for "s": secret "token" not found',
    "volume": "Warning  FailedAttachVolume  8s  attachdetach-controller  Multi-Attach error for volume",
    "pod-network": "Warning  FailedCreatePodSandBox  2s  kubelet  Failed to create pod sandbox: plugin aws-cni failed",
    "quota": 'Warning  FailedCreate  1s  job-controller  Error creating: pods "a" is forbidden: exceeded quota: q',
    "config-missing": 'Warning  Failed  1s  kubelet  Error: configmap "cell" not found',
    "command": 'Error: failed to start container "a": exec: "torchrun": executable file not found in $PATH: unknown',
    "oom-host": "      Reason:       OOMKilled",
    "evicted": "Warning  Evicted  3s  kubelet  The node was low on resource: ephemeral-storage.",
    "killed": "Warning  Unhealthy  3s  kubelet  Liveness probe failed: HTTP probe failed with statuscode: 500",
    "image-accelerator": "docker: Error response from daemon: nvidia-container-cli: requirement error: unsatisfied condition: cuda>=11.7",
    "device": 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
    "claim-missing": 'Warning  FailedScheduling  3s  default-scheduler  persistentvolumeclaim "trainyard" not found',
    "claim-pending": "Warning  FailedScheduling  3s  default-scheduler  pod has unbound immediate PersistentVolumeClaims",
    "node-refused": "train-0   0/1   UnexpectedAdmissionError   0   12m",
    "backoff": "Warning  BackoffLimitExceeded  3s  job-controller  Job has reached the specified backoff limit",
}


# Other lines about the same.
SAID = {
    "node-refused": "5m  Warning  UnexpectedAdmissionError  pod/x  Allocate failed due to no healthy devices present",
    "drained": "5m  Normal  Evicted  pod/x-worker-0  Evicted pod: Underutilized",
    "node-lost": "5m  Warning  SpotInterrupted  nodeclaim/gpu-x  Spot interruption warning was triggered",
    "preempted": "2m  Normal  Preempted  workload/x  Preempted to accommodate a workload (UID: 1) due to prioritization",
    "unschedulable": '"0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes are available: 1"',
    "image-name": "train   pod/train-0   0/1   ErrImagePull   0   60s",
    "volume": "E0506 03:08:01.364949 1 utils.go:101] GRPC error: rpc error: code = Internal desc = stat /var/lib/kubelet/pods/b/volumes/c/mount: connection refused",
    "oom-host": "train-0   0/1   OOMKilled   0   60s",
}


@pytest.mark.parametrize(("kind", "line"), [*EVENTS.items(), *SAID.items()])
def test_an_event_of_kubernetes_in_a_log_is_a_cause(kind: str, line: str) -> None:
    found = log_causes.first_cause(log_lines.read(f"Events:\n{line}\n"))
    assert found is not None
    assert found.kind == kind
    assert "unknown" not in exit_codes.summary_of(kind, "a pod")


def test_every_class_of_topics_is_one_that_has_a_remedy() -> None:
    kinds = [topic.kind for topic in log_topics.topics()]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) <= set(cause.CAUSES)


def test_every_word_of_a_topic_occurs_in_a_log() -> None:
    """A pattern of a topic that no log of failures has is not tested."""
    reports = [
        one for case in CASES if case.why != HEALTHY for one in log_failures.Reading(log_lines.read(case.text)).reports
    ]
    texts = "\n".join(f"{one.text}\n{one.place.lower()}\n{one.place}\n{one.stack.lower()}" for one in reports)
    for topic in log_topics.topics():
        for value in vars(topic).values():
            for pattern in value if isinstance(value, tuple) else [value]:
                shown = not isinstance(pattern, re.Pattern) or re.search(pattern.pattern, texts, re.MULTILINE)
                assert shown, f"{topic.kind}: no log has {pattern}"


def test_every_pattern_has_a_source_and_a_log() -> None:
    """A pattern that no log of its class needs is either wrong or not tested."""
    written = {
        why: "\n".join(text for case in CASES if case.why == why for text in reported(case))
        for why in {case.why for case in CASES}
    }
    for section, kind, one in patterns():
        assert one["says"], one
        assert one["source"], one
        regex = re.compile(one["match"], re.MULTILINE)
        of_failures = [text for why, text in written.items() if why != HEALTHY]
        logs = [written[kind or HEALTHY]] if kind or section == "harmless" else of_failures
        assert any(regex.search(text) for text in logs), f"{section}, {kind}: no log has {one['match']}"


def test_no_pattern_occurs_twice() -> None:
    counts = Counter((section, one["match"]) for section, _, one in patterns())
    assert [match for match, number in counts.items() if number > 1] == []


def test_each_pattern_of_reports_has_a_word_by_which_lines_are_found() -> None:
    """A line without any of these words is not tried, so a new pattern may need a new word."""
    words = log_topics.table("report_words")
    rows = [row["match"] for table in ("runtime", "hints", "ends") for row in log_patterns.document()[table]]
    forms = [log_patterns.form(name).pattern for name in ("asked", "child", "native", "event")]
    for pattern in [*rows, *forms]:
        needed = needed_words.of(pattern)
        assert needed, f"no word is known without which this cannot match: {pattern}"
        lacking = [one for one in needed if not any(word in one for word in words)]
        assert not lacking, f"{lacking} of {pattern}"


def test_lines_that_are_not_tried_report_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [line for case in CASES[::12] for line in case.text.split("\n")[:60]]
    bodies += [
        f"{sign} something" for sign in ("[ERROR]", "E1017 08:21:44.1", "[E101 ", "<err>", 'level="panic"', "FATAL")
    ]
    bodies += ["[F1 ] x", "E train.py:3] x", "2026-10-17 08:21:44: E core/x: y", "severity=critical x"]
    found = [log_failures._weight("", body, False) for body in bodies]
    monkeypatch.setattr(log_patterns, "may_report", lambda _: True)
    assert [log_failures._weight("", body, False) for body in bodies] == found
    assert len(set(found)) > 4
