"""The training loop, the same for all tasks: join, build, restore, step, save, report.

It reads and writes the run directory. A run continues from its newest good checkpoint, whatever number of
ranks wrote it.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch

from training.checkpoint.layout import step_name
from training.checkpoint.tiers import Tiers
from training.config import Config, elastic
from training.config.counting import flops_per_token, parameters, unlabelled_flops
from training.device import Device, resolve
from training.distributed.process import Attempt
from training.distributed.rank_zero import while_others_wait
from training.distributed.ranks import Ranks, join
from training.run import failure, heartbeat
from training.run.directory import RunDir, write_json
from training.task import Feed, Task
from training.trackers.processes import Trackers, check_packages
from training.trainer import compiling, same_run, state
from training.trainer.compile_cache import CompileCache, quote_paths
from training.trainer.guard import Guard
from training.trainer.metrics import Metrics, Pending, heldout_loss, summary
from training.trainer.optimizer import build_optimizer, build_schedule, clip_gradients
from training.trainer.parallelize import Parallel, parallelise
from training.trainer.places import open_tiers
from training.trainer.profiling import Profile
from training.trainer.replicas import Replicas
from training.trainer.saver import Saver
from training.trainer.space import checkpoint_bytes
from training.trainer.state import TrainState, rank_seed
from training.trainer.stragglers import Stragglers

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
COLLECT_EVERY = 100  # steps between two collections of garbage
LAST_SAVE_SECONDS = 30.0  # that a failed rank waits for the save in flight; far less than the limit for a hang
log = logging.getLogger("trainyard")


@dataclass(frozen=True)
class Run:
    """What stays the same during training."""

    task: Task
    config: Config
    directory: RunDir
    device: Device
    ranks: Ranks
    feed: Feed
    meta: dict[str, Any]


@dataclass(frozen=True)
class Watched:
    """What watches the steps, and what a rollback needs beside the state."""

    guard: Guard
    replicas: Replicas
    tiers: Tiers
    saver: Saver
    metrics: Metrics


def train(task: Task, config: Config, directory: RunDir, data_root: Path, attempt: Attempt) -> None:
    """Run the whole training on this rank, from joining the job to the report."""
    config.require_task(task.module)
    check_packages(config.track)
    device = resolve(config)
    ranks = join(device, COLLECTIVE_TIMEOUT, config.parallel.tensor)
    _log_to(directory, ranks)
    elastic.check(config, ranks.world_size, ranks.local_world_size)
    heartbeat.enter("preparing data")
    feed = task.open(config, ranks, data_root, directory, _say)
    heartbeat.enter("loading")
    run = Run(task, config, directory, device, ranks, feed, same_run.described(task, config, device, ranks, feed))
    same_run.claim(directory, config, run.meta, ranks)
    _check_destination(run)
    with _cache_claimed(run):
        _train(run, attempt)


def _train(run: Run, attempt: Attempt) -> None:
    """Build, restore, step to the end, report."""
    task, config, directory = run.task, run.config, run.directory
    device, ranks = run.device, run.ranks
    device.seed(rank_seed(config.train.seed, ranks.rank))
    parallel = parallelise(task, config, device, ranks)
    optimizer = build_optimizer(
        parallel.model, config.train, fused=device.fuses_optimizer, compiled=device.compile and device.is_cuda
    )
    schedule = build_schedule(optimizer, config.train)
    now = TrainState(parallel, optimizer, schedule, device, run.feed, config.train.seed)
    tiers = open_tiers(config, directory, ranks, checkpoint_bytes(config, parallel), COLLECTIVE_TIMEOUT)
    checkpoint = tiers.latest(partial(state.check, rank=ranks.rank), again=attempt.restarted)
    if checkpoint is not None:
        same_run.check_continues(checkpoint, run.meta)
        state.restore(now, checkpoint, ranks.rank)
        log.info("continuing from step %d (%s)", now.step, checkpoint.directory)
    guard = Guard(config.train, directory, ranks, now.history)
    _pass_over(run, now, guard.position(now.step, now.position))
    if now.step >= config.train.steps and directory.report.exists():
        log.info("already at step %d of %d; raise train.steps to train further", now.step, config.train.steps)
        _upload(run, now.step)
        return
    directory.report.unlink(missing_ok=True)

    peak, source = _total_peak(device, ranks, config.device.float8)
    metrics = Metrics(
        directory, ranks, device, task.losses, peak, source,
        config.train.steps, now.step, log.info, guard.see, Stragglers(parallel, device),
    )  # fmt: skip
    _introduce(run, now)
    if device.extracts_graphs:
        _show_graphs(run, now, metrics, attempt, guard)
        return
    replicas = Replicas(config, parallel, device)
    saver = Saver(tiers, run.meta, beside=config.checkpoint.asynchronous)
    with Trackers(directory, config.track if ranks.first else None, log.info):
        _to_the_end(run, now, Watched(guard, replicas, tiers, saver, metrics), attempt)
    _upload(run, now.step)


def _to_the_end(run: Run, now: TrainState, watched: Watched, attempt: Attempt) -> None:
    """Compile, take the steps that are left, and write the report."""
    device, metrics = run.device, watched.metrics
    cache = CompileCache(run.directory, device.name())
    if device.compile:
        quote_paths()
    if not compiling.compiled_before(cache, device, run.ranks) or now.step == 0:
        compiling.compile_once(now)
    if _lacks_heldout_loss(run, now):
        _evaluate(run, now, metrics)
    try:
        _loop(run, now, watched, attempt, cache)
    except Exception as error:
        watched.saver.finish(_patience(error))  # it began before what the run ends for now
        raise
    finally:
        gc.enable()
    loss = _evaluate(run, now, metrics)
    run.feed.close()
    heartbeat.enter("sampling")
    while_others_wait(run.ranks, (lambda: _report(run, now, loss, metrics)) if run.ranks.first else None)
    metrics.close()


def _patience(error: Exception) -> float | None:
    """Seconds that a failed rank waits for the save in flight; None without a limit.

    The others wait for this rank in a collective of the step, and commit the save with it meanwhile. If one of them
    is gone, none can commit.
    """
    if isinstance(error, (failure.LossError, failure.ReplicaError)):
        return None  # all ranks end for it
    return 0.0 if failure.classify(error) in ("communication", "lost peer") else LAST_SAVE_SECONDS


@contextmanager
def _cache_claimed(run: Run) -> Iterator[None]:
    """Hold the device's compile cache for this job; rank 0 does it for all."""
    with ExitStack() as held:
        claim = run.device.cache_claimed(run.directory)
        while_others_wait(run.ranks, (lambda: held.enter_context(claim)) if run.ranks.first else None)
        yield


