"""Parallelism that a script has written by hand, with torch's collectives alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.prove.made import changed, every
from tests.prove.parts import Started, launch
from tools.core import State
from tools.prove import by_hand, claims
from tools.prove.claims import world
from tools.prove.observed import Proof, Rank, Run
from training.prove.records import Batch, Outcome, Peers, Step, Uncovered


def halves(run: Run) -> None:
    """Let both ranks read one batch; they hold halves of `up`, and copies of `norm` whose gradients are equal."""
    every(run, Batch, (1,), digest="same")
    every(run, Batch, (0,), digest="same")
    for rank in run.ranks:
        for step in rank.of(Step):
            step.tensors = {"up": f"u{rank.rank}.{step.step}", "norm": f"n{step.step}"}
            step.parameters_before, step.parameters_after = (f"{rank.rank}.{at}" for at in (step.step - 1, step.step))


def drift(run: Run) -> None:
    """The norms begin equal on both ranks and are trained apart."""
    for step in run.ranks[1].of(Step)[1:]:
        step.tensors["norm"] += " apart"


def zeros(run: Run) -> None:
    """A bias begins as zeros on both ranks: its halves differ after the first step."""
    for rank in run.ranks:
        for step in rank.of(Step):
            step.tensors["bias"] = f"b{step.step * rank.rank if step.step > 1 else 0}"


def frozen(run: Run) -> None:
    """The norms are not trained, and nothing keeps the rest equal."""
    for step in [one for rank in run.ranks for one in rank.of(Step)]:
        step.tensors["norm"] = "n"


def known(run: Run) -> None:
    """Torch knows the parts."""
    for rank in run.ranks:
        rank.events.append(Peers("tensor", [0, 1]))


CASES: dict[str, tuple[Callable[[Run], Any], bool]] = {
    "halves of a model": (lambda run: None, True),
    "a bias of zeros": (zeros, True),
    "copies that nothing keeps equal": (drift, False),
    "frozen norms": (frozen, False),
    "other batches": (lambda run: every(run, Batch, (1,), digest=lambda one: f"other {one.number}"), False),
    "no collective": (lambda run: every(run, Step, collectives=0), False),
    "parts that torch knows": (known, False),
}


@pytest.mark.parametrize("name", CASES)
def test_halves_of_a_model_are_told_from_copies(name: str) -> None:
    change, found = CASES[name]
    run = changed(lambda runs: halves(runs["whole"])).run("whole")
    change(run)
    assert bool(by_hand.reason(run)) == found


@pytest.mark.parametrize("claim", by_hand.CLAIMS)
def test_what_copies_of_a_model_must_do_is_unknown_of_its_parts(claim: str) -> None:
    verdict = claims.judge(claim, changed(lambda runs: halves(runs["whole"])))
    assert verdict.state is State.CANNOT_TELL
    assert "1 of 2 tensors differ on them from the first step on, and 1 that are trained stay equal" in verdict.summary


TENSOR = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, data):
            data = data.clone()
            dist.all_reduce(data)
            return data
        @staticmethod
        def backward(ctx, gradient):
            return gradient
    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, data):
            return data.view_as(data)
        @staticmethod
        def backward(ctx, gradient):
            gradient = gradient.clone()
            dist.all_reduce(gradient)
            return gradient
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.norm = torch.nn.LayerNorm(8)
            torch.manual_seed(rank)
            self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8, bias=False)
        def forward(self, data):
            return Sum.apply(self.down(torch.relu(self.up(Copy.apply(self.norm(data))))))
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    for step in range(4):
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""
PIPELINE = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(4):
        if rank == 0:
            out = model(torch.randn(4, 8))
            dist.send(out.detach(), 1)
            gradient = torch.empty_like(out)
            dist.recv(gradient, 1)
            out.backward(gradient)
        else:
            data = torch.empty(4, 8)
            dist.recv(data, 0)
            data.requires_grad_()
            model(data).pow(2).mean().backward()
            dist.send(data.grad, 0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""


def seen(done: Started) -> Run:
    return Run("whole", Outcome("whole", "itself"), [Rank(rank, events) for rank, events in sorted(done.ranks.items())])


def test_tensor_parallelism_by_hand_is_seen_by_its_tensors(tmp_path: Path) -> None:
    done = launch(tmp_path, TENSOR, steps=9)
    said = by_hand.reason(seen(done))
    assert "3 of 5 tensors differ on them from the first step on" in said, done.output
    assert "2 that are trained stay equal" in said
    assert not done.all(Uncovered)


@pytest.mark.long
def test_a_pipeline_by_hand_is_seen_by_what_it_sends(tmp_path: Path) -> None:
    done = launch(tmp_path, PIPELINE, steps=9)
    assert {event.what for event in done.all(Uncovered)} == {"replicas"}, done.output
    assert by_hand.reason(seen(done)) == "ranks send tensors to each other: they may hold parts of one model"


SLICES = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Linear(7, 2)
    flat, gradients, at = torch.zeros(16), torch.zeros(16), 0
    for one in model.parameters():
        part = slice(at, at + one.numel())
        flat[part], one.grad = one.data.flatten(), gradients[part].view_as(one)
        one.data, at = flat[part].view_as(one), part.stop
    mine = torch.nn.Parameter(flat.chunk(world)[rank].clone())
    optimizer = torch.optim.AdamW([mine], lr=0.01)
    torch.manual_seed(rank)
    for step in range(4):
        model(torch.randn(4, 7)).pow(2).mean().backward()
        dist.all_reduce(gradients)
        mine.grad = gradients.chunk(world)[rank] / world
        optimizer.step()
        dist.all_gather_into_tensor(flat, mine.detach())
        gradients.zero_()
    dist.destroy_process_group()
"""


def test_a_model_is_compared_where_the_optimizer_holds_slices_of_it(tmp_path: Path) -> None:
    """An optimizer that is sharded by hand: its tensors differ between the ranks, the model does not."""
    done = launch(tmp_path, SLICES, steps=9)
    held = [{step.parameters_after for step in done.of(rank, Step)} for rank in (0, 1)]
    assert not held[0] & held[1]
    proof = Proof({"whole": seen(done)}, 9)
    assert [one.state for one in world.judge(proof)] == [State.PASS], done.output
    done.of(1, Step)[2].model_before += " other"
    (found,) = world.judge(proof)
    assert (found.name, found.state) == ("parameters-differ", State.FAIL)
