"""Where a run is, here or in a cluster, and what is asked about its checkpoints."""

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cli._parameters import shared
from tools.cli._runs import run_directory
from tools.core import UserError, output
from training import checkpoints
from training.checkpoint.errors import CheckpointError
from training.run import signing

_NAMES_IN_LINE = 6


@dataclass(frozen=True)
class Place:
    """A run directory on this machine, that of a job, which is read through a pod, or a place in a bucket."""

    run: str | None
    name: str | None
    job: str | None
    namespace: str | None
    context: str | None

    @property
    def address(self) -> str | Path:
        if is_bucket(self.run):
            if self.name:
                raise UserError(f"{self.run}: --name is for a run on this machine", "add the run's name to the address")
            return str(self.run)
        return run_directory(self.run, self.name)

    def ask(self, what: str, *, kind: Any = dict[str, Any], key: Path | None = None, **given: Any) -> Any:
        """Return the answer of `training.checkpoints` to a question, of the type `kind`.

        Raises UserError for what cannot be answered, and for an answer of another type from a pod.
        """
        if self.job is not None:
            if self.run or self.name or key:
                raise UserError("--job takes neither RUN, --name nor --key: the pod has the job's run and key")
            return _checked(self._of_pod(what, given), kind, self.job)
        if key is not None:
            os.environ[signing.KEY_FILE] = str(key.absolute())
        try:
            return checkpoints.answer(what, self.address, **given)
        except (CheckpointError, signing.SigningError) as problem:
            raise UserError(str(problem), code=checkpoints.code_of(problem)) from None

    def _of_pod(self, what: str, given: dict[str, Any]) -> Any:
        from tools.job import volume_reader  # slow to import, and not needed for a run on this machine
        from tools.job.snapshot import collect
        from tools.job.snapshot.pod import RUN_VARIABLE
        from tools.job.snapshot.pod_exec import in_pod
        from tools.kube import Kubectl

        here, seen = collect.find(Kubectl(self.context, self.namespace), self.job, logs=False, run=False)
        writes = what == "prune" or bool(given.get("now"))
        with volume_reader.reading(here, seen, output.note, writes=writes) as pod:
            program = f'python3 -m training.checkpoints "$0" --run "${RUN_VARIABLE}" "$@" || [ $? = 2 ]'
            text = in_pod(here, pod, "sh", "-c", program, what, *_options(given))
        with contextlib.suppress(ValueError, RecursionError):
            answer = json.loads(text)
            if not (isinstance(answer, dict) and isinstance(answer.get("error"), str)):
                return answer
            raise UserError(
                output.short(answer["error"], 400), code=answer["code"] if answer.get("code") in (1, 3) else 2
            )
        raise UserError(f"{pod.name} gave no answer: its image needs a trainer of this version", code=3)


def is_bucket(run: str | None) -> bool:
    return run is not None and run.startswith("s3://")


@shared
def place(run: str | None, name: str | None, job: str | None, namespace: str | None, context: str | None) -> Any:
    return {"place": Place(run, name, job, namespace, context)}


def _options(given: dict[str, Any]) -> list[str]:
    options = [] if given.get("step") is None else [f"--step={given['step']}"]
    options += [f"--name={name}" for name in given.get("names", ())]
    options += [f"--rule={name}={value}" for name, value in given.get("given", {}).items()]
    options += [f"--to={given['to']}"] if given.get("to") else []
    return [*options, *(["--now"] if given.get("now") else [])]


def _checked(answer: Any, kind: Any, job: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(answer, strict=True)
    except ValidationError:
        raise UserError(f"the pod of {job} gave an answer that is not the trainer's", code=3) from None


def size(checkpoint: checkpoints.Row) -> str:
    """Return a checkpoint's bytes, files, ranks and tokens in one line."""
    tokens = "" if checkpoint["tokens"] is None else f", {checkpoint['tokens']:,} tokens seen"
    files, ranks = output.count(checkpoint["file_count"], "file"), output.count(checkpoint["ranks"], "rank")
    return f"{output.size(checkpoint['nbytes'])} in {files} by {ranks}{tokens}"


def confirm(question: str, names: Sequence[str], yes: bool) -> None:
    """Ask before something is deleted or moved, unless `yes`. Raises UserError if the answer is not yes."""
    for first in range(0, len(names), _NAMES_IN_LINE):
        output.note(f"  {'  '.join(names[first : first + _NAMES_IN_LINE])}")
    if not yes:
        unasked = UserError(f"{question}: without a terminal nothing was changed", "--yes agrees")
        output.agree(question, unasked, UserError("nothing was changed"))
