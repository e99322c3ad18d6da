"""A rank's device: cpu, cuda or neuron, chosen at run time.

All other modules ask this one where tensors live, which precision and attention to use, how gradients are
exchanged, when lazy work starts, how to time queued work, and what the card's peak is.
"""

from __future__ import annotations

from dataclasses import replace

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
        ConfigError: this machine does not have what the configuration asks for.
    """
    found = _resolve(config)
    if config.model.num_local_experts is None:
        return found
    return replace(found, compile=False, compile_reason="blocks with experts are not compiled")


def _resolve(config: Config) -> Device:
    wanted = config.device.type
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device.type is cuda, but torch sees no CUDA device here; nearest value: auto")
    if wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available()):
        return resolve_cuda(config)
    if wanted == "neuron" or (wanted == "auto" and neuron_is_here()):
        return resolve_neuron(config)
    return resolve_cpu(config)
