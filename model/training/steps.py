"""The two parts of a training step, word vectors and directions, forward and backward; on a GPU as CUDA graphs.

A step of the recurrence is less work for a GPU than its launches are for the host, and there are hundreds of them: captured
once, a batch is one launch a direction (`python -m benchmarks.train --device cuda`).

A batch has some 1,700 different words of any length. For graphs, which compute one shape only, their number and the longest
one's length are rounded up, and each pair of these has graphs of its own. The least recently used give way, so that a GPU's
memory does not fill with the graphs of shapes that came once.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from model.characters import PADDING_ID
from model.training import softmax
from model.training.network import Network, sum_by_index

WORDS = 256  # their number is rounded up to a multiple of it
SHAPES = 16  # whose graphs are kept: a run's usual batches have fewer
WINDOWS = (16, 24, 32, 46)  # of a word, rounded up to one of these; more of a word that has more: all

State = list[tuple[Tensor, Tensor]]  # layer → (h [B, p], c [B, d])


class PlainWords:
    """What the directions read, [2, T, B, p], and the gradients of the character CNN's parameters."""

    def __init__(self, network: Network) -> None:
        """The network's parameters must be changed in place."""
        self._network = network
        self._parameters = {name: value for name, value in network.parameters.items() if not name.startswith("lstm.")}

    def forward(self, characters: Tensor, inputs: Tensor) -> Tensor:
        """Characters int16 [n, 50], on the CPU, and inputs int64 [2, T, B], places among these words → [2, T, B, p]."""
        x = self._network.word_vectors(characters.to(self._network.device))  # [n, p]
        self._read = F.embedding(inputs, x)
        return self._read.detach()

    def backward(self, d_read: Tensor) -> dict[str, Tensor]:
        """The gradient of what `forward` returned last → that of each parameter."""
        return dict(zip(self._parameters, self._gradients(self._read, d_read), strict=True))

    def _gradients(self, read: Tensor, d_read: Tensor) -> list[Tensor]:
        # Fused optimisers read gradients as if they lay as their parameters do.
        return [part.contiguous() for part in torch.autograd.grad(read, list(self._parameters.values()), d_read)]


@dataclass(frozen=True, eq=False)
class _Graphs:
    """One shape's buffers and graphs."""

    characters: Tensor
    inputs: Tensor
    d_read: Tensor
    read: Tensor
    gradients: list[Tensor]
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph


class GraphedWords(PlainWords):
    """The same by graphs. What the methods return is overwritten by the next batch."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._stream = torch.cuda.Stream(network.device)  # for capturing only
        self._graphs: OrderedDict[tuple[int, int], _Graphs] = OrderedDict()  # by shape, the last used last

    def forward(self, characters: Tensor, inputs: Tensor) -> Tensor:
        """As of `PlainWords`, by the graph of the batch's rounded shape; the first batch of a shape captures it."""
        # By NumPy: PyTorch would wake all of the machine's cores for this, batch after batch.
        n, longest = len(characters), int((characters.numpy() != PADDING_ID).sum(1).max())
        key = -(-n // WORDS) * WORDS, next((windows for windows in WINDOWS if windows > longest), characters.shape[1])
        if key not in self._graphs:
            if len(self._graphs) == SHAPES:
                torch.cuda.synchronize(self._network.device)  # the last batch may still be running one of them
                self._graphs.popitem(last=False)
            self._graphs[key] = self._captured(*key, characters, inputs)
        self._graphs.move_to_end(key)
        self._now = self._graphs[key]
        self._now.characters[:n].copy_(characters)
        self._now.inputs.copy_(inputs)
        self._now.forward.replay()
        return self._now.read

    def backward(self, d_read: Tensor) -> dict[str, Tensor]:
        """As of `PlainWords`, by the graph that belongs to the last `forward`."""
        self._now.d_read.copy_(d_read)
        self._now.backward.replay()
        return dict(zip(self._parameters, self._now.gradients, strict=True))

    def _captured(self, n: int, windows: int, characters: Tensor, inputs: Tensor) -> _Graphs:
        network = self._network
        ids = torch.full((n, characters.shape[1]), PADDING_ID, dtype=characters.dtype, device=network.device)
        inputs, d_read = inputs.clone(), torch.zeros(*inputs.shape, network.options.projection_dim, device=network.device)
        d_read = d_read.to(network.dtype)
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream(network.device))
        with torch.cuda.stream(self._stream):  # outside a graph first: cuBLAS sets itself up
            self._gradients(read_words(network, ids, inputs, windows), d_read)
        self._stream.synchronize()
        with torch.cuda.graph(forward, stream=self._stream, capture_error_mode="thread_local"):
            read = read_words(network, ids, inputs, windows)
        with torch.cuda.graph(backward, pool=forward.pool(), stream=self._stream, capture_error_mode="thread_local"):
            gradients = self._gradients(read, d_read)
        return _Graphs(ids, inputs, d_read, read.detach(), gradients, forward, backward)


