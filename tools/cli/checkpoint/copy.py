"""Copy one step to another place: a directory, or a bucket."""

from pathlib import Path

from tools.cli.checkpoint._place import Place, is_bucket, place
from tools.core import UserError, output
from training.checkpoints import Copied


@place
def command(place: Place, to: str, step: int | None, as_json: bool) -> None:
    if not to:
        raise UserError("--to is empty", "name a run directory, or s3://bucket/prefix/run")
    if place.job is not None and not is_bucket(to):
        raise UserError("with --job, --to is a bucket: s3://bucket/prefix/run", "yard job cp copies to this machine")
    target = to if is_bucket(to) else str(Path(to).expanduser().absolute())
    found = place.ask("copy", kind=Copied, step=step, to=target)
    done = "copied and verified" if found["new"] else "is there already"
    line = f"{found['to']}: step {found['step']} {done}, {output.size(found['nbytes'])}"
    output.answer(found, [line], as_json)
