"""The output head and its loss, in chunks of tokens: all logits of a batch never exist at once.

The logits of 16,384 tokens over 128,256 words take 4 GiB in bf16, and as much again for each of their uses. A
chunk's logits become its loss and then, in the same memory, their own gradient. So the forward pass also computes
the gradients, and the backward pass only scales them. Positions without a label have no loss: where a batch says
which positions have one, only their logits are computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from training.config.choices import loss_chunk

IGNORE = -100  # label of a position without a target


@dataclass(frozen=True)
class Words:
    """The words of a head's rows, where the ranks of a group share them: from `first` on."""

    group: dist.ProcessGroup
    first: int


class HeadLoss:
    """Cross-entropy of a head's logits, summed over labelled positions: in fp32 for any precision of products."""

    def __init__(self, words: Words | None = None) -> None:
        self.words = words
        self.whole, self.partial, self.gradient = whole_loss, _partial, _gradient

    def compile(self) -> None:
        """Compile what is not a product of matrices; the loss of one chunk is compiled with its product."""
        self.whole = torch.compile(whole_loss, fullgraph=True)
        self.partial = torch.compile(_partial, fullgraph=True)
        self.gradient = torch.compile(_gradient, fullgraph=True)

    def __call__(
        self, hidden: torch.Tensor, head: torch.Tensor, labels: torch.Tensor, chosen: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The sum in nats, fp32 []; hidden [batch, sequence, width], head [words, width], labels [batch, sequence].

        `chosen`, int64 [positions], has every position with a label, counted through the whole batch.
        """
        tokens = labels.numel()
        size = loss_chunk(tokens, head.shape[0], hidden.is_cuda)
        if chosen is not None and chosen.device.type == "xla":
            chosen = None  # XLA would compile a graph for every number of positions
        if size < tokens or self.words is not None:
            loss: torch.Tensor = _Chunked.apply(hidden.flatten(0, -2), head, labels.flatten(), chosen, self, size)
            return loss
        if chosen is not None:
            hidden, labels = hidden.flatten(0, -2).index_select(0, chosen), labels.flatten()[chosen]
            _number_varies(hidden, labels)
        return self.whole(hidden, head, labels)


def _number_varies(*tensors: torch.Tensor) -> None:
    """Let one compilation do for all first sizes of these tensors."""
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)


def whole_loss(hidden: torch.Tensor, head: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy summed over labelled positions, from all logits at once."""
    logits = functional.linear(hidden, head).float()
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORE, reduction="sum")


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, head: torch.Tensor, labels: torch.Tensor, chosen: torch.Tensor | None,
        how: HeadLoss, size: int,
    ) -> torch.Tensor:  # fmt: skip
        """hidden [tokens, width], head [words, width], labels [tokens], chosen [positions]."""
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        wants_hidden, wants_head = ctx.needs_input_grad[:2]
        inputs, weight = hidden.detach().to(dtype), head.detach().to(dtype)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        empty = torch.empty_like if chosen is None else torch.zeros_like
        of_hidden = empty(inputs) if wants_hidden else None
        of_head = torch.zeros_like(head, dtype=torch.float32) if wants_head else None
        with torch.autocast(kind, enabled=False):
            for rows in _chunks(len(labels), size, chosen):
                chunk, targets = inputs[rows], labels[rows]
                own = targets if how.words is None else targets - how.words.first
                logits = chunk @ weight.T
                if chosen is not None:
                    _number_varies(logits, targets, own)
                loss, logsum = _chunk_loss(how, logits, own, targets)
                total += loss
                if not wants_hidden and not wants_head:
                    continue
                if chosen is not None:
                    _number_varies(logsum)
                how.gradient(logits, logsum, own, targets)
                if of_hidden is not None:
                    _put_product(of_hidden, rows, logits, weight)
                if of_head is not None:
                    _add_product(of_head, logits, chunk)
                del logits  # before the next ones exist
        if of_hidden is not None and how.words is not None:
            dist.all_reduce(of_hidden, group=how.words.group)  # each rank has the part of its words
        ctx.save_for_backward(
            of_hidden if of_hidden is None else of_hidden.to(hidden.dtype),
            of_head if of_head is None else of_head.to(head.dtype),
        )
        return total

    @staticmethod
    def backward(ctx: Any, scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Scale the gradients of the forward pass, in their memory: they are used once."""
        of_hidden, of_head = (each if each is None else each.mul_(scale) for each in ctx.saved_tensors)
        return of_hidden, of_head, None, None, None, None


def _chunks(tokens: int, size: int, chosen: torch.Tensor | None) -> Iterable[slice | torch.Tensor]:
    """The rows of each chunk: `size` of them, fewer in the last one."""
    if chosen is not None:
        return chosen.split(size)
    return [slice(first, first + size) for first in range(0, tokens, size)]


def _put_product(total: torch.Tensor, rows: slice | torch.Tensor, gradient: torch.Tensor, head: torch.Tensor) -> None:
    """Put gradient @ head into these rows of `total`."""
    if isinstance(rows, slice):
        torch.mm(gradient, head, out=total[rows])
    else:
        total.index_copy_(0, rows, gradient @ head)


def _add_product(total: torch.Tensor, gradient: torch.Tensor, inputs: torch.Tensor) -> None:
    """Add gradient.T @ inputs to fp32 `total`."""
    if gradient.dtype == torch.float32:
        total.addmm_(gradient.T, inputs)
    else:
        total += gradient.T @ inputs


def _chunk_loss(
    how: HeadLoss, logits: torch.Tensor, own: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The chunk's loss, and the logarithm of each token's sum of exponentials; `own` are labels among these words."""
    peak, total, target = how.partial(logits, own)
    if how.words is not None:
        group, of_rank = how.words.group, peak.clone()
        dist.all_reduce(peak, dist.ReduceOp.MAX, group=group)
        both = torch.stack([total * (of_rank - peak).exp(), target])
        dist.all_reduce(both, group=group)
        total, target = both.unbind()
    logsum = peak + total.log()
    return torch.where(labels == IGNORE, 0.0, logsum - target).sum(), logsum


def _partial(logits: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each token the largest logit, the sum of exponentials below it, and the label's logit or 0; fp32."""
    here = (own >= 0) & (own < logits.shape[-1])
    full = logits.float()
    peak = full.amax(-1)
    total = (full - peak[:, None]).exp().sum(-1)
    target = full.gather(-1, torch.where(here, own, 0)[:, None])[:, 0]
    return peak, total, torch.where(here, target, 0.0)


def _gradient(logits: torch.Tensor, logsum: torch.Tensor, own: torch.Tensor, labels: torch.Tensor) -> None:
    """Replace logits by the loss's gradient: the softmax, less 1 at the label; 0 for a token without one."""
    words = torch.arange(logits.shape[-1], device=logits.device)
    softmax = (logits.float() - logsum[:, None]).exp() - (words == own[:, None]).float()
    logits.copy_(torch.where((labels == IGNORE)[:, None], 0.0, softmax))
