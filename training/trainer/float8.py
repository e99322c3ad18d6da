"""Matrix products of the blocks in float8 by torchao: `device.float8`.

Weights, the optimizer's state and checkpoints do not change: a product's operands are scaled and rounded each time.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from training.config import Config, ConfigError
from training.device import Device
from training.task import Trainable

_MULTIPLE = 16  # the cards' float8 products need both sides of a weight to be multiples of it (torchao 0.18)


def use_float8(model: Trainable, config: Config, device: Device) -> int:
    """Let the linear layers of a model's blocks multiply in float8; return their number, 0 if the key is off.

    Call it before blocks are compiled and sharded; names of parameters stay.

    Raises:
        ConfigError: this device multiplies no float8, blocks are not compiled, or torchao is not installed.
    """
    recipe = config.device.float8
    if recipe == "off":
        return 0
    lacking = device.lacks_float8(recipe)
    if lacking is None and not device.compile:
        lacking = f"blocks are not compiled ({device.compile_reason}), and float8 is slower than bf16 then"
    if lacking is None and device.precision != "bf16":
        lacking = f"device.precision is {device.precision}, and all else is computed in bf16 beside float8"
    if lacking is not None:
        raise ConfigError(f"device.float8 is {recipe}, but {lacking}; nearest value: off")
    return convert(model, recipe)


def convert(model: Trainable, recipe: str, emulate: bool = False) -> int:
    """Replace the linear layers of the blocks that torchao finds large enough to gain by it, and return their number.

    `emulate` rounds to float8 and multiplies in the model's precision, on devices without float8; it also takes small
    layers.

    Raises:
        ConfigError: torchao is not installed, or no layer is large enough or has sizes that the cards accept.
    """
    try:
        from torchao.float8 import Float8LinearConfig, _auto_filter_for_recipe, convert_to_float8_training
        from torchao.float8.float8_linear import Float8Linear
    except ImportError as error:
        raise ConfigError(
            f"device.float8 is {recipe}, but torchao 0.18 is not in this image ({error}); "
            "install it, or write device.float8: off"
        ) from error
    chosen = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=emulate)
    wanted = _fits if emulate else _auto_filter_for_recipe(recipe, [])
    for block in model.blocks():
        convert_to_float8_training(block, config=chosen, module_filter_fn=wanted)
    count = sum(isinstance(module, Float8Linear) for module in model.modules())
    if not count:
        raise ConfigError(
            f"device.float8 is {recipe}, but no linear layer is large enough to gain by it, with sizes that are "
            f"multiples of {_MULTIPLE}; nearest value: off"
        )
    return count


def _fits(module: nn.Module, _name: str) -> bool:
    return isinstance(module, nn.Linear) and not any(size % _MULTIPLE for size in module.weight.shape)