def _show_graphs(run: Run, now: TrainState, metrics: Metrics, attempt: Attempt, guard: Guard) -> None:
    """Show a compiler every graph of a run: two steps, because the first has other graphs, and held-out data.

    Nothing is computed, so nothing is logged, saved or reported.
    """
    for _ in range(2):
        _step(run, now, metrics, attempt, guard)
    evaluate(now.parallel, run.device, run.feed, run.config.train.eval_sequences, run.task.losses)
    metrics.close()
    run.feed.close()
    log.info("the compiler has seen the graphs of 2 steps and of held-out data")


def _loop(run: Run, now: TrainState, watched: Watched, attempt: Attempt, cache: CompileCache) -> None:
    """Train up to the last step, and save it. Python's garbage is collected only where a step ends anyway."""
    gc.collect()
    gc.disable()
    profile = Profile(run.directory.path / "profile", run.ranks.rank)
    attempt.listen()
    heartbeat.enter("compiling" if run.device.compile else "training", now.step)
    while now.step < run.config.train.steps:
        attempt.step = now.step
        profile.before(now.step + 1)
        try:
            _advance(run, now, watched, attempt)
        except failure.LossError as error:
            _roll_back(run, now, watched, error)
            continue
        if cache.done() and run.ranks.first:
            compiling.keep(cache)
        if said := profile.after(now.step):
            log.info(said)


def _advance(run: Run, now: TrainState, watched: Watched, attempt: Attempt) -> None:
    """Do one step, and what is due after it: metrics, garbage, a checkpoint, held-out data.

    Raises:
        LossError: on every rank, for a step that train.on_nan or train.on_spike does not let pass.
        ReplicaError: on every rank, when ranks no longer hold the same parameters.
        Drained: on every rank, after a request to stop.
    """
    recipe, metrics = run.config.train, watched.metrics
    if _step(run, now, metrics, attempt, watched.guard) == "stop":
        metrics.flush()
        watched.replicas.check(now.step, saves=True)
        watched.saver.save(now, must=True)
        raise failure.Drained(f"stopped on request at step {now.step}, which is saved")
    heartbeat.enter("training", now.step)
    last = now.step == recipe.steps
    evaluates = now.step % recipe.eval_every == 0 and not last
    saves = watched.tiers.due(now.step)
    if evaluates or saves or now.step % run.config.device.log_every == 0:
        metrics.flush()
    if evaluates or saves or now.step % COLLECT_EVERY == 0:
        gc.collect(1)
    watched.replicas.check(now.step, saves=saves)
    if saves:
        watched.saver.save(now, must=last)
    if evaluates:
        _evaluate(run, now, metrics)


