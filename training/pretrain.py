"""Pre-train a causal language model: `torchrun -m training.pretrain --config DIR`.

Reads TRAINYARD_RUN (the run directory) and TRAINYARD_DATA (where datasets are prepared). The run continues
from its newest good checkpoint, whatever number of ranks wrote it.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import platform
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers

from training import failure, state
from training.checkpoint import CheckpointError, Store
from training.checkpoint.layout import step_name
from training.compile_cache import CompileCache
from training.config import Config, ConfigError, load
from training.counting import flops_per_token, parameters
from training.data.dataset import Batch, TokenDataset
from training.data.errors import DataError
from training.data.position import heldout_batches, micro_batches
from training.device import Device, peak_flops, resolve, rng_state, set_rng_state
from training.metrics import Metrics, Pending, summary
from training.model import IGNORE
from training.optim import build_optimizer, build_schedule, clip_gradients
from training.parallel import Parallel, Ranks, join, parallelise
from training.prepare import prepare_together
from training.process import DRAINED_EXIT, Attempt, die_with_parent
from training.profiling import Profile
from training.rundir import RunDir, read_json, write_json
from training.sample import continuations
from training.state import TrainState, check_same_run, rank_seed
from training.waiting import while_others_wait

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
log = logging.getLogger("trainyard")


@dataclass(frozen=True)
class Run:
    """What stays the same while a run trains."""

    config: Config
    directory: RunDir
    device: Device
    ranks: Ranks
    train: TokenDataset
    heldout: TokenDataset
    meta: dict[str, Any]


def train(config: Config, directory: RunDir, data_root: Path, attempt: Attempt) -> None:
    """The whole run on this rank, from joining the job to the report."""
    config.require_task("training.pretrain")
    device = resolve(config)
    ranks = join(device, COLLECTIVE_TIMEOUT)
    _log_to(directory, ranks)
    config.accumulation(ranks.world_size)
    train_set, heldout = _open_data(config, ranks, data_root)
    run = Run(config, directory, device, ranks, train_set, heldout, _meta(config, device, ranks, train_set))
    _claim(run)

    torch.manual_seed(rank_seed(config.train.seed, ranks.rank))
    parallel = parallelise(config, device, ranks)
    optimizer = build_optimizer(parallel.model, config.train)
    now = TrainState(parallel, optimizer, build_schedule(optimizer, config.train), device, config.train.seed)
    store = Store(directory.checkpoints, keep=config.checkpoint.keep, group=ranks.group, log=log.warning)
    checkpoint = store.latest()
    if checkpoint is not None:
        state.restore(now, checkpoint, ranks.rank)
        log.info("continuing from step %d (%s)", now.step, checkpoint.directory)
    if now.step >= config.train.steps and directory.report.exists():
        log.info("already at step %d of %d; raise train.steps to train further", now.step, config.train.steps)
        return
    directory.report.unlink(missing_ok=True)

    peak, source = _total_peak(device, ranks)
    metrics = Metrics(
        directory, ranks, device, flops_per_token(config.model, config.sequence_length), peak, source,
        config.train.steps, now.step, log.info,
    )  # fmt: skip
    _introduce(run, now)
    cache = CompileCache()
    if ranks.first and device.compile and cache.begin():
        log.warning("the compiler's cache was left half written; it is made anew")
    ranks.barrier()
    _compile_once(run, now)
    _loop(run, now, store, metrics, attempt, cache)
    heldout_loss = _evaluate(run, now, metrics)
    metrics.close()
    while_others_wait(ranks, (lambda: _report(run, now, heldout_loss)) if ranks.first else None)


def _loop(
    run: Run, now: TrainState, store: Store, metrics: Metrics, attempt: Attempt, cache: CompileCache
) -> None:
    """Steps up to the last one, which is saved."""
    recipe = run.config.train
    profile = Profile(run.directory.path / "profile", run.ranks.rank)
    attempt.listen()
    while now.step < recipe.steps:
        attempt.step = now.step
        profile.before(now.step + 1)
        if _step(run, now, metrics, attempt) == "stop":
            metrics.flush()
            _save(run, now, store, must=True)
            raise failure.Drained(f"stopped on request at step {now.step}, which is saved")
        if run.ranks.first:
            cache.done()
        if written := profile.after(now.step):
            log.info("profile written to %s", written)
        last = now.step == recipe.steps
        evaluates = now.step % recipe.eval_every == 0 and not last
        saves = now.step % run.config.checkpoint.every == 0 or last
        if evaluates or saves or now.step % run.config.device.log_every == 0:
            metrics.flush()
        if saves:
            _save(run, now, store, must=last)
        if evaluates:
            _evaluate(run, now, metrics)


def _evaluate(run: Run, now: TrainState, metrics: Metrics) -> float:
    loss = evaluate(now.parallel, run.device, run.heldout, run.config.train.eval_sequences, run.config)
    metrics.heldout(now.step, loss)
    log.info("held-out loss %.3f after step %d", loss, now.step)
    return loss


def _compile_once(run: Run, now: TrainState) -> None:
    """Let rank 0 compile for a CPU while the others wait, so that they find its results in the cache.

    Ranks that share processors would otherwise all compile the same code at once. On CUDA each card has code
    of its own, and a sharded model cannot run on one rank alone. State, gradients and generators stay as they
    were.
    """
    device, alone = run.device, run.ranks.world_size == 1
    if not device.compile or device.is_cuda or alone or not now.parallel.replicated:
        return
    if run.ranks.first:
        log.info("compiling on rank 0; this takes a while the first time")
        before = rng_state(device)
        with now.parallel.autocast(device):
            loss = now.parallel.model(**_to_device(_batches(run, now.position)[0], device))
        (loss * 0.0).backward()
        now.optimizer.zero_grad(set_to_none=True)
        set_rng_state(device, before)
    run.ranks.barrier()


def _step(run: Run, now: TrainState, metrics: Metrics, attempt: Attempt) -> str:
    """One optimizer step over the global batch; returns "stop" instead when any rank was asked to stop."""
    device, ranks, recipe = run.device, run.ranks, run.config.train
    start = device.mark()
    began = time.perf_counter()
    batches = _batches(run, now.position)
    data_wait = time.perf_counter() - began
    own_tokens = sum(int((batch.labels != IGNORE).sum()) for batch in batches)
    tokens, stop = ranks.sum([own_tokens, float(attempt.stop_requested)])
    if stop:
        return "stop"
    # DDP and FSDP average over ranks; the loss is a sum over the global batch's tokens.
    scale = ranks.world_size / tokens
    total = torch.zeros((), device=device.torch_device)
    for index, batch in enumerate(batches):
        last = index == len(batches) - 1
        with now.parallel.exchange(last):
            with now.parallel.autocast(device):
                loss = now.parallel.wrapped(**_to_device(batch, device))
            if last:
                before_exchange = device.mark()
            (loss * scale).backward()
        total += loss.detach()
    grad_norm = clip_gradients(now.parallel.model, recipe.gradient_clip)
    learning_rate = float(now.schedule.get_last_lr()[0])
    now.optimizer.step()
    now.optimizer.zero_grad(set_to_none=True)
    now.schedule.step()
    now.step += 1
    now.position += recipe.global_batch_size
    now.tokens += int(tokens)
    metrics.add(
        Pending(
            now.step,
            total,
            grad_norm,
            int(tokens),
            learning_rate,
            data_wait,
            start,
            before_exchange,
            device.mark(),
        )
    )
    return "go on"


def _batches(run: Run, position: int) -> list[Batch]:
    recipe, ranks = run.config.train, run.ranks
    return [
        run.train.batch(indices)
        for indices in micro_batches(
            recipe.seed, position, recipe.global_batch_size, run.config.parallel.micro_batch_size,
            ranks.rank, ranks.world_size, len(run.train),
        )
    ]  # fmt: skip


def _to_device(batch: Batch, device: Device) -> dict[str, torch.Tensor]:
    arrays = {
        "input_ids": batch.input_ids,
        "labels": batch.labels,
        "position_ids": batch.position_ids,
        "document_ids": batch.document_ids,
    }
    if not device.is_cuda:
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {
        name: torch.from_numpy(array).pin_memory().to(device.torch_device, non_blocking=True)
        for name, array in arrays.items()
    }


def evaluate(parallel: Parallel, device: Device, data: TokenDataset, sequences: int, config: Config) -> float:
    """Held-out loss in nats a token over the first `sequences` samples, split over ranks.

    Every rank makes the same number of passes, for sharded weights are gathered together.
    """
    ranks = parallel.ranks
    passes = heldout_batches(
        sequences, config.parallel.micro_batch_size, ranks.rank, ranks.world_size, len(data)
    )
    total, count = 0.0, 0
    with parallel.evaluating(device):
        for batch in map(data.batch, passes):
            with parallel.autocast(device):
                total += parallel.wrapped(**_to_device(batch, device)).item()
            count += int((batch.labels != IGNORE).sum())
    loss, tokens = ranks.sum([total, count])
    return loss / tokens


def _save(run: Run, now: TrainState, store: Store, *, must: bool) -> None:
    """Commit a checkpoint. A failed one is an alarm; a failed last one ends the run."""
    started = time.perf_counter()
    try:
        state.save(now, store, run.meta)
    except CheckpointError as error:
        if must:
            raise
        log.warning("checkpoint of step %d was not saved, the run goes on: %s", now.step, error)
        return
    log.info("checkpoint of step %d saved in %.1f s", now.step, time.perf_counter() - started)


def _open_data(config: Config, ranks: Ranks, root: Path) -> tuple[TokenDataset, TokenDataset]:
    directory = prepare_together(config, ranks, root, log.info)
    train_set = TokenDataset.open(directory, "train", config.sequence_length)
    return train_set, TokenDataset.open(directory, "heldout", config.sequence_length)


def _meta(config: Config, device: Device, ranks: Ranks, data: TokenDataset) -> dict[str, Any]:
    return {
        "config": config.model_dump(mode="json"),
        "config_digest": config.digest(),
        "dataset": data.digest,
        "dataset_directory": str(data.directory),
        "world_size": ranks.world_size,
        "sharding": config.parallel.sharding,
        "precision": device.precision,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def _claim(run: Run) -> None:
    """Write run.json at the first start; afterwards refuse to go on with another model or other data."""
    path = run.directory.run
    if path.exists():
        first = read_json(path)
        changed = check_same_run(
            first["config"], run.config, run.meta["dataset"], first["dataset"], str(run.directory.path)
        )
        for line in changed if run.ranks.first else []:
            log.info("changed since this run began: %s", line)
    run.ranks.barrier()
    if run.ranks.first and not path.exists():
        write_json(path, run.meta)


def _total_peak(device: Device, ranks: Ranks) -> tuple[float | None, str]:
    ranks.barrier()  # measured peaks are only true when all ranks are busy
    peak, source = peak_flops(device)
    total, known = ranks.sum([peak or 0.0, float(peak is not None)])
    return (total if known == ranks.world_size else None), source


def _introduce(run: Run, now: TrainState) -> None:
    config, device, world_size = run.config, run.device, run.ranks.world_size
    blocks = f"blocks {'' if device.compile else 'not '}compiled ({device.compile_reason})"
    log.info(
        f"{parameters(config.model):,} parameters, {world_size} ranks on {device.name()}, "
        f"{device.precision}, {device.attention} attention, {blocks}, {config.parallel.sharding}"
    )
    log.info(
        f"{run.train.tokens:,} training tokens in {len(run.train):,} samples of {config.sequence_length}; "
        f"a step is {config.train.global_batch_size} samples: {world_size} ranks x "
        f"{config.accumulation(world_size)} accumulated x {config.parallel.micro_batch_size}; "
        f"data position {now.position:,}"
    )


def _report(run: Run, now: TrainState, heldout_loss: float) -> None:
    """Rank 0 samples from the committed checkpoint and writes report.json."""
    config, directory = run.config, run.directory
    wanted = config.sample
    texts = continuations(
        directory, wanted.prompts, wanted.max_new_tokens, wanted.temperature, config.train.seed
    )
    ln_vocab = math.log(config.model.vocab_size)
    report = {
        "step": now.step,
        "steps": config.train.steps,
        "heldout_loss": heldout_loss,
        "ln_vocab": ln_vocab,
        "unigram_nats": run.heldout.unigram_nats,
        **summary(directory),
        "tokens": now.tokens,
        "samples": [{"prompt": prompt, "text": text} for prompt, text in texts],
        "checkpoint": f"checkpoints/{step_name(now.step)}",
    }
    write_json(directory.report, report)
    log.info(
        f"finished at step {now.step}: held-out loss {heldout_loss:.3f}, "
        f"unigram entropy {run.heldout.unigram_nats:.3f}, ln(V) {ln_vocab:.3f}"
    )


def _log_to(directory: RunDir, ranks: Ranks) -> None:
    directory.logs.mkdir(parents=True, exist_ok=True)
    own = logging.FileHandler(directory.rank_log(ranks.rank))
    own.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(own)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    if ranks.first:
        people = logging.StreamHandler(sys.stdout)
        people.setLevel(logging.INFO)
        log.addHandler(people)


def main() -> None:
    """Command line. Exit codes: 0 done, 2 configuration or data, 143 stopped on request, 1 anything else."""
    die_with_parent()
    attempt = Attempt()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--config", required=True, help="directory with model.yaml, hardware.yaml and cell.yaml"
    )
    arguments = parser.parse_args()
    directory = RunDir(os.environ.get("TRAINYARD_RUN", "local/runs/pretrain"))
    data_root = Path(os.environ.get("TRAINYARD_DATA", "local/data"))
    rank = int(os.environ.get("RANK", "0"))
    try:
        directory.path.mkdir(parents=True, exist_ok=True)
        train(load(arguments.config), directory, data_root, attempt)
    except Exception as error:  # noqa: BLE001 - every end of a rank leaves its record
        sys.exit(_fail(error, rank, attempt, directory))
    finally:
        logging.shutdown()
    if dist.is_initialized():
        dist.destroy_process_group()


def _fail(error: Exception, rank: int, attempt: Attempt, directory: RunDir) -> int:
    """Log and record why this rank stops; returns its exit code."""
    kind = failure.classify(error)
    known = isinstance(error, (ConfigError, DataError, CheckpointError, failure.NanError, failure.Drained))
    text = f"rank {rank}: {kind}: {failure.message(error)}"
    log.error(text)
    if not known:
        log.debug("traceback", exc_info=error)  # only in this rank's own log
    if not log.handlers:  # failed before the logs were open
        print(text, file=sys.stderr, flush=True)
    try:
        failure.record(error, rank, attempt.step, directory)
    except OSError as why:
        print(f"rank {rank}: no failure record could be written: {why}", file=sys.stderr, flush=True)
    if kind == "drained":
        return DRAINED_EXIT
    return 2 if kind in ("config", "data") else 1


if __name__ == "__main__":
    main()
