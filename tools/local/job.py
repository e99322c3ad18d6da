"""A cell prepared to run on this machine: rendered, changed as the user asked, checked, as local pods."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tools.cells.knobs import Knobs
from tools.cells.trainer_config import load_config
from tools.core import State, UserError, Verdict, repo
from tools.kube import Manifests
from tools.simulator import volumes, wiring
from tools.simulator.local_pod import LocalPod, local_pods
from tools.simulator.supervisor import Success
from tools.workload import Pod, kinds
from tools.workload.operator_admission import MASTER

if TYPE_CHECKING:
    from training.config import Config


RUN_HERE = ("PyTorchJob", "TrainJob")
SCRIPT = re.compile(r"[^-\s]\S*\.(?:py|sh)")


@dataclass(frozen=True)
class LocalJob:
    """One job that is ready to start.

    `config` is None when its pods hold no trainer configuration. `target` are the words that name the job on
    a command line, `knobs` the user's changes, and `port` the rendezvous port that the user asked for.
    """

    source: str
    name: str
    kind: str
    manifests: Manifests
    pods: list[Pod]
    local: list[LocalPod]
    directory: Path
    backoff_limit: int | None
    config: Config | None
    wiring: Verdict
    target: tuple[str, ...]
    knobs: Knobs
    port: int | None

    def arguments(self, without: str | None = None) -> list[str]:
        """Return the user's changes as arguments of `yard run`, without the setting of the key `without`."""
        return [*self.knobs.arguments(without), *(() if self.port is None else ("--port", str(self.port)))]

    @property
    def success(self) -> Success:
        """The controller's rule for this job's success."""
        if self.pods[0].role == MASTER.lower():
            return Success.MASTER
        return Success.ANY if kinds.job_of(self.manifests).spec.get("elasticPolicy") is not None else Success.ALL

    @property
    def config_directory(self) -> Path | None:
        """The directory that will hold the first pod's configuration, if it is the trainer's."""
        given = volumes.texts(self.pods[0], self.pods[0].container, self.manifests)
        path = next((one for one in given if PurePosixPath(one).name == "model.yaml"), None)
        if path is None or self.config is None:
            return None
        return volumes.Volumes(self.local[0].mounts).local(str(PurePosixPath(path).parent))


def ready(
    manifests: Manifests, target: Sequence[str], knobs: Knobs, port: int | None = None, *, plan_only: bool = False
) -> LocalJob:
    """Check the one job of `manifests`, which have the knobs already, and return it ready to start.

    Writes nothing. With `plan_only`, missing GPUs are not an error. Raises UserError and the trainer's
    ConfigError.
    """
    manifests = manifests if port is None else _with_port(manifests, port)
    shared, checkout = repo.local(), repo.root()
    job = kinds.job_of(manifests)
    if job.kind not in RUN_HERE:
        raise UserError(f"{manifests.source}: {job.title} cannot run here", f"kinds that can: {', '.join(RUN_HERE)}")
    verdict = wiring.analyse(job).verdict
    if verdict.state is State.FAIL:
        raise UserError(f"{manifests.source}: {verdict.summary}", verdict.remedy, code=1)
    # A failed pod of a Job is made anew: here it starts again.
    pods = [replace(pod, restart_policy="OnFailure") if pod.random_end else pod for pod in job.pods()]
    config = load_config(manifests, checkout)
    # In the image, a script starts where the image says: here that is where the user is.
    started_in = Path.cwd() if config is None else checkout
    local = local_pods(pods, manifests, shared, started_in, plan_only=plan_only)
    if config is None:
        _check_script(local[0])
    else:
        _check_world(config, local)
    return LocalJob(
        source=manifests.source,
        name=job.name,
        kind=job.kind,
        manifests=manifests,
        pods=pods,
        local=local,
        directory=run_directory(local[0], shared, job.name),
        backoff_limit=job.backoff.get("backoffLimit"),
        config=config,
        wiring=verdict,
        target=tuple(target),
        knobs=knobs,
        port=port,
    )


def at_port(job: LocalJob, port: int) -> LocalJob:
    """Return the job with its pods meeting at another port than the user asked for."""
    return replace(ready(job.manifests, job.target, job.knobs, port), port=job.port)


def run_directory(pod: LocalPod, shared: Path, name: str) -> Path:
    """Return a job's run directory: the trainer's TRAINYARD_RUN, or `runs/<job>`.

    It is a directory of a volume, not a whole volume or any place that a manifest names: --fresh empties it.
    """
    named = Path(pod.environment.get("TRAINYARD_RUN") or shared)
    inside = named.parts[len(shared.parts) :] if named.is_relative_to(shared) else ()
    if ".." not in inside and len(inside) >= (3 if inside[:1] == ("claims",) else 2):
        return named
    return volumes.below(shared / "runs", name)


def _with_port(manifests: Manifests, port: int) -> Manifests:
    """Return a copy of `manifests` whose pods meet at `port`."""
    result = Manifests(manifests.source, copy.deepcopy(manifests.objects))
    kinds.job_of(result).write_port(port)
    return result


def _check_script(pod: LocalPod) -> None:
    """Raise UserError when the script that a pod starts is not on this machine."""
    script = next((word for word in pod.argv[1:] if SCRIPT.fullmatch(word)), None)
    if script is not None and not (pod.cwd / script).is_file():
        raise UserError(
            f"pod {pod.name} starts {script}, which is not on this machine (looked in {pod.cwd})",
            "run this where the script is; a script that only the image has cannot run here, but"
            " yard wiring proves the job without it",
        )


def _check_world(config: Config, pods: Sequence[LocalPod]) -> None:
    """Raise ConfigError when the job's ranks cannot share the batch, if the number of ranks is known."""
    from training.config import elastic  # imported here: a script of your own needs none of it

    text = pods[0].environment.get("PET_NPROC_PER_NODE", "")
    if text.isdigit():
        elastic.check(config, len(pods) * int(text), int(text))
