"""The time of a step: what makes it longer, and its arithmetic."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from tests.plan.runs import H100, LLAMA, run
from tools.plan import calibrate, speed
from tools.plan.layout import CARDS, FITTED, Card, Layout, Machine, Shape
from training.device.peaks import card_peak


@pytest.mark.parametrize("name", sorted(CARDS))
def test_peaks_are_those_of_the_trainer(name: str) -> None:
    assert card_peak(name.partition("-")[0])[0] == pytest.approx(CARDS[name].peak, rel=1e-3)


def test_parameters_are_counted_as_the_trainer_counts_them() -> None:
    counted = run().shape
    assert replace(counted, counted=None).parameters == counted.parameters == 8_030_261_248


@pytest.mark.parametrize(
    ("change", "slower"),
    [
        ({"recompute": "full"}, True), ({"kernels": "eager"}, True), ({"precision": "fp8"}, False),
        ({"length": 16384, "micro": 1}, True), ({"attention": "flash3"}, False), ({"tensor": 2, "shard": 4}, True),
    ],
)  # fmt: skip
def test_what_makes_a_step_slower(change: dict[str, object], slower: bool) -> None:
    """The same tokens of a step, in another layout."""
    layout = Layout(8192, 2, gpus=8, shard=8)
    other = replace(layout, **change)  # type: ignore[arg-type]
    before, after = (speed.Clock(LLAMA, one, H100, FITTED).seconds() / one.step_tokens for one in (layout, other))
    assert (after > before) == slower


def test_a_slow_network_is_exposed() -> None:
    layout = Layout(8192, 1, gpus=64, shard=64)
    slow = Machine(CARDS["H100"], 12.5e9, "TCP")
    fast, tcp = (speed.Clock(LLAMA, layout, one, FITTED).parts() for one in (H100, slow))
    name = "exchange of weights and gradients"
    assert tcp[name] > 10 * fast[name]
    assert tcp["MLP products"] == fast["MLP products"]


@pytest.mark.parametrize("change", [{}, {"shard": 8}, {"shard": 16, "tensor": 4}, {"gpus": 8, "shard": 8}])
def test_the_network_that_is_needed_hides_the_exchange(change: dict[str, int]) -> None:
    """With less the exchange is exposed, with more it only shares the card."""
    layout = replace(Layout(8192, 1, gpus=64, shard=64), **change)  # type: ignore[arg-type]
    needed = speed.Clock(LLAMA, layout, H100, FITTED).network_needed()
    if layout.gpus == 8:
        assert needed == 0
        return

    def exchange(network: float) -> float:
        terms = speed.Clock(LLAMA, layout, Machine(CARDS["H100"], network, "EFA"), FITTED).steps()
        return next(one.seconds for one in terms if one.name == "exchange of weights and gradients")

    assert exchange(0.7 * needed) > 1.5 * exchange(needed)
    assert exchange(1.4 * needed) > exchange(needed) / 1.6


def flop(how: str) -> float:
    """Multiply the numbers of an explanation: `2 x 16,384 tokens x [4096x6144, 4096x4096] x (1 + 2 + 0 again)`."""
    text = re.sub(r"[a-z]{2,}", "", re.split("[:;]", how)[0])
    factors = [factor.strip("[]() ").split(" + ") for factor in re.sub(r",(?=\d{3} )", "", text).split(" x ")]
    sums = [[part for term in terms for part in term.split(", ")] for terms in factors]
    return math.prod(sum(math.prod(map(float, term.split("x"))) for term in terms) for terms in sums)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("adapters", [{}, {"rank": 512, "targets": 81920, "trained": 41_943_040}])
def test_an_explanation_multiplies_to_its_seconds(recompute: str, adapters: dict[str, int]) -> None:
    """What a term multiplies takes as long as it says at the fitted rate; its reads make a product slower."""
    layout = replace(Layout(8192, 2, gpus=8, shard=8, recompute=recompute), **adapters)  # type: ignore[arg-type]
    found = [one for one in speed.Clock(LLAMA, layout, H100, FITTED).steps() if "matmul H100" in one.constants]
    rates = {one.name: flop(one.how) / one.seconds / H100.card.peak / FITTED["matmul H100"] for one in found}
    assert len(rates) == (4 if adapters else 3)
    assert all(0.7 < rate < 1 for rate in rates.values()), rates
    (attention,) = (one for one in speed.Clock(LLAMA, layout, H100, FITTED).steps() if one.name == "attention")
    rate = H100.card.peak * FITTED["flash2 H100"] / (1 + FITTED["short rows"] / 8192)
    assert flop(attention.how) / rate == pytest.approx(attention.seconds)


def test_selective_recomputation_keeps_no_products_of_experts() -> None:
    """They take the time that full recomputation takes; those of a plain MLP take less."""
    layout = Layout(8192, 2, gpus=8, shard=8)
    for shape, equal in ((replace(LLAMA, experts=8, chosen=2), True), (LLAMA, False)):
        found = [
            {one.name: one for one in speed.Clock(shape, replace(layout, recompute=how), H100, FITTED).steps()}
            for how in ("selective", "full")
        ]
        selective, full = (terms["MLP products"] for terms in found)
        assert (selective.seconds == full.seconds) == (selective.how == full.how) == equal
        assert found[0]["attention products"].seconds < found[1]["attention products"].seconds


def on_a_cpu(layout: Layout, shape: Shape, peak: float = 80e9) -> dict[str, float]:
    """Seconds of a step by part, on processes of a CPU."""
    card = Card("CPU", peak, None, calibrate.CPU["bandwidth"], calibrate.CPU["link"], "CPU", "measured by the trainer")
    fitted = {**FITTED, "matmul CPU": 0.9}
    machine = Machine(card, calibrate.CPU["link"], "TCP")
    return {one.name: one.seconds for one in speed.Clock(shape, layout, machine, fitted).steps()}


TINY = Shape(256, 768, 4, 4, 2, 4096)
ON_A_CPU = Layout(256, 4, gpus=2, per_node=1, attention="eager", on_cpu=True)


def test_narrow_products_are_slower_on_a_cpu() -> None:
    """A fourth of each width is a sixteenth of the arithmetic, and takes longer than a sixteenth of the time."""
    narrow = replace(TINY, hidden=64, inner=192)
    wide, thin = (on_a_cpu(ON_A_CPU, shape)["MLP products"] for shape in (TINY, narrow))
    assert 1.3 < 16 * thin / wide < 1.5
    assert thin / wide == pytest.approx((64 + 32) / (256 + 32) / 4, rel=0.1)


def test_a_cpu_hides_no_exchange() -> None:
    """A card hides the gradients of such a model behind the backward pass; a processor sums them itself."""
    name, nbytes = "exchange of weights and gradients", 4 * TINY.parameters
    assert on_a_cpu(ON_A_CPU, TINY)[name] == pytest.approx(nbytes / 1.04e9, rel=0.1)
    assert on_a_cpu(replace(ON_A_CPU, gpus=1), TINY)[name] == 0


def test_a_faster_cpu_is_faster_between_the_products_too() -> None:
    slow, fast = (on_a_cpu(ON_A_CPU, TINY, peak) for peak in (40e9, 160e9))
    assert slow["memory-bound parts"] > 3 * fast["memory-bound parts"]
    assert slow["attention"] == pytest.approx(4 * fast["attention"], rel=0.1)


def test_gelu_takes_longer_than_swiglu_on_a_cpu() -> None:
    """Its error function is most of the work between BERT's products."""
    swish, gelu = (on_a_cpu(ON_A_CPU, replace(TINY, gated=gated)) for gated in (True, False))
    assert gelu["memory-bound parts"] > swish["memory-bound parts"]


def test_fused_attention_on_a_cpu_takes_the_time_of_its_scores() -> None:
    """Without a constant of a card: twice the tokens of a row are almost twice the scores of each token."""
    shorter, longer = (
        on_a_cpu(replace(ON_A_CPU, attention="sdpa", length=length, micro=1024 // length), TINY)["attention"]
        for length in (256, 512)
    )
    assert longer / shorter == pytest.approx((512 + 32) / (256 + 32))
    assert shorter < on_a_cpu(ON_A_CPU, TINY)["attention"]
