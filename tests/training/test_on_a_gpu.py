"""What training does on a GPU, without one: the same functions off the device, Triton's kernels interpreted and compiled."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.options import DIRECTIONS, BiLMOptions
from model.training import softmax
from model.training.corpus import Corpus, Epoch
from model.training.steps import DirectionBatch, DirectionResult, GraphedDirection, direction_step
from model.training.trainer import Recipe, Trainer


def test_buffers_that_stay_hold_one_batch_after_the_other(
    small_options: BiLMOptions, recipe: Recipe, corpus: Corpus
) -> None:
    trainer = Trainer.fresh(small_options, recipe, corpus, dtype=torch.float32)
    epoch = Epoch(corpus, 0, recipe.lanes, recipe.unroll, recipe.seed)
    for k, name in enumerate(DIRECTIONS):
        kept = GraphedDirection(trainer.network, name, trainer.rows)
        state = trainer.network.zero_state(recipe.lanes)
        for index in range(3):
            prepared = trainer.prepare(epoch.batch(index), index)
            read = torch.randn(*prepared.batch.inputs.shape[1:], small_options.projection_dim)
            targets, weights = (
                torch.from_numpy(part[k])
                for part in (prepared.batch.targets, prepared.batch.weights)
            )
            batch = DirectionBatch(read, state, targets, weights, prepared.negatives)
            want = direction_step(trainer.network, name, trainer.rows, batch)
            got = kept.step(batch)
            kept.wait()
            for mine, theirs in zip(tensors(got), tensors(want), strict=True):
                assert torch.equal(mine, theirs)
            assert all(part.any() for part in tensors(got))
            state = got.state


def tensors(result: DirectionResult) -> list[torch.Tensor]:
    """All of a result."""
    sampled = result.sampled
    rows = [
        sampled.loss,
        sampled.dh,
        sampled.d_negatives,
        sampled.d_negative_bias,
        sampled.d_targets,
        sampled.d_target_bias,
    ]
    return [
        result.d_read,
        *result.gradients.values(),
        *(part for layer in result.state for part in layer),
        *rows,
    ]


def test_gradients_lie_as_their_parameters_do(
    small_options: BiLMOptions, recipe: Recipe, corpus: Corpus
) -> None:
    """A fused optimiser reads them in the order of memory, whatever their strides say."""
    trainer = Trainer.fresh(small_options, recipe, corpus, dtype=torch.float32)
    seen = {}

    def look(*_: Any) -> None:
        for name, value in trainer.network.parameters.items():
            assert value.grad is not None, name
            seen[name] = value.is_contiguous() and value.grad.is_contiguous()

    trainer.optimiser.register_step_pre_hook(look)
    trainer.step(
        trainer.prepare(Epoch(corpus, 0, recipe.lanes, recipe.unroll, recipe.seed).batch(0), 0)
    )
    assert set(seen) == set(trainer.network.parameters)
    assert all(seen.values()), seen


def test_a_draw_is_the_first_distinct_classes_of_its_sequence() -> None:
    for k in (1, 7, 40, 60):
        negatives = softmax.draw(60, k, np.random.default_rng([5, k]))
        assert negatives.classes.tolist() == sorted(set(negatives.classes.tolist()))
        assert len(negatives.classes) == k
        assert negatives.tries >= k
    # All classes there are: the last new one ended it, so that fewer tries would have missed one.
    assert int(softmax.draw(5, 9, np.random.default_rng([1, 1])).classes[-1]) == 4


_COMPARE = """
import torch
from model.training import cell, cell_triton
assert cell_triton.check(torch.device("cpu"))
generator = torch.Generator().manual_seed(3)
lanes, d = 3, 1100  # more than a block
products, bias, c_prev, dm, dc = (torch.randn(s, generator=generator) for s in ((lanes, 4 * d), (4 * d,), *[(lanes, d)] * 3))
found = []
for forward, backward in (
    (cell.cell_forward, cell.cell_backward),
    (cell_triton.cell_forward, cell_triton.cell_backward),
):
    gates, c, m, carried = torch.empty_like(products), torch.empty_like(dc), torch.empty_like(dc), dc.clone()
    forward(products, bias, c_prev, gates, c, m, 1.1)
    activations = gates.clone()
    backward(gates, dm, carried, c_prev, c, 1.1)
    assert (c.abs() == 1.1).any() and (c.abs() < 1.1).any()
    found.append([activations, c, m, gates, carried])
for ours, theirs in zip(*found, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
print("kernels agree")
"""


@pytest.mark.slow
def test_triton_kernels_agree_with_pytorch_in_the_interpreter(
    interpreted: Callable[[str], str],
) -> None:
    assert "kernels agree" in interpreted(_COMPARE)


POINTERS = {
    "_forward_kernel": {
        "products": "bf16",
        "bias": "fp32",
        "c_prev": "fp32",
        "gates": "bf16",
        "c": "fp32",
        "m": "bf16",
    },
    "_backward_kernel": {
        "gates": "bf16",
        "dm": "bf16",
        "dc": "fp32",
        "c_prev": "fp32",
        "c": "fp32",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("name", sorted(POINTERS))
def test_triton_kernels_compile_vectorised_and_without_spills(
    name: str, capability: int, tmp_path: Path
) -> None:
    pytest.importorskip("triton", reason="Triton is not installed; it comes with PyTorch for CUDA")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability
    from triton.compiler import ASTSource

    from model.training import cell_triton

    kernel, pointers = getattr(cell_triton, name), POINTERS[name]
    signature = {argument: f"*{kind}" for argument, kind in pointers.items()} | {
        "d": "i32",
        "clip": "fp32",
        "BLOCK": "constexpr",
    }
    places = [kernel.arg_names.index(argument) for argument in [*pointers, "d"]]
    source = ASTSource(
        kernel,
        signature,
        {"BLOCK": 1024},
        {(place,): [["tt.divisibility", 16]] for place in places},
    )
    options = {"enable_fp_fusion": cell_triton.FP_FUSION}
    ptx = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm[
        "ptx"
    ]
    assert re.search(r"ld\.global\S*?\.v[248]\.\S+", ptx)
    assert re.search(r"st\.global\S*?\.v[248]\.\S+", ptx)
    path = tmp_path / "kernel.ptx"
    path.write_text(ptx)
    command = [
        get_ptxas(capability).path,
        "-v",
        f"--gpu-name={sm_arch_from_capability(capability)}",
        str(path),
    ]
    said = subprocess.run(
        [*command, "-o", str(tmp_path / "kernel.cubin")], capture_output=True, text=True, check=True
    )
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", said.stderr)
    assert spills
    assert set(spills) == {"0"}, said.stderr
