"""Measure what the probe costs: `python -m tests.prove.cost` prints the time of a step with and without it.

Two ranks train a Transformer encoder with AdamW on the CPU, in turn without and with the probe.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from tests.prove.parts import launch
from training.prove.records import Step

SCRIPT = """
    import statistics, sys, time, torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    width, layers, length = map(int, sys.argv[1:])
    encoder = [nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True) for _ in range(layers)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*encoder))
    optimizer = torch.optim.AdamW(model.parameters())
    batch, times = torch.randn(2, length, width), []
    for step in range(24):
        begin = time.perf_counter()
        model(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        print("parameters", sum(one.numel() for one in model.parameters()), "step", statistics.median(times[4:]))
    dist.destroy_process_group()
"""
SHAPES = (("128", "4", "320"), ("256", "4", "160"), ("384", "6", "64"))
ROUNDS = 3
ROW = "{:>12}{:>12}{:>12}{:>12}{:>14}"


def measured(shape: tuple[str, str, str], probe: bool, directory: Path) -> tuple[int, float, float]:
    """Return the number of parameters, the seconds of a step, and those of them that the probe counts as its own."""
    done = launch(directory, SCRIPT, *shape, steps=1000, probe=probe)
    words = next(line for line in done.output.splitlines() if line.startswith("parameters")).split()
    own = [step.probe_seconds for step in done.of(0, Step)[4:]] if probe else [0.0]
    return int(words[1]), float(words[3]), statistics.median(own)


def main() -> int:
    """Print one line for each size of a model: medians over rounds, in milliseconds."""
    print(ROW.format("parameters", "without, ms", "with, ms", "added, ms", "probe's, ms"))
    for shape in SHAPES:
        with tempfile.TemporaryDirectory(prefix="prove-cost-") as name:
            pairs = [[measured(shape, probe, Path(name)) for probe in (False, True)] for _ in range(ROUNDS)]
        plain = statistics.median(pair[0][1] for pair in pairs) * 1000
        probed = statistics.median(pair[1][1] for pair in pairs) * 1000
        added = statistics.median(pair[1][1] - pair[0][1] for pair in pairs) * 1000
        own = statistics.median(pair[1][2] for pair in pairs) * 1000
        print(ROW.format(f"{pairs[0][0][0]:,}", f"{plain:.0f}", f"{probed:.0f}", f"{added:.1f}", f"{own:.1f}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