def _roll_back(run: Run, now: TrainState, watched: Watched, error: failure.LossError) -> None:
    """Continue from the newest good checkpoint, behind the data of all steps since then.

    Raises:
        LossError: train.on_nan or train.on_spike says that the run ends here.
    """
    watched.guard.check_may_roll_back(error)
    with heartbeat.during("loading"):
        watched.saver.finish()
        checkpoint = watched.tiers.latest(partial(state.check, rank=run.ranks.rank), again=True)
        if checkpoint is None:
            raise failure.LossError(error.kind, error.step, f"{error}; there is no checkpoint to roll back to")
        before_update = error.step > now.step  # the bad step's samples are still to be counted
        end = now.position + before_update * run.config.train.global_batch_size
        now.optimizer.zero_grad(set_to_none=True)
        state.restore(now, checkpoint, run.ranks.rank)
        watched.guard.record(error, "rollback", now.position, end, now.step)
        log.warning("%s; back to step %d, behind sample %d", error, now.step, end)
        _pass_over(run, now, end)
        watched.metrics.rewind(now.step)


def _pass_over(run: Run, now: TrainState, end: int) -> None:
    """Move the data position to `end`, as if the samples before it had been learned."""
    while now.position < end:
        run.feed.batches(now.position)
        now.position += run.config.train.global_batch_size
        heartbeat.beat()


def _lacks_heldout_loss(run: Run, now: TrainState) -> bool:
    """Whether held-out data are due before the next step: for a base, or after a kill between a save and that."""
    step, recipe = now.step, run.config.train
    due = step % recipe.eval_every == 0 and step < recipe.steps if step else run.config.model.weights is not None
    known = run.ranks.first and heldout_loss(run.directory, step) is not None
    return run.ranks.sum([float(known)]) == [0.0] and due


def _evaluate(run: Run, now: TrainState, metrics: Metrics) -> float:
    means = evaluate(now.parallel, run.device, run.feed, run.config.train.eval_sequences, run.task.losses)
    loss = sum(means.values())
    metrics.heldout(now.step, loss)
    parts = ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())
    log.info("held-out loss %.3f after step %d%s", loss, now.step, f" ({parts})" if len(means) > 1 else "")
    return loss


def _step(run: Run, now: TrainState, metrics: Metrics, attempt: Attempt, guard: Guard) -> str:
    """Do one optimizer step over the global batch; return "stop" instead if any rank was asked to stop.

    If train.on_nan or train.on_spike leaves the update out, return "skip".
    """
    device, ranks, recipe = run.device, run.ranks, run.config.train
    start, graphs = device.mark(), device.graphs_compiled()
    began = time.perf_counter()
    batches = run.feed.batches(now.position)
    data_wait = time.perf_counter() - began
    own_counts = [ranks.counts * sum(column) for column in zip(*(batch.counts() for batch in batches), strict=True)]
    own_tokens = ranks.counts * sum(batch.tokens() for batch in batches)
    began = time.perf_counter()
    stop, tokens, *predicted = ranks.sum([float(attempt.stop_requested), own_tokens, *own_counts])
    if stop:
        return "stop"
    work = metrics.stragglers.begin(data_wait, time.perf_counter() - began)
    counts = [max(1, int(count)) for count in predicted]  # a batch without predictions has a loss of 0
    # DDP and FSDP average over ranks, but a loss is a sum over the global batch's predictions.
    scale = device.values([ranks.data_size / count for count in counts])
    totals = torch.zeros(len(counts), device=device.torch_device)
    for index, batch in enumerate(batches):
        last = index == len(batches) - 1
        with now.parallel.exchange(last):
            with now.parallel.autocast(device):
                losses = now.parallel.wrapped(**device.put(batch.arrays()))
            if last:
                before_exchange = device.mark()
            (losses * scale).sum().backward()
        totals += losses.detach()
        heartbeat.beat(part=True)
        device.micro_batch_done()
    now.parallel.exchange_rest(device)
    work.exchanged()
    grad_norm = clip_gradients(now.parallel.model, recipe.gradient_clip)
    learning_rate = float(now.schedule.get_last_lr()[0])
    skipped = guard.skipped(now.step + 1, totals, counts, grad_norm)
    work.updates()
    if skipped is None:
        now.optimizer.step()
    else:
        guard.record(skipped, "skip", now.position, now.position + recipe.global_batch_size)
        log.warning("%s; its update is left out", skipped)
    now.optimizer.zero_grad(set_to_none=True)
    device.step_done()
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        now.schedule.step()  # a skipped first step makes torch warn that the optimizer has not stepped
    now.step += 1
    now.position += recipe.global_batch_size
    now.tokens += int(tokens)
    if skipped is not None:
        return "skip"
    metrics.add(
        Pending(
            now.step,
            totals,
            tuple(counts),
            grad_norm,
            int(tokens),
            _flops(run.config, int(tokens), counts),
            recipe.global_batch_size,
            learning_rate,
            data_wait,
            start,
            before_exchange,
            device.mark(),
            work,
            None if graphs is None else (device.graphs_compiled() or 0) - graphs,
        )
    )
    return "continue"


