"""The one place that knows which device a rank runs on: cpu, cuda or neuron, chosen at run time.

Everything else asks this module: where tensors live, which precision and attention fit, how gradients are
exchanged, when lazy work begins, how to take the time of queued work, and what the card's peak is.
"""

from __future__ import annotations

import torch

from training.config import Config, ConfigError
from training.device.base import Device
from training.device.cpu import cpu_threads, resolve_cpu
from training.device.cuda import resolve_cuda
from training.device.neuron import is_here as neuron_is_here
from training.device.neuron import resolve_neuron
from training.device.peaks import card_peak

__all__ = ["Device", "card_peak", "cpu_threads", "resolve"]


def resolve(config: Config) -> Device:
    """Choose the device of this process and resolve every `auto`.

    Raises:
        ConfigError: the configuration asks for what this machine does not have.
    """
    wanted = config.device.type
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device.type is cuda, but torch sees no CUDA device here; nearest value: auto")
    if wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available()):
        return resolve_cuda(config)
    if wanted == "neuron" or (wanted == "auto" and neuron_is_here()):
        return resolve_neuron(config)
    return resolve_cpu(config)
