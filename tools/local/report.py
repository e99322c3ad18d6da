"""What `yard run` prints at the end of a run: its report and next commands, or the cause of its failure."""

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.core import UserError, output, repo
from tools.local.job import LocalJob
from tools.simulator import supervisor
from tools.simulator.supervisor import Outcome
from training.config import Config
from training.run import failure as failures
from training.run.directory import RunDir, read_json
from training.run.files import end_of

FIRST_CELL = "overlays/cpu/llama-tiny"
# Cells that have a make target.
TARGETS = {FIRST_CELL: "train", "overlays/cpu/llama-tiny-lora": "finetune"}
LAST_LINES = 3
LONGEST_END = 2**20  # bytes of a log that are read: its end
LONGEST_MESSAGE = 400  # characters; compilers print pages

Report = dict[str, Any]


def finished(job: LocalJob) -> Report | None:
    """Return the report of a run that has made all its steps and uploaded its model, or None."""
    report = read(job.directory)
    if report is None or job.config is None or int(report.get("step", -1)) < job.config.train.steps:
        return None
    upload = job.config.upload
    if upload is not None and not _uploaded(job.directory, upload.to, int(report["step"])):
        return None
    return report


def _uploaded(run_directory: Path, to: str, step: int) -> bool:
    """Return whether the model of `step` is at `to`, by the run's upload.json."""
    try:
        saved = json.loads((run_directory / "upload.json").read_text(encoding="utf-8"))
        return bool((saved["to"], saved["step"]) == (to, step))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def read(run_directory: Path) -> Report | None:
    """Return a run's report.json without values of wrong types; None if it is missing or not a report."""
    try:
        report = read_json(run_directory / "report.json")
    except (OSError, ValueError):
        return None
    if not all(isinstance(report.get(key), int) for key in ("step", "steps")):
        return None
    samples = report.get("samples")
    known = {key: value for key, value in report.items() if key not in NUMBERS or _is_number(value)}
    return {**known, "samples": [one for one in samples if _is_sample(one)] if isinstance(samples, list) else []}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _is_sample(value: Any) -> bool:
    texts = ("prompt", "text", *(["before"] if isinstance(value, dict) and "before" in value else []))
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in texts)


def show(job: LocalJob, report: Report) -> None:
    """Print the summary of a finished run: results, places, next commands."""
    output.line()
    output.table(_figures(report))
    for sample in report.get("samples") or []:
        output.line()
        if "before" in sample:
            _show_text(f"{sample['prompt']!r} before", sample["before"])
            _show_text(f"{sample['prompt']!r} after", sample["text"])
        else:
            fills = "[MASK]" in sample["prompt"]
            _show_text(f"{sample['prompt']!r} {'becomes' if fills else 'continues'}", sample["text"])
    output.line()
    output.table(_places(job, report))
    output.line()
    output.table(next_commands(job))


def _show_text(title: str, text: str) -> None:
    output.line(f"  {title}")
    for line in text.splitlines() or [""]:
        output.line(f"    | {line}")


def as_data(job: LocalJob, report: Report) -> dict[str, Any]:
    """Return the summary as plain data for `--json`."""
    return {"job": job.name, "report": report, "places": dict(_places(job, report)), "next": dict(next_commands(job))}


def next_commands(job: LocalJob) -> list[tuple[str, str]]:
    """Return the next commands. They run as printed from the checkout's root."""
    rows = []
    if job.config is not None:
        longer = [*job.arguments(without="train.steps"), "--set", f"train.steps={2 * job.config.train.steps}"]
        prompt = shlex.quote(_prompt(job.config))
        rows += [
            ("train further", run_command(job.target, longer)),
            ("more text", f"{yard_command()} sample {job.name} --prompt {prompt}"),
        ]
        if job.source == FIRST_CELL and job.knobs.name is None:
            rows.append(("fine-tune it", "make finetune"))
    return [
        *rows,
        ("start over", run_command(job.target, [*job.arguments(), "--fresh"])),
        ("run the tests", "make test"),
        ("on a cluster", f"{yard_command()} job submit {shlex.join([*job.target, *job.knobs.arguments()])}"),
    ]


def _prompt(config: Config) -> str:
    """Return a prompt that the run's model can answer: BERT needs a [MASK], a chat model a question."""
    if config.model.bert is not None:
        return "import [MASK]"
    own = config.sample.prompts
    return own[0] if own and config.model.weights else "def main("


def run_command(target: Sequence[str], arguments: list[str]) -> str:
    """Return the command that runs a cell or a file: its make target if it has one and needs no quotes."""
    cell, words = " ".join(target), shlex.join(arguments)
    if cell not in TARGETS or words != " ".join(arguments):
        return f"{yard_command()} run {shlex.join([*target, *arguments])}"
    return f'make {TARGETS[cell]} ARGS="{words}"' if words else f"make {TARGETS[cell]}"


