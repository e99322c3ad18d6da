"""How long a submitted job is watched, and what `yard job submit --follow` submits again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.job.conftest import Cluster, NewWorld, Yard, workload
from tests.job.test_retry import PEER, failed
from tests.job.test_submit import WRAPPER
from tests.job.world import World
from tools.cells import knobs
from tools.cells.knobs import Knobs
from tools.cli.job.submit import _print_followed
from tools.core.errors import UserError
from tools.job import follow, retry
from tools.job.follow import Followed
from tools.job.snapshot.live_job import LEDGER
from tools.job.submit import Applied
from tools.kube.kubectl import CANNOT_SEE, Kubectl
from tools.kube.manifests import Manifests

Attempts = Callable[..., tuple[Followed, int, list[str]]]


def test_following_ends_at_a_step_at_a_lasting_cause_or_in_time(
    world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def followed(made: World, steps: bool = True, lasts: float = 0.0, uid: str = "uid-job") -> Followed:
        monkeypatch.setattr(follow, "STANDS", lasts)
        monkeypatch.setattr(follow, "collect", lambda *_, **__: made.snapshot())
        return follow.follow(Kubectl(), workload(made.job), uid, 0.1, said.append, steps)

    trains, waits = world(), world()
    trains.training()
    waits.pending(0, 1)
    waits.nodes = []
    found = followed(trains)
    assert (found.step is not None and found.step.step, found.cause, found.is_over) == (100, None, False)
    assert followed(trains, steps=False).step is None
    cause = followed(waits).cause
    assert cause is not None
    assert cause.kind.startswith("unschedulable")
    assert (followed(waits, lasts=60.0).cause, len(said)) == (None, 2), "each state is printed once"
    trains.end("Succeeded")
    assert followed(trains, steps=False).is_over
    with pytest.raises(UserError, match="replaced by another job: uid-job"):
        followed(trains, uid="another")


@pytest.fixture
def attempts(cluster: Cluster, world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> Attempts:
    """A function that follows a job whose attempts end after these steps; returns how many were submitted again.

    An attempt is a job of the stand-in; only its deletion and creation in the cluster are left out.
    """

    def make(*steps: int, setting: str = "retry.most=2", succeeds: bool = False) -> tuple[Followed, int, list[str]]:
        said: list[str] = []
        ledgers = ["[]"]
        seen: list[Any] = []
        for number, step in enumerate(steps):
            trains, ends = world(), world()
            trains.training(steps=step)
            last = succeeds and number + 1 == len(steps)
            ends.end("Succeeded") if last else failed(ends, PEER)
            ends.training(steps=step)
            ends.running(1)  # the operator has not deleted it yet
            seen += [(number, trains), UserError("the API server is down", code=CANNOT_SEE), (number, ends)]

        def collect(*_: Any, **__: Any) -> Any:
            one = seen.pop(0)
            if isinstance(one, UserError):
                raise one
            number, made = one
            made.job["metadata"] |= {"uid": f"uid-{number}", "annotations": {LEDGER: ledgers[-1]}}
            cluster(made)
            return made.snapshot()

        def carry_out(_: Kubectl, __: Any, objects: Manifests, ___: Any) -> list[Applied]:
            job = objects.job()
            ledgers.append(job["metadata"]["annotations"][LEDGER])
            return [Applied(job["kind"], job["metadata"]["name"], f"uid-{len(ledgers) - 1}")]

        monkeypatch.setattr(follow, "LOOK", 0.0)
        monkeypatch.setattr(follow, "collect", collect)
        monkeypatch.setattr(retry, "carry_out", carry_out)
        manifests = knobs.rendered("cpu/llama-tiny", None, Knobs(settings=(setting,) if setting else ()))
        found = follow.to_the_end(Kubectl(None, "team-a"), manifests, "uid-0", said.append)
        assert not seen, "all attempts were watched to their end"
        assert said.count("not seen this time: the API server is down") == len(steps)
        return found, len(ledgers) - 1, said

    return make


@pytest.mark.parametrize(
    ("steps", "options", "again", "code", "says"),
    [
        ((100, 200, 300), {"succeeds": True}, 2, 0, "attempt 2 of 2: lost-peer: "),
        ((100, 200, 300), {}, 2, 1, "not submitted again: retried 2 times already, 2 are allowed"),
        ((100, 100), {}, 1, 1, "not submitted again: there was no new step since the attempt before"),
        ((100,), {"setting": "retry.classes=[hang]"}, 0, 1, "not submitted again: retry.classes does not have"),
        ((100,), {"setting": ""}, 0, 1, "Running: "),
    ],
)
def test_a_job_is_submitted_again_as_its_key_retry_allows(
    steps: tuple[int, ...], options: dict[str, Any], again: int, code: int, says: str, attempts: Attempts
) -> None:
    found, submitted, said = attempts(*steps, **options)
    assert submitted == again
    assert any(line.startswith(says) for line in said), said
    assert _print_followed(Kubectl(None, "team-a"), [], found, True) == code, "its last steps are not the answer"


def test_the_job_of_a_wrapper_is_not_followed(world: NewWorld, cluster: Cluster, yard: Yard, tmp_path: Path) -> None:
    cluster(world())
    (tmp_path / "job.json").write_text(json.dumps(WRAPPER))
    error = yard.err("submit", "-f", str(tmp_path / "job.json"), "--follow", code=2)
    assert "the controller of AppWrapper/wrapped may make the job much later" in error
