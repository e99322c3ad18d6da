"""Peak FLOP/s of accelerators by name."""

from __future__ import annotations

import re

# Dense BF16 peaks, FLOP/s per device, without structured sparsity. Sources: NVIDIA's data sheets of each card
# (A10G: AWS's variant of the A10, 70 TFLOPS tensor; L4, L40S, B200: half of the figure "with sparsity");
# Trainium: AWS Neuron documentation, trn1 architecture, 190 TFLOPS a chip of two cores; trn2 architecture,
# 667 TFLOPS a chip of four logical cores (the default).
# Matched in this order, as whole words in the device's name.
PEAK_BF16: tuple[tuple[str, float], ...] = (
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("H200", 989e12),
    ("B200", 2250e12),
    ("A100", 312e12),
    ("L40S", 362e12),
    ("A10G", 70e12),
    ("L4", 121e12),
    ("Trainium", 95e12),
    ("Trainium2", 166.75e12),
)
# The same cards outside the tensor cores, for fp32 runs (TF32 is not switched on).
PEAK_FP32: tuple[tuple[str, float], ...] = (
    ("H100 PCIe", 51e12),
    ("H100 NVL", 60e12),
    ("H100", 67e12),
    ("H200", 67e12),
    ("B200", 75e12),
    ("A100", 19.5e12),
    ("L40S", 91.6e12),
    ("A10G", 35e12),
    ("L4", 30.3e12),
)


def card_peak(name: str, precision: str = "bf16") -> tuple[float | None, str]:
    """Peak FLOP/s of a card by whole words in its name: an L40 is not an L4."""
    table = PEAK_BF16 if precision == "bf16" else PEAK_FP32
    known = (peak for key, peak in table if re.search(rf"\b{re.escape(key)}\b", name))
    peak = next(known, None)
    return (peak, "data sheet") if peak else (None, f"unknown card {name}")
