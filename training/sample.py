"""Text from a run's checkpoint: `python -m training.sample --run DIR --prompt TEXT`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from training.checkpoint import Checkpoint, CheckpointError, newest, open_checkpoint
from training.checkpoint.layout import step_name
from training.config import Config, ConfigError
from training.model import hf_config
from training.rundir import RunDir


def continuations(
    run: RunDir,
    prompts: Sequence[str],
    max_new_tokens: int,
    temperature: float,
    seed: int,
    step: int | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield (prompt, continuation) for each prompt, from the newest committed checkpoint or that of `step`.

    Temperature 0 is greedy. The same seed gives the same text.

    Raises:
        CheckpointError: there is no such checkpoint, or it does not verify.
    """
    if not prompts:
        return
    checkpoint = _checkpoint(run, step)
    model, tokenizer = load_model(checkpoint), load_tokenizer(checkpoint, run)
    for prompt in prompts:
        yield prompt, _continue(model, tokenizer, prompt, max_new_tokens, temperature, seed)


def _checkpoint(run: RunDir, step: int | None) -> Checkpoint:
    if step is not None:
        return open_checkpoint(run.checkpoints / step_name(step))
    checkpoint = newest(run.checkpoints)
    if checkpoint is None:
        raise CheckpointError(f"{run.checkpoints}: no committed checkpoint yet")
    return checkpoint


def load_model(checkpoint: Checkpoint) -> LlamaForCausalLM:
    """The checkpoint's model in fp32 on the CPU, ready to generate."""
    config = Config.model_validate_json(json.dumps(checkpoint.meta["config"]))
    with torch.device("meta"):
        model = LlamaForCausalLM(hf_config(config, "sdpa"))
    weights = {
        n.removeprefix(
            "model.",
        ): checkpoint.full(n)
        for n in checkpoint.names()
        if n.startswith("model.")
    }
    return _with_weights(model, weights, config)


def _with_weights(
    model: LlamaForCausalLM, weights: dict[str, torch.Tensor], config: Config
) -> LlamaForCausalLM:
    model.to_empty(device="cpu")
    if config.model.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    own = dict(model.named_parameters())
    if own.keys() != weights.keys():
        raise CheckpointError(
            f"the checkpoint's parameters differ from the model's: {sorted(own.keys() ^ weights.keys())[:3]}"
        )
    with torch.no_grad():
        for name, value in weights.items():
            own[name].copy_(value)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model.eval()


def load_tokenizer(checkpoint: Checkpoint, run: RunDir) -> PreTrainedTokenizerBase:
    """The tokenizer of the dataset that the run was trained on."""
    directory = dataset_directory(checkpoint.meta, run)
    return PreTrainedTokenizerFast.from_pretrained(directory / "tokenizer")


def dataset_directory(meta: dict[str, Any], run: RunDir) -> Path:
    """Where the run's dataset is now: where it was, or beside the run (a volume may be mounted elsewhere)."""
    recorded = Path(meta["dataset_directory"])
    beside = run.path.resolve().parent.parent / "data" / recorded.name
    for directory in (recorded, beside):
        if (directory / "index.json").exists():
            return directory
    raise CheckpointError(f"the run's dataset is neither at {recorded} nor at {beside}")


@torch.no_grad()
def _continue(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    max_new_tokens: int,
    temperature: float,
    seed: int,
) -> str:
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
    begin = torch.tensor([[tokenizer.bos_token_id]])
    ids = torch.cat([begin, ids.to(begin.dtype)], dim=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=temperature > 0,
            temperature=temperature if temperature > 0 else None,
            top_k=0 if temperature > 0 else None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
            use_cache=True,
        )
    return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


def main(arguments: Iterable[str] | None = None) -> None:
    """Command line: each prompt with its continuation, or JSON; exit 2 with one line when it cannot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="run directory")
    parser.add_argument(
        "--prompt", action="append", help="may be given several times; default: the run's own prompts"
    )
    parser.add_argument("--max-new-tokens", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step", type=int, help="checkpoint of this step instead of the newest")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(None if arguments is None else list(arguments))
    run = RunDir(given.run)
    try:
        settings = Config.model_validate_json(json.dumps(_checkpoint(run, given.step).meta["config"])).sample
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
    except (CheckpointError, ConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    if given.json:
        print(json.dumps([{"prompt": p, "text": t} for p, t in texts], indent=2))
        return
    for prompt, text in texts:
        print(f"{prompt}│{text}\n")


if __name__ == "__main__":
    main()