def read_words(network: Network, characters: Tensor, inputs: Tensor, windows: int) -> Tensor:
    """What `PlainWords.forward` returns, by operations that a graph can hold and that give the same bytes each time."""
    return _Gather.apply(network.word_vectors(characters, windows), inputs)


class _Gather(torch.autograd.Function):
    """Rows of a table, with the gradient by a product, see `network.sum_by_index`."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, inputs: Tensor) -> Tensor:
        """x [n, p], inputs int64 [...] → [..., p]."""
        ctx.save_for_backward(inputs)
        ctx.n = len(x)  # type: ignore[attr-defined]
        return F.embedding(inputs, x)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        """Gradient [..., p] → that of x."""
        (inputs,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return sum_by_index(gradient.flatten(0, -2), inputs.flatten(), ctx.n), None  # type: ignore[attr-defined]


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


def direction_step(network: Network, direction: str, rows: softmax.SoftmaxRows, batch: DirectionBatch) -> DirectionResult:
    """Forward and backward of "fwd" or "bwd"; nothing is changed."""
    read = batch.read.detach().requires_grad_()
    h, carried = network.direction(direction, read, batch.state)  # [T, B, p]
    flat, targets, weights = h.detach().view(-1, h.shape[2]), batch.targets.flatten(), batch.weights.flatten()
    sampled = softmax.sampled_loss(flat, targets, weights, rows.weight, rows.bias, batch.negatives)
    own = {name: value for name, value in network.parameters.items() if name.startswith(f"lstm.{direction}")}
    upstream = (sampled.dh / weights.sum()).view_as(h)
    d_read, *gradients = torch.autograd.grad(h, [read, *own.values()], upstream)
    # Fused optimisers read gradients as if they lay as their parameters do.
    return DirectionResult(d_read, {name: part.contiguous() for name, part in zip(own, gradients, strict=True)}, carried, sampled)


class GraphedDirection:
    """`direction_step` over buffers that stay where they are, captured at the first batch; off a GPU the same without a graph.

    What it returns is overwritten by the next batch. The parameters and the softmax must be changed in place.
    """

    def __init__(self, network: Network, direction: str, rows: softmax.SoftmaxRows) -> None:
        self._device, self._compute = network.device, partial(direction_step, network, direction, rows)
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
            self._batch = _own(batch)
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
            with torch.cuda.graph(self._graph, stream=self.stream, capture_error_mode="thread_local"):
                self._captured = self._compute(self._batch)
        self._graph.replay()
        return self._captured


def _own(batch: DirectionBatch) -> DirectionBatch:
    negatives = replace(batch.negatives, classes=batch.negatives.classes.clone(), tries=batch.negatives.tries.clone())
    state = [(h.clone(), c.clone()) for h, c in batch.state]
    return DirectionBatch(batch.read.detach().clone(), state, batch.targets.clone(), batch.weights.clone(), negatives)


def _tensors(batch: DirectionBatch) -> list[Tensor]:
    """All that differs from batch to batch, in one order."""
    state = (part for layer in batch.state for part in layer)
    return [batch.read.detach(), batch.targets, batch.weights, *state, batch.negatives.classes, batch.negatives.tries]