def _flops(config: Config, tokens: int, labels: list[int]) -> int:
    """FLOP of a step with these tokens, of which some have a label of the first loss."""
    known, lora = config.model, config.lora
    unlabelled = max(0, tokens - labels[0])
    return tokens * flops_per_token(known, config.sequence_length, lora) - unlabelled * unlabelled_flops(known, lora)


def evaluate(
    parallel: Parallel, device: Device, feed: Feed, sequences: int, losses: tuple[str, ...]
) -> dict[str, float]:
    """Each held-out loss in nats per prediction over `sequences` samples, divided over ranks.

    Every rank makes the same number of passes, because gathering sharded weights is a collective.
    """
    sums, counts = torch.zeros(len(losses), dtype=torch.float64), [0] * len(losses)
    with parallel.evaluating(device), heartbeat.during("evaluating"):
        for batch in feed.heldout(sequences):
            with parallel.autocast(device):
                sums += parallel.wrapped(**device.put(batch.arrays())).cpu().double()
            counts = [before + more for before, more in zip(counts, batch.counts(), strict=True)]
            heartbeat.beat()
    together = parallel.ranks.sum([parallel.ranks.counts * value for value in (*sums.tolist(), *counts)])
    pairs = zip(together[: len(losses)], together[len(losses) :], strict=True)
    return {name: total / max(1, count) for name, (total, count) in zip(losses, pairs, strict=True)}


def _total_peak(device: Device, ranks: Ranks, float8: str) -> tuple[float | None, str]:
    ranks.barrier()  # a measured peak is right only while all ranks are busy
    peak, source = device.peak_flops()
    if float8 != "off":
        peak, source = None, "unknown: products are in float8, the rest is in bf16"
    total, known = ranks.sum([peak or 0.0, float(peak is not None)])
    return (total if known == ranks.world_size else None), source


def _introduce(run: Run, now: TrainState) -> None:
    config, device, world_size = run.config, run.device, run.ranks.world_size
    blocks = f"blocks {'' if device.compile else 'not '}compiled ({device.compile_reason})"
    log.info(
        f"{parameters(config.model):,} parameters, {world_size} ranks on {device.name()}, "
        f"{device.precision}{_with_float8(config)}, {device.attention} attention, {blocks}, {config.parallel.sharding}"
    )
    log.info(
        f"{run.feed.describe()}; a step is {config.train.global_batch_size} samples: {run.ranks.data_size} ranks x "
        f"{config.accumulation(world_size)} accumulated x {config.parallel.micro_batch_size}; "
        f"data position {now.position:,}"
    )


def _with_float8(config: Config) -> str:
    return "" if config.device.float8 == "off" else f" with float8 products ({config.device.float8})"


def _report(run: Run, now: TrainState, loss: float, metrics: Metrics) -> None:
    """Sample from the committed checkpoint and write report.json (rank 0)."""
    config, directory, reference = run.config, run.directory, run.feed.reference
    samples = run.task.samples(config, directory)
    report = {
        "step": now.step,
        "steps": config.train.steps,
        "heldout_loss": loss,
        **({} if config.model.weights is None else {"heldout_loss_before": heldout_loss(directory, 0)}),
        **reference,
        **summary(directory),
        "tokens": now.tokens,
        "samples": samples,
        "checkpoint": f"checkpoints/{step_name(now.step)}",
    }
    write_json(directory.report, report)
    metrics.conclude(now.step, samples)
    known = "".join(f", {name} {value:.3f}" for name, value in reference.items())
    log.info(f"finished at step {now.step}: held-out loss {loss:.3f}{known}")


def _check_destination(run: Run) -> None:
    """Refuse an impossible destination before training."""
    wanted = run.config.upload
    if wanted is None:
        return
    from training import upload

    name = run.directory.name
    while_others_wait(run.ranks, (lambda: upload.check(wanted.to, name, _say)) if run.ranks.first else None)


def _upload(run: Run, step: int) -> None:
    """Upload the finished model to its destination, unless an earlier attempt has done so."""
    wanted = run.config.upload
    if wanted is None:
        return
    from training import upload

    def upload_once() -> None:
        if upload.already(run.directory, wanted.to, step):
            log.info("the model of step %d is already at %s", step, wanted.to)
            return
        done = upload.upload_run(run.directory, wanted.to, step, wanted.merge, wanted.dtype, _say)
        log.info("uploaded and verified: %d files, %.2f GiB, at %s", done.files, done.nbytes / 2**30, done.to)

    heartbeat.enter("uploading", step)
    while_others_wait(run.ranks, upload_once if run.ranks.first else None)


def _say(line: str) -> None:
    """Log a line of progress and send a heartbeat."""
    heartbeat.beat()
    log.info(line)


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