def yard_command() -> str:
    """Return how to call this `yard` from the checkout's root: by name only if PATH finds this very one."""
    own = Path(sys.executable).parent / "yard"
    on_path = shutil.which("yard")
    if on_path is not None and Path(on_path).resolve() == own.resolve():
        return "yard"
    return repo.shown(own)


def failure(job: LocalJob, outcome: Outcome, started: float) -> UserError:
    """Return the error of a failed run: its first cause, where it happened, and which log to read."""
    first = failures.cause(failures.incident(RunDir(job.directory), started))
    if first is not None:
        step = "" if first.step is None else f" at step {first.step}"
        log = job.directory / "logs" / f"rank-{first.rank:05d}.log"
        what = first.message.strip().partition("\n")[0][:LONGEST_MESSAGE]
        message = f"rank {first.rank} on {first.host} failed{step} ({first.kind}): {what}"
        seen = log if log.exists() or first.path is None else first.path
        return UserError(message, f"log: {repo.shown(seen)}", code=1)
    pod = outcome.pod or job.local[0].name
    log = supervisor.log_path(job.directory, pod)
    last = last_lines(log)
    message = f"pod {pod} {outcome.reason}" + (f": {last}" if last else "")
    return UserError(message, f"log: {repo.shown(log)}", code=1)


def last_lines(log: Path) -> str:
    """Return the last informative lines of a pod's log in one line, without torchrun's own report."""
    try:
        lines = end_of(log, LONGEST_END).splitlines()
    except OSError:
        return ""
    attempts = [index for index, line in enumerate(lines) if line.startswith("--- attempt ")]
    lines = lines[attempts[-1] + 1 :] if attempts else lines
    errors = [line.strip() for line in lines if _is_exception(line)]
    telling = errors[:1] or [line.strip() for line in lines if line.strip()][-LAST_LINES:]
    return " | ".join(telling)


def _is_exception(line: str) -> bool:
    """Return whether a line ends a traceback: `ValueError: ...`, also after torchrun's rank prefix."""
    text = line.partition("]: ")[2] or line
    name, colon, _ = text.partition(":")
    launcher = ("torch.distributed.elastic", "subprocess.")
    return bool(colon) and name.endswith(("Error", "Exception")) and " " not in name and not name.startswith(launcher)


# The held-out loss of a model that learned nothing, by the trainer's name for it. BERT predicts words and
# whether the second sentence follows the first.
REFERENCES = {
    "ln_vocab": ("against chance", "ln(vocabulary)"),
    "unigram_nats": ("against unigrams", "entropy of single tokens in the same data"),
    "ln_vocab_and_ln_2": ("against chance", "ln(vocabulary) + ln 2"),
    "unigram_nats_and_ln_2": ("against unigrams", "entropy of single tokens in the same data, + ln 2"),
}

NUMBERS = ("seconds", "heldout_loss", "heldout_loss_before", "tokens_per_s", "mfu", "skipped_lines", *REFERENCES)


def _figures(report: Report) -> list[tuple[str, str]]:
    rows = [("trained", f"{report['step']} of {report['steps']} steps in {_seconds(report.get('seconds'))}")]
    loss = report.get("heldout_loss")
    if loss is not None:
        what = "nats a masked word and a pair" if "ln_vocab_and_ln_2" in report else "nats a token"
        rows.append(("held-out loss", f"{loss:.4f} {what}"))
    before = report.get("heldout_loss_before")
    if before is not None and loss is not None:
        rows.append(("before", f"{before:.4f} nats a token with the weights it started from"))
    for key, (name, what) in REFERENCES.items():
        if report.get(key) is not None and loss is not None:
            rows.append((name, f"{report[key]:.4f} ({what}): {report[key] - loss:.2f} nats better"))
    if report.get("tokens_per_s") is not None:
        rows.append(("speed", f"{report['tokens_per_s']:,.0f} tokens/s"))
    if report.get("mfu") is not None:
        rows.append(("MFU", f"{100 * report['mfu']:.1f} % of this machine's peak"))
    if report.get("skipped_lines"):
        rows.append(("skipped", f"{report['skipped_lines']:,.0f} lines of metrics.jsonl that are not of a step"))
    return rows


def _seconds(value: Any) -> str:
    if not isinstance(value, int | float):
        return "unknown time"
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.1f} min"


def _places(job: LocalJob, report: Report) -> list[tuple[str, str]]:
    run = job.directory
    rows = [("checkpoint", run / str(report["checkpoint"]))] if report.get("checkpoint") else []
    rows += [("metrics", run / "metrics.jsonl"), ("logs", run / "logs"), ("tensorboard", run / "tensorboard")]
    return [(name, repo.shown(path)) for name, path in rows]
