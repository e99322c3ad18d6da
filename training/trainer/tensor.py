"""Products of matrices that neighbouring ranks of a node compute together."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from training.models.causal import CausalLM
from training.models.head import Words


def split_products(model: CausalLM, mesh: DeviceMesh) -> None:
    """Give each rank of the mesh some heads, some of the MLP's inner values and some words of the output head.

    Within attention and MLP no rank waits for another; one sum follows each of them, and one each in the backward
    pass. Norms and the token table are the same on all of these ranks, and so are their gradients.
    """
    inputs = PrepareModuleInput(
        input_kwarg_layouts={"hidden_states": Replicate()}, desired_input_kwarg_layouts={"hidden_states": Replicate()}
    )
    for block in model.blocks():
        plan = {
            "self_attn": inputs,
            "self_attn.q_proj": ColwiseParallel(),
            "self_attn.k_proj": ColwiseParallel(),
            "self_attn.v_proj": ColwiseParallel(),
            "self_attn.o_proj": RowwiseParallel(),
            "mlp": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),
            "mlp.gate_proj": ColwiseParallel(),
            "mlp.up_proj": ColwiseParallel(),
            "mlp.down_proj": RowwiseParallel(),
        }
        parallelize_module(block, mesh, plan)
    parallelize_module(model.hf, mesh, {"lm_head": ColwiseParallel()})
    words = model.model.vocab_size // mesh.size()
    model.head_loss.words = Words(mesh.get_group(), mesh.get_local_rank() * words)
