"""Write the model as transformers reads it, or the adapter as peft does, with its tokenizer."""

from pathlib import Path

from tools.cli.checkpoint._place import Place
from tools.core import UserError, output
from tools.core.own_module import answer
from training import checkpoints
from training.checkpoint.errors import CheckpointError
from training.run.directory import why_not_new


def command(
    run: str | None, name: str | None, to: Path, merge: bool, step: int | None, dtype: str, as_json: bool
) -> None:
    directory, target = Place(run, name, None, None, None).address, to.expanduser().absolute()
    if reason := why_not_new(target):
        raise UserError(reason)
    try:
        checkpoints.chosen(checkpoints.tier_at(directory), step)
    except CheckpointError as problem:
        raise UserError(str(problem), code=checkpoints.code_of(problem)) from None
    options = [f"--to={target}", f"--dtype={dtype}", *(["--merge"] if merge else [])]
    options += [] if step is None else [f"--step={step}"]
    written = answer(["training.export", f"--run={directory}", *options])
    for reason in written["skipped"]:
        output.note(reason)
    size = f"{written['tensors']} tensors, {output.size(written['nbytes'])}"
    lines = [f"{written['directory']}: {written['kind']} of step {written['step']}, {size}"]
    lines.append(f"  digest  {written['digest']}")
    adapter = written["kind"] == "adapter"
    base = "base, " if adapter else ""
    lines.append(f'  load it with {written["loader"]}.from_pretrained({base}"{written["directory"]}")')
    if adapter:
        where = directory if isinstance(directory, str) else directory.name
        lines.append(f"  merged with its base: yard checkpoint export {where} --merge --to DIR")
    output.answer(written, lines, as_json)
