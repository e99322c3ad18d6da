"""Look at a run's checkpoints, verify them, take the model out of one."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from tools.cli.sample import run_directory
from tools.core import output, repo
from tools.core.errors import UserError
from tools.core.verdict import State, Verdict

EPILOG = """\b
Examples:
  yard checkpoint list
  yard checkpoint show cpu-llama-tiny-train
  yard checkpoint verify cpu-llama-tiny-train
  yard checkpoint export cpu-llama-tiny-train --to exported/llama-tiny
  yard checkpoint export cpu-llama-tiny-lora-train --merge --to exported/llama-tiny-tuned

\b
RUN is a run's name, its directory, or a cell; where only one run exists it can be left out."""


@click.group(name="checkpoint", epilog=EPILOG)
def command() -> None:
    """A checkpoint is a directory that was committed whole, with a digest of every file."""


@command.command(name="list")
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def list_steps(run: str | None, as_json: bool) -> None:
    """List the steps that are committed."""
    found = _asked("list", run_directory(run))
    if as_json:
        output.data(found)
        return
    if not found["checkpoints"]:
        output.line(f"{found['run']}: no committed checkpoint yet")
    output.table((f"step {each['step']}", each["problem"] or _size(each)) for each in found["checkpoints"])
    for name in found["refused"]:
        output.line(f"  {name}: refused at verification, kept as evidence")


@command.command()
@click.argument("run", required=False)
@click.option("--step", type=click.IntRange(0), metavar="N", help="Step N, not the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole manifest as JSON.")
def show(run: str | None, step: int | None, as_json: bool) -> None:
    """Show what one checkpoint holds and what it was trained from."""
    found = _asked("show", run_directory(run), step)
    if as_json:
        output.data(found)
        return
    meta = found["meta"]
    trained = [tensor for name, tensor in found["tensors"].items() if name.startswith("model.")]
    rows = [
        ("step", f"{found['step']}, {_size(found)}"),
        ("directory", found["directory"]),
        ("trained", f"{len(trained)} tensors, {_numbers(trained):,} numbers"),
        ("ranks", f"{found['ranks']}, {meta['sharding']}, {meta['precision']}"),
        ("dataset", f"{meta['dataset'][:12]} in {meta['dataset_directory']}"),
        ("config", meta["config_digest"][:12]),
        ("versions", ", ".join(f"{name} {version}" for name, version in meta["versions"].items())),
    ]
    if "weights" in meta:
        rows.append(("base", f"{meta['weights'][:12]} from {meta['config']['model']['weights']}"))
    output.table(rows)


@command.command()
@click.argument("run", required=False)
@click.option("--step", type=click.IntRange(0), metavar="N", help="Step N only.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def verify(run: str | None, step: int | None, as_json: bool) -> None:
    """Hash every byte of the checkpoints and compare with their manifests.

    \b
    Exit codes: 0 all are good, 1 one is not, 2 bad input or no checkpoint.
    """
    directory = run_directory(run)
    found = _asked("verify", directory, step)["checkpoints"]
    bad = [each for each in found if each["problem"]]
    evidence = [f"step {each['step']}: {each['problem'] or _size(each)}" for each in found]
    if bad:
        summary = f"{output.count(len(bad), 'checkpoint')} of {len(found)} would be refused"
        remedy = "training goes on from the newest good one by itself"
        result = Verdict(State.FAIL, summary, evidence, remedy, {"checkpoints": found})
    else:
        summary = f"{output.count(len(found), 'checkpoint')}: every byte is as it was written"
        result = Verdict(State.PASS, summary, evidence, details={"checkpoints": found})
    output.verdict(result, as_json)
    raise click.exceptions.Exit(result.state.exit_code)


@command.command()
@click.argument("run", required=False)
@click.option(
    "--to", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The directory to make."
)
@click.option("--merge", is_flag=True, help="Add the adapters to their base: one whole model.")
@click.option("--step", type=click.IntRange(0), metavar="N", help="Take step N, not the newest.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="The numbers' type. Training is in float32; bfloat16 rounds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def export(run: str | None, to: Path, merge: bool, step: int | None, dtype: str, as_json: bool) -> None:
    """Write the model as transformers reads it, or the adapter as peft does, with its tokenizer.

    DIR appears whole or not at all, and must not hold anything yet.
    """
    directory = run_directory(run)
    options = [f"--to={to.expanduser().absolute()}", f"--dtype={dtype}", *(["--merge"] if merge else [])]
    options += [] if step is None else [f"--step={step}"]
    written = _answer(["training.export", f"--run={directory}", *options])
    if as_json:
        output.data(written)
        return
    size = f"{written['tensors']} tensors, {written['nbytes'] / 1e6:,.1f} MB"
    output.line(f"{written['directory']}: {written['kind']} of step {written['step']}, {size}")
    output.line(f"  digest  {written['digest']}")
    adapter = written["kind"] == "adapter"
    loads = "PeftModel.from_pretrained(base, " if adapter else "AutoModelForCausalLM.from_pretrained("
    output.line(f'  load it with {loads}"{written["directory"]}")')
    if adapter:
        output.line(f"  with its base in it: yard checkpoint export {directory.name} --merge --to DIR")


def _asked(what: str, directory: Path, step: int | None = None) -> dict[str, Any]:
    return _answer(
        ["training.checkpoints", what, f"--run={directory}", *([] if step is None else [f"--step={step}"])]
    )


def _answer(module: list[str]) -> dict[str, Any]:
    """Run a module of the trainer and show its progress; what it writes to standard output is the answer."""
    with tempfile.TemporaryFile("w+") as answer:
        child = subprocess.Popen(
            [sys.executable, "-m", *module], cwd=repo.root(), stdout=answer, stderr=subprocess.PIPE, text=True
        )
        assert child.stderr is not None
        last = ""
        for line in filter(str.strip, child.stderr):
            last = line.strip()
            if not last.startswith("error: "):
                output.note(last)
        if child.wait() != 0:
            message = last.removeprefix("error: ") or f"no answer (exit code {child.returncode})"
            raise UserError(message, code=2 if child.returncode == 2 else 1)
        answer.seek(0)
        found: dict[str, Any] = json.load(answer)
        return found


def _size(each: dict[str, Any]) -> str:
    tokens = "" if each["tokens"] is None else f", {each['tokens']:,} tokens seen"
    ranks = output.count(each["ranks"], "rank")
    return f"{each['nbytes'] / 1e6:,.1f} MB in {output.count(each['file_count'], 'file')} by {ranks}{tokens}"


def _numbers(tensors: list[dict[str, Any]]) -> int:
    return sum(math.prod(tensor["shape"]) for tensor in tensors)
