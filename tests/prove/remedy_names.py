"""Look up the names that the repairs of tools/prove/remedies.yaml use: python remedy_names.py FILE FRAMEWORK ...

Prints one line for each name, attribute or argument that the installed packages do not have. It imports none of our
packages, because it also runs in the environment that has Lightning.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

# Where a name of a repair comes from. An instance stands for its class.
EVERYWHERE = {
    **{name: name for name in ("torch", "numpy", "random", "os", "itertools", "signal", "datetime", "pathlib")},
    "threading": "threading",
    "DataLoader": "torch.utils.data.DataLoader", "DistributedSampler": "torch.utils.data.DistributedSampler",
    "DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "fully_shard": "torch.distributed.fsdp.fully_shard", "dcp": "torch.distributed.checkpoint",
    "get_state_dict": "torch.distributed.checkpoint.state_dict.get_state_dict",
    "set_state_dict": "torch.distributed.checkpoint.state_dict.set_state_dict",
    "model": "torch.nn.Module", "head": "torch.nn.Module", "frozen": "torch.nn.Module", "average": "torch.nn.Module",
    "optimizer": "torch.optim.Optimizer", "scheduler": "torch.optim.lr_scheduler.LRScheduler", "loss": "torch.Tensor",
    "loader": "torch.utils.data.DataLoader", "sampler": "torch.utils.data.DistributedSampler",
    "stopping": "threading.Event", "directory": "pathlib.Path",
}  # fmt: skip
OF = {
    "transformers": {
        **{name: f"transformers.{name}" for name in ("Trainer", "TrainingArguments", "TrainerCallback", "set_seed")},
        "transformers": "transformers",
        "trainer": "transformers.Trainer", "arguments": "transformers.TrainingArguments",
        "get_last_checkpoint": "transformers.trainer_utils.get_last_checkpoint",
        "split_dataset_by_node": "datasets.distributed.split_dataset_by_node",
    },
    "accelerate": {
        "Accelerator": "accelerate.Accelerator", "accelerator": "accelerate.Accelerator",
        "set_seed": "accelerate.utils.set_seed", "gather_object": "accelerate.utils.gather_object",
        "InitProcessGroupKwargs": "accelerate.utils.InitProcessGroupKwargs",
        "ProjectConfiguration": "accelerate.utils.ProjectConfiguration",
        "DataLoaderConfiguration": "accelerate.utils.DataLoaderConfiguration",
        "loader": "accelerate.data_loader.DataLoaderShard",
    },
    "lightning": {
        "Trainer": "lightning.Trainer", "trainer": "lightning.Trainer", "self": "lightning.LightningModule",
        "seed_everything": "lightning.seed_everything",
        "ModelCheckpoint": "lightning.pytorch.callbacks.ModelCheckpoint",
        "DDPStrategy": "lightning.pytorch.strategies.DDPStrategy",
    },
}  # fmt: skip
# Names of the reader's script.
OWN = {
    *("args", "batch_size", "build_model", "dataset", "device", "epoch", "epochs", "global_batch", "inputs", "last"),
    *("out", "path", "position", "rank", "save", "seed", "state", "step", "targets", "temporary", "train", "world"),
}


def code(text: str) -> str:
    """Return the Python of a repair: all but its first line, which is a sentence."""
    return text.partition("\n")[2]


def texts(row: str | dict[str, str]) -> dict[str, str]:
    """Return the texts of a row by framework."""
    return row if isinstance(row, dict) else {"any": row}


def unknown(source: str, framework: str) -> Iterator[str]:
    """Yield each name, attribute and argument of a text that does not exist."""
    tree = ast.parse(source)
    known = EVERYWHERE | OF.get(framework, {})
    made = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    made |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not {node.id} & (made | OWN | set(known) | set(dir(builtins))):
            yield f"name {node.id}"
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = _find(node.value, known)
            if owner is not None and not _has(owner, node.attr):
                yield f"attribute {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and (called := _find(node.func, known)) is not None:
            yield from (f"argument {name} of {ast.unparse(node.func)}" for name in _refused(called, node))


def _find(node: ast.expr, known: dict[str, str]) -> Any:
    """Return what an expression of dots stands for, or None where it is a value that is not looked up."""
    if isinstance(node, ast.Attribute):
        found = getattr(_find(node.value, known), node.attr, None)
        return None if isinstance(found, property) else found
    return _load(known[node.id]) if isinstance(node, ast.Name) and node.id in known else None


def _load(path: str) -> Any:
    for at in range(path.count("."), -1, -1):
        module, names = ".".join(path.split(".")[: at + 1]), path.split(".")[at + 1 :]
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        for name in names:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(path)


def _has(owner: Any, name: str) -> bool:
    return hasattr(owner, name) or name in getattr(owner, "__annotations__", {})


def _refused(called: Any, call: ast.Call) -> list[str]:
    try:
        parameters = inspect.signature(called).parameters
    except (TypeError, ValueError):
        return []
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return []
    return [word.arg for word in call.keywords if word.arg and word.arg not in parameters]


def faults(path: Path, frameworks: list[str]) -> list[str]:
    """Return what is wrong in the repairs for some frameworks."""
    rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [
        f"{key} {framework}: {fault}"
        for key, row in rows.items()
        for framework, text in texts(row).items()
        if framework in frameworks
        for fault in unknown(code(text), framework)
    ]


if __name__ == "__main__":
    print("\n".join(faults(Path(sys.argv[1]), sys.argv[2:])))
