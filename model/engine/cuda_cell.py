"""What a step does beside its products, in plain torch on any device: the fallback of, and the oracle for, the kernels.

May import torch only. `model.engine.cuda_cell_triton` has the same three functions as one kernel each; the CUDA engine takes
whichever of the two modules works. Shapes are constant and nothing is read back, so that a CUDA graph can hold them.

Lanes say what they load and save by number: `source` [B] is the slot a lane starts from at this step, -1 = it goes on;
`target` [B] is the slot its state goes to after this step, the last slot = nowhere (nobody ever loads that one).
"""

import torch
from torch import Tensor

__all__ = ["cell", "finish", "load_h"]


def load_h(h: Tensor, slot_h: Tensor, source: Tensor) -> None:
    """h [B, p] ← slot_h [slots, p] where a lane starts from a slot; h may be a view with a longer row stride."""
    h.copy_(torch.where((source >= 0)[:, None], slot_h[source.clamp(min=0)], h))


def cell(
    gates: Tensor,
    table: Tensor | None,
    table_row: Tensor,
    c: Tensor,
    slot_c: Tensor,
    source: Tensor,
    target: Tensor,
    hidden: Tensor,
    clip: float,
) -> None:
    """The LSTM cell of B lanes, in place.

    Args:
        gates: [B, 4d] products in the order i, f, g, o; biases are in them or in the table.
        table, table_row: rows [slots, 4d] of which one a lane, table_row [B], is added to the gates; None = nothing.
        c: [B, d] float32, updated.
        slot_c: [slots, d] float32, read by source and written by target.
        hidden: [B, d], gets o · tanh(c) in its own dtype.
        clip: bound on |c|, inf for none.
    """
    total = gates.float() if table is None else gates.float() + table[table_row].float()
    i, f, g, o = total.chunk(4, dim=1)  # [B, d] each
    before = torch.where((source >= 0)[:, None], slot_c[source.clamp(min=0)], c)
    after = (torch.sigmoid(f) * before + torch.sigmoid(i) * torch.tanh(g)).clamp(-clip, clip)
    c.copy_(after)
    slot_c[target] = after
    hidden.copy_(torch.sigmoid(o) * torch.tanh(after))


def finish(
    projected: Tensor,
    h: Tensor,
    slot_h: Tensor,
    target: Tensor,
    skip: Tensor | None,
    output: Tensor,
    following: Tensor | None,
    clip: float,
) -> None:
    """Everything after the projection of B lanes.

    Args:
        projected: [B, p], hidden · W_Pᵀ.
        h: [B, p] view, gets the clipped projection: what recurs.
        slot_h: [slots, p], written by target [B].
        skip: [B, p] view, the layer's input where it is added to the output; None = no skip connection.
        output: [B, p], gets h + skip.
        following: [B, p] view, gets the output too: the next layer's input; None = last layer.
        clip: bound on |h|, inf for none.
    """
    clipped = projected.clamp(-clip, clip)
    h.copy_(clipped)
    slot_h[target] = clipped
    total = clipped if skip is None else (clipped.float() + skip.float()).to(clipped.dtype)
    output.copy_(total)
    if following is not None:
        following.copy_(total)
