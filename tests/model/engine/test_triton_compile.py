"""Every kernel that the engine launches compiles for real GPUs, without one: sm_80, 90 and 100, vectorised, without spills."""

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from model.engine import cuda
from model.engine.cuda import CudaDirection
from model.engine.device import Layout
from model.engine.planning.grid import Limits, plan_direction
from model.files.weights import BiLMWeights
from model.options import BiLMOptions
from model.start_state import StartState
from tests.model.lanes import sequences_of

triton = pytest.importorskip(
    "triton", reason="Triton is not installed; it comes with PyTorch for CUDA"
)

from model.engine import cell_triton  # noqa: E402

TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int32: "*i32"}
FULL = BiLMOptions(3.0, 3.0, True, 512, 4096, 2, "relu", ((1, 32),), 1, 16)
CELL_KERNELS = ("_cell_kernel", "_finish_kernel")
Launch = tuple[str, tuple[tuple[str, Any], ...]]


class Recorder:
    """In place of a kernel: remembers what it is launched with."""

    def __init__(self, kernel: Any, seen: set[Launch]) -> None:
        self.kernel, self.seen = kernel, seen

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **constants: Any) -> None:
            assert constants.pop("enable_fp_fusion") is cell_triton.FP_FUSION
            described: list[tuple[str, Any]] = []
            for name, value in zip(self.kernel.arg_names, args, strict=False):
                if isinstance(value, torch.Tensor):
                    assert value.data_ptr() % 16 == 0, name  # as JIT launches specialise
                    described.append((name, TYPES[value.dtype]))
                elif isinstance(value, int):
                    described.append((name, "i32 of 16" if value % 16 == 0 else "i32"))
                else:
                    described.append((name, "fp32"))
            self.seen.add((self.kernel.__name__, (*described, *constants.items())))

        return launch


@pytest.fixture(scope="module")
def launches() -> set[Launch]:
    """What one window of the full-size model launches, in float32 (or tf32) and bfloat16."""
    seen: set[Launch] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "WINDOW", 1)
        for name in CELL_KERNELS:
            patch.setattr(cell_triton, name, Recorder(getattr(cell_triton, name), seen))
        p, d = FULL.projection_dim, FULL.dim
        shapes = {
            "weight_ih": (4 * d, p),
            "weight_hh": (4 * d, p),
            "bias": (4 * d,),
            "weight_proj": (p, d),
        }
        layer = {name: torch.zeros(shape) for name, shape in shapes.items()}
        weights = cast(
            BiLMWeights, SimpleNamespace(options=FULL, direction=lambda direction, j: layer)
        )
        for dtype in (torch.float32, torch.bfloat16):
            layout = Layout(
                dtype, torch.device("cpu"), lanes=16, window=1, table_rows=0, table_block=16
            )
            direction = CudaDirection(weights, StartState.zero(FULL), 0, layout, cell_triton)
            plan = plan_direction(sequences_of([[0, 1]]), 16, Limits([16], 1, 16))
            direction.run(plan, torch.zeros(2, p), 0, lambda window, outputs: None)
    return seen


def compiled(launch: Launch, capability: int) -> Any:
    """One launch compiled for a GPU of this compute capability."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    name, described = launch
    kernel = getattr(cell_triton, name)
    signature, constants, attributes, options = (
        {},
        {},
        {},
        {"enable_fp_fusion": cell_triton.FP_FUSION},
    )
    for place, (argument, kind) in enumerate(described):
        if argument.isupper():
            signature[argument], constants[argument] = "constexpr", kind
        else:
            signature[argument] = kind.removesuffix(" of 16")
        if str(kind).startswith("*") or str(kind).endswith(" of 16"):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def test_the_engine_launches_what_is_compiled_here(launches: set[Launch]) -> None:
    """A layer's kernels in two precisions: the first layer has the table, the second the skip."""
    assert len(launches) == 2 * 4


def assert_no_spills(ptx: str, capability: int, folder: Path) -> None:
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    path = folder / "kernel.ptx"
    path.write_text(ptx)
    command = [
        get_ptxas(capability).path,
        "-v",
        f"--gpu-name={sm_arch_from_capability(capability)}",
        str(path),
    ]
    said = subprocess.run(
        [*command, "-o", str(folder / "kernel.cubin")], capture_output=True, text=True, check=True
    )
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", said.stderr)
    assert spills, said.stderr
    assert set(spills) == {"0"}, said.stderr


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_kernels_compile_vectorised_and_without_spills(
    launches: set[Launch], capability: int, tmp_path: Path
) -> None:
    for launch in sorted(launches, key=str):
        ptx = compiled(launch, capability).asm["ptx"]
        loads = re.findall(r"ld\.global\S*?\.v[248]\.\S+", ptx)
        stores = re.findall(r"st\.global\S*?\.v[248]\.\S+", ptx)
        assert loads, f"{launch}: no vectorised load for sm_{capability}"
        assert stores, f"{launch}: no vectorised store for sm_{capability}"
        assert_no_spills(ptx, capability, tmp_path)
