"""One direction's share of a training step: forward, loss, backward; on a GPU one CUDA graph.

A step of the recurrence is less work for a GPU than its launches are for the host, and there are hundreds of them: captured
once, a batch is one launch (`python -m benchmarks.train --device cuda`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from model.training import softmax
from model.training.network import Network

State = list[tuple[Tensor, Tensor]]  # layer → (h [B, p], c [B, d])


@dataclass(frozen=True, eq=False)
class DirectionBatch:
    """What one direction reads in a batch.

    Attributes:
        read: [T, B, p], the word vectors in reading order.
        state: h and c of each layer, from the batch before.
        targets: int64 [T, B]; weights: float32 [T, B], see `corpus.Batch`.
        negatives: None for the full softmax.
    """

    read: Tensor
    state: State
    targets: Tensor
    weights: Tensor
    negatives: softmax.Negatives | None


@dataclass(frozen=True, eq=False)
class DirectionResult:
    """What comes of a `DirectionBatch`.

    Attributes:
        d_read: [T, B, p], the gradient of `DirectionBatch.read`.
        gradients: of the direction's parameters, by name.
        state: to carry.
        sampled: the loss, and the gradients of the softmax's rows.
    """

    d_read: Tensor
    gradients: dict[str, Tensor]
    state: State
    sampled: softmax.SampledLoss


def direction_step(
    network: Network,
    direction: str,
    rows: softmax.SoftmaxRows,
    batch: DirectionBatch,
    scale: float = 1.0,
    drop: Callable[[Tensor], Tensor] | None = None,
) -> DirectionResult:
    """Forward and backward.

    Args:
        network: its parameters are read, nothing is changed.
        direction: "fwd" or "bwd".
        rows: the softmax.
        batch: what to read.
        scale: of the mean loss, in the gradients of `network` and `batch.read`.
        drop: see `Network.direction`.
    """
    read = batch.read.detach().requires_grad_()
    h, carried = network.direction(direction, read, batch.state, drop)  # [T, B, p]
    flat, targets, weights = h.detach().view(-1, h.shape[2]), batch.targets.flatten(), batch.weights.flatten()
    sampled = softmax.sampled_loss(flat, targets, weights, rows.weight, rows.bias, batch.negatives)
    own = {name: value for name, value in network.parameters.items() if name.startswith(f"lstm.{direction}")}
    upstream = (sampled.dh * (scale / weights.sum())).view_as(h)
    d_read, *gradients = torch.autograd.grad(h, [read, *own.values()], upstream)
    # Fused optimisers read gradients as if they lay as their parameters do.
    return DirectionResult(d_read, {name: part.contiguous() for name, part in zip(own, gradients, strict=True)}, carried, sampled)


class GraphedDirection:
    """`direction_step` over buffers that stay where they are, captured at the first batch; off a GPU the same without a graph.

    What it returns is overwritten by the next batch. The parameters and the softmax must be changed in place.
    """

    def __init__(self, network: Network, direction: str, rows: softmax.SoftmaxRows, scale: float = 1.0) -> None:
        self._network, self._direction, self._rows, self._scale = network, direction, rows, scale
        self.stream = torch.cuda.Stream(network.device) if network.device.type == "cuda" else None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: DirectionBatch | None = None
        self._captured: DirectionResult | None = None

    def step(self, batch: DirectionBatch) -> DirectionResult:
        """One batch, of the first one's shape; on a GPU on `stream`, behind what the caller's stream has been asked for."""
        if self.stream is None:
            return self._run(batch)
        self.stream.wait_stream(torch.cuda.current_stream(self._network.device))
        with torch.cuda.stream(self.stream):
            return self._run(batch)

    def wait(self) -> None:
        """Have the caller's stream wait for the last batch."""
        if self.stream is not None:
            torch.cuda.current_stream(self._network.device).wait_stream(self.stream)

    def _run(self, batch: DirectionBatch) -> DirectionResult:
        if self._batch is None:
            self._batch = _own(batch)
        for kept, new in zip(_tensors(self._batch), _tensors(batch), strict=True):
            kept.copy_(new)
        if self.stream is None:
            return self._computed(self._batch)
        if self._graph is None or self._captured is None:
            self._computed(self._batch)  # outside a graph first: cuBLAS and Triton set themselves up
            self.stream.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            # Captured on the stream that it runs on: cuBLAS has a workspace for each stream, and two graphs that run side by
            # side with the same one would spoil each other's sums.
            with torch.cuda.graph(self._graph, stream=self.stream, capture_error_mode="thread_local"):
                self._captured = self._computed(self._batch)
        self._graph.replay()
        return self._captured

    def _computed(self, batch: DirectionBatch) -> DirectionResult:
        return direction_step(self._network, self._direction, self._rows, batch, self._scale)


def _own(batch: DirectionBatch) -> DirectionBatch:
    """The batch with copies of its tensors."""
    negatives = batch.negatives
    if negatives is not None:
        negatives = replace(negatives, classes=negatives.classes.clone(), tries=negatives.tries.clone())
    state = [(h.clone(), c.clone()) for h, c in batch.state]
    return DirectionBatch(batch.read.detach().clone(), state, batch.targets.clone(), batch.weights.clone(), negatives)


def _tensors(batch: DirectionBatch) -> list[Tensor]:
    """All that differs from batch to batch, in one order."""
    tensors = [batch.read.detach(), batch.targets, batch.weights, *(part for layer in batch.state for part in layer)]
    return tensors if batch.negatives is None else [*tensors, batch.negatives.classes, batch.negatives.tries]
