"""What a direction does in a training step, forward and backward; on a GPU it is a CUDA graph.

A step of the recurrence is less work for a GPU than its launches are for the host, and there are hundreds of them: captured
once, a batch is one launch a direction (`python -m benchmarks.train --device cuda`).
"""

from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from model.training import softmax
from model.training.network import Network

State = list[tuple[Tensor, Tensor]]  # layer → (h [B, p], c [B, d])


@dataclass(frozen=True, eq=False)
class DirectionBatch:
    """What one direction reads in a batch."""

    read: Tensor  # [T, B, p], the word vectors in reading order
    state: State  # h and c of each layer, from the batch before
    targets: Tensor  # int64 [T, B]; weights: float32 [T, B], see `corpus.Batch`
    weights: Tensor
    negatives: softmax.Negatives


@dataclass(frozen=True, eq=False)
class DirectionResult:
    """What comes of a `DirectionBatch`."""

    d_read: Tensor  # [T, B, p], the gradient of `DirectionBatch.read`
    gradients: dict[str, Tensor]  # of the direction's parameters, by name
    state: State  # to carry
    sampled: softmax.SampledLoss  # the loss, and the gradients of the softmax's rows


def gradients(computed: Tensor, tensors: dict[str, Tensor], upstream: Tensor) -> dict[str, Tensor]:
    """The gradient of each of the tensors that something was computed from, by its own gradient ``upstream``."""
    parts = torch.autograd.grad(computed, list(tensors.values()), upstream)
    # Fused optimisers read gradients as if they lay as their parameters do.
    return {name: part.contiguous() for name, part in zip(tensors, parts, strict=True)}


def direction_step(
    network: Network, direction: str, rows: softmax.SoftmaxRows, batch: DirectionBatch
) -> DirectionResult:
    """Forward and backward of "fwd" or "bwd"; nothing is changed."""
    read = batch.read.detach().requires_grad_()
    h, carried = network.direction(direction, read, batch.state)  # [T, B, p]
    flat, targets, weights = (
        h.detach().view(-1, h.shape[2]),
        batch.targets.flatten(),
        batch.weights.flatten(),
    )
    sampled = softmax.sampled_loss(flat, targets, weights, rows.weight, rows.bias, batch.negatives)
    own = {
        name: value
        for name, value in network.parameters.items()
        if name.startswith(f"lstm.{direction}")
    }
    found = gradients(h, {"read": read} | own, (sampled.dh / weights.sum()).view_as(h))
    return DirectionResult(found.pop("read"), found, carried, sampled)


class GraphedDirection:
    """`direction_step` over buffers that stay where they are, captured at the first batch; off a GPU the same without a graph.

    What it returns is overwritten by the next batch. The parameters and the softmax must be changed in place.
    """

    def __init__(self, network: Network, direction: str, rows: softmax.SoftmaxRows) -> None:
        self._device, self._compute = (
            network.device,
            partial(direction_step, network, direction, rows),
        )
        self.stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: DirectionBatch | None = None
        self._captured: DirectionResult | None = None

    def step(self, batch: DirectionBatch) -> DirectionResult:
        """One batch, of the first one's shape; on a GPU on `stream`, behind what the caller's stream has been asked for."""
        if self.stream is None:
            return self._run(batch)
        self.stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self.stream):
            return self._run(batch)

    def wait(self) -> None:
        """Have the caller's stream wait for the last batch."""
        if self.stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self.stream)

    def _run(self, batch: DirectionBatch) -> DirectionResult:
        if self._batch is None:
            self._batch = deepcopy(batch)
        for kept, new in zip(_tensors(self._batch), _tensors(batch), strict=True):
            kept.copy_(new)
        if self.stream is None:
            return self._compute(self._batch)
        if self._graph is None or self._captured is None:
            self._compute(self._batch)  # outside a graph first: cuBLAS and Triton set themselves up
            self.stream.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            # Captured on the stream that it runs on: cuBLAS has a workspace for each stream, and two graphs that run side by
            # side with the same one would spoil each other's sums.
            with torch.cuda.graph(
                self._graph, stream=self.stream, capture_error_mode="thread_local"
            ):
                self._captured = self._compute(self._batch)
        self._graph.replay()
        return self._captured


def _tensors(batch: DirectionBatch) -> list[Tensor]:
    """All that differs from batch to batch, in one order."""
    state = (part for layer in batch.state for part in layer)
    return [
        batch.read.detach(),
        batch.targets,
        batch.weights,
        *state,
        batch.negatives.classes,
        batch.negatives.tries,
    ]
