"""Text from a run's checkpoint: `python -m training.sample --run DIR --prompt TEXT`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence

import torch
from pydantic import ValidationError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training.checkpoint.errors import CheckpointError
from training.checkpoint.layout import step_name
from training.checkpoint.read import Checkpoint, newest, open_checkpoint
from training.checkpoint.shards import shards_of
from training.config import BERT, Config, ConfigError
from training.data.run_tokenizer import dataset_directory, end_ids, load_tokenizer, prompt_ids
from training.models.causal import build_on_meta, materialise, trained_parameters
from training.models.lora import adapt
from training.run.directory import RunDir
from training.run.signing import SigningError
from training.sample.fill_mask import filled
from training.weights import open_weights


def continuations(
    run: RunDir,
    prompts: Sequence[str],
    max_new_tokens: int,
    temperature: float,
    seed: int,
    step: int | None = None,
    base: bool = False,
) -> Iterator[tuple[str, str]]:
    """Yield (prompt, continuation) for each prompt, from the newest committed checkpoint or that of `step`.

    Temperature 0 is greedy. The same seed gives the same text. A run trained on chats takes a prompt as a
    user's message. `base` uses the weights that a fine-tuned run began with. BERT fills in each [MASK].

    Raises:
        CheckpointError: there is no such checkpoint, or it does not verify.
        WeightsError: the base of a fine-tuned run is gone or has changed.
        ConfigError: a prompt that BERT cannot fill in.
    """
    if not prompts:
        return
    checkpoint = checkpoint_of(run, step)
    if config_of(checkpoint).task == BERT:
        yield from filled(checkpoint, config_of(checkpoint), run, prompts)
        return
    model, tokenizer = load_model(checkpoint, run, base=base), load_tokenizer(checkpoint, run)
    dataset = dataset_directory(checkpoint.meta, run)
    ends = end_ids(dataset, tokenizer)
    for prompt in prompts:
        ids = torch.tensor([prompt_ids(dataset, tokenizer, prompt)])
        yield prompt, _continue(model, tokenizer, ids, ends, max_new_tokens, temperature, seed)


def checkpoint_of(run: RunDir, step: int | None = None, skipped: list[str] | None = None) -> Checkpoint:
    """The run's newest good checkpoint, or that of `step`; CheckpointError without one.

    Why a newer one is not good is added to `skipped`.
    """
    if step is not None:
        return open_checkpoint(run.checkpoints / step_name(step))
    refused = [] if skipped is None else skipped
    checkpoint = newest(run.checkpoints, log=refused.append)
    if checkpoint is None:
        raise CheckpointError(refused[0] if refused else f"{run.checkpoints}: no committed checkpoint yet")
    return checkpoint


def load_model(checkpoint: Checkpoint, run: RunDir, *, base: bool = False) -> PreTrainedModel:
    """The checkpoint's model in fp32 on the CPU, ready to generate; with `base`, the model before training.

    Raises:
        WeightsError, CheckpointError: the base of a fine-tuned run is gone or has changed.
    """
    config = config_of(checkpoint)
    model = build_on_meta(config, "sdpa")
    if config.lora is not None:
        adapt(model, config, "fp32")
    if config.lora is not None or base:
        open_weights(config, run).load(model, config, torch.device("cpu"))
    else:
        materialise(model, config, torch.device("cpu"))
    if not base:
        trained = [(f"model.{name}", parameter.detach()) for name, parameter in trained_parameters(model)]
        checkpoint.load(shards_of(trained), only="model.")
    return model.hf.eval()


def config_of(checkpoint: Checkpoint) -> Config:
    """The configuration in the checkpoint."""
    try:
        return Config.model_validate_json(json.dumps(checkpoint.recorded("config")))
    except ValidationError as error:
        trouble = error.errors(include_input=False, include_url=False)[0]["msg"]
        raise CheckpointError(f"{checkpoint.directory.name}: its configuration is damaged: {trouble}") from None


@torch.no_grad()
def _continue(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    ids: torch.Tensor,
    ends: list[int],
    max_new_tokens: int,
    temperature: float,
    seed: int,
) -> str:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=temperature > 0,
            temperature=temperature if temperature > 0 else None,
            top_k=0 if temperature > 0 else None,
            eos_token_id=ends,
            pad_token_id=tokenizer.eos_token_id,
            use_cache=True,
        )
    return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


def main(arguments: Iterable[str] | None = None) -> None:
    """Command line: each prompt with its continuation, or JSON; exit 2 with one line on an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="run directory")
    parser.add_argument(
        "--prompt", action="append", help="can be repeated; default: the prompts in the run's configuration"
    )
    parser.add_argument("--max-new-tokens", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step", type=int, help="checkpoint of this step instead of the newest")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(None if arguments is None else list(arguments))
    run = RunDir(given.run)
    skipped: list[str] = []
    try:
        settings = config_of(checkpoint_of(run, given.step, skipped)).sample
        texts = list(
            continuations(
                run,
                given.prompt or settings.prompts,
                given.max_new_tokens or settings.max_new_tokens,
                settings.temperature if given.temperature is None else given.temperature,
                given.seed,
                given.step,
            )
        )
    except (CheckpointError, ConfigError, SigningError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    for line in skipped:
        print(f"note: {line}", file=sys.stderr)
    if given.json:
        print(json.dumps([{"prompt": p, "text": t} for p, t in texts], indent=2))
        return
    for prompt, text in texts:
        print(f"{prompt}│{text}\n")
