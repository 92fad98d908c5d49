"""The element-wise half of a training step: PyTorch for any device and dtype, C for bfloat16 on a CPU, Triton for the cell on a
GPU. Imports torch, and Triton where it is wanted.

The C file beside this one is compiled once per machine and kept in the user's cache, where a C compiler is found; without
one the PyTorch forms run, slower and to the same rounding. No other module knows which of them ran. `select` chooses, for
`python -m benchmarks.train --kernels`, which says what each is worth.
"""

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from model.files.locate import cache_folder
from model.training.errors import TrainingError
from model.triton_module import triton_module

logger = logging.getLogger(__name__)
Part = TypeVar("Part")

SOURCE = Path(__file__).with_name("kernels.c")
# No -ffast-math: it changes what NaN and infinity do. These two leave out the error number and the floating-point flags
# alone, which nobody reads here and which would keep loops from becoming vectors.
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC")
WIDE = ("-mprefer-vector-width=512",)  # x86 only; gcc takes half of an AVX-512 register without it
Kind = Literal["c", "torch", "compile"]
SIGNATURES = {  # function → how many pointers, integers and floats it takes, in this order
    "cell_forward": (6, 2, 1),
    "cell_backward": (6, 2, 1),
    "softmax_rows": (7, 2, 0),
    "conv_max": (7, 5, 0),
    "conv_max_backward": (6, 5, 0),
}


def cell_forward(products: Tensor, bias: Tensor, c_prev: Tensor, gates: Tensor, c: Tensor, m: Tensor, clip: float) -> None:
    """One step of a cell.

    Args:
        products: [B, 4d], contiguous.
        bias: [4d] in c's dtype, 1.0 already added to the forget part.
        c_prev: [B, d].
        gates: [B, 4d], written: the activations i, f, g, o.
        c: [B, d], written.
        m: [B, d] in the dtype of gates, written: o · tanh(c).
        clip: bound on |c|.
    """
    library = _library_for(products)
    if library is not None:
        addresses = _addresses(products, bias, c_prev, gates, c, m)
        library.cell_forward(*addresses, *c.shape, ctypes.c_float(clip))
        return
    _form("cell_forward", c.device)(products, bias, c_prev, gates, c, m, clip)


def plain_cell_forward(products: Tensor, bias: Tensor, c_prev: Tensor, gates: Tensor, c: Tensor, m: Tensor, clip: float) -> None:
    """`cell_forward` by PyTorch's operators."""
    i, f, g, o = (products.to(c.dtype) + bias).chunk(4, dim=1)  # [B, d] each
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    clipped = torch.clamp(f * c_prev + i * g, -clip, clip)  # [B, d]
    c.copy_(clipped)
    m.copy_(o * torch.tanh(clipped))
    gates.copy_(torch.cat((i, f, g, o), dim=1))


def cell_backward(gates: Tensor, dm: Tensor, dc: Tensor, c_prev: Tensor, c: Tensor, dbias: Tensor | None, clip: float) -> None:
    """The gradient of one step, in place.

    Args:
        gates: [B, 4d]; in: the activations, out: gradients of the products.
        dm: [B, d], gradient of m.
        dc: [B, d]; in: gradient of c from later steps, out: gradient of c_prev.
        c_prev, c: [B, d].
        dbias: [4d], added to; None where the caller sums what is left in gates, on a GPU.
        clip: bound on |c|; where it holds no gradient passes.
    """
    library = _library_for(gates)
    if library is not None and dbias is not None:
        addresses = _addresses(gates, dm, dc, c_prev, c, dbias)
        library.cell_backward(*addresses, *c.shape, ctypes.c_float(clip))
        return
    _form("cell_backward", c.device)(gates, dm, dc, c_prev, c, dbias, clip)


def plain_cell_backward(
    gates: Tensor, dm: Tensor, dc: Tensor, c_prev: Tensor, c: Tensor, dbias: Tensor | None, clip: float
) -> None:
    """`cell_backward` by PyTorch's operators."""
    i, f, g, o = gates.to(c.dtype).chunk(4, dim=1)  # [B, d] each
    tanh_c, dm = torch.tanh(c), dm.to(c.dtype)
    dv = (dc + dm * o * (1 - tanh_c * tanh_c)) * (c.abs() < clip)
    gradients = torch.cat(
        (
            dv * g * i * (1 - i),
            dv * c_prev * f * (1 - f),
            dv * i * (1 - g * g),
            dm * tanh_c * o * (1 - o),
        ),
        dim=1,
    )  # [B, 4d]
    dc.copy_(dv * f)
    gates.copy_(gradients)
    if dbias is not None:
        dbias += gradients.sum(0)


def softmax_rows(logits: Tensor, bias: Tensor, true_logit: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over shared candidates and each row's own true class, with its gradient.

    Args:
        logits: [n, k], contiguous; in: products, out: weight · p, the gradient.
        bias: [k], and true_logit: [n]; both corrected for sampling already.
        weight: [n], the weight of each row's loss.

    Returns:
        loss [n] = -weight · log p(true), and its gradient by true_logit [n].
    """
    library = _library_for(logits)
    if library is not None:
        loss, gradient = torch.empty_like(true_logit), torch.empty_like(true_logit)
        scratch = torch.empty_like(bias)
        library.softmax_rows(*_addresses(logits, bias, true_logit, weight, loss, gradient, scratch), *logits.shape)
        return loss, gradient
    loss, gradient = _form("softmax_rows", logits.device)(logits, bias, true_logit, weight)
    return loss, gradient


def plain_softmax_rows(logits: Tensor, bias: Tensor, true_logit: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """`softmax_rows` by PyTorch's operators."""
    full = torch.cat((logits.to(bias.dtype) + bias, true_logit[:, None]), dim=1)  # [n, k+1]
    log_p = torch.log_softmax(full, dim=1)
    p = log_p.exp() * weight[:, None]
    logits.copy_(p[:, :-1])
    return -weight * log_p[:, -1], p[:, -1] - weight


def conv_max(table: Tensor, ids: Tensor, used: Tensor, shapes: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Convolutions by look-up with their maximum; C only, see `compiled` and `model.training.network`.

    Args:
        table: float32 [262, S], for each convolution and each place in its window a block of columns.
        ids: int16 [n, length]; used: int64 [n], ids before the padding.
        shapes: (width, count) of each convolution.

    Returns:
        the maxima, float32 [n, F], and the windows that they came from, int16 [n, F].
    """
    library, layout = _library(), torch.tensor(shapes).t().contiguous()  # [2, convolutions]
    assert library is not None
    filters = int(layout[1].sum())
    best, where = table.new_empty(len(ids), filters), ids.new_empty(len(ids), filters)

    def some(rows: slice) -> None:
        arguments = _addresses(table, ids[rows], used[rows], layout[0], layout[1], best[rows], where[rows])
        library.conv_max(*arguments, len(shapes), table.shape[1], filters, *ids[rows].shape)

    _on_all_threads(some, len(ids))
    return best, where


def conv_max_backward(gradient: Tensor, ids: Tensor, where: Tensor, shapes: list[tuple[int, int]], dtable: Tensor) -> None:
    """Add the gradient [n, F] of `conv_max`'s maxima to dtable [262, S]."""
    library, layout = _library(), torch.tensor(shapes).t().contiguous()  # [2, convolutions]
    assert library is not None

    def some(rows: slice) -> Tensor:
        part = torch.zeros_like(dtable)
        arguments = _addresses(gradient[rows], ids[rows], where[rows], layout[0], layout[1], part)
        library.conv_max_backward(*arguments, len(shapes), dtable.shape[1], gradient.shape[1], *ids[rows].shape)
        return part

    for part in _on_all_threads(some, len(ids)):
        dtable += part


def compiled() -> bool:
    """Whether the C forms are at hand, and chosen."""
    return _library() is not None


def select(kind: Kind) -> None:
    """Choose the forms of this process: C, PyTorch's operators one by one, or PyTorch's through `torch.compile`.

    Raises:
        TrainingError: C was asked for and can't be had.
    """
    _chosen.clear()
    if kind != "c":
        _chosen.append(kind)
    elif _compiled_library() is None:
        raise TrainingError("no C kernels here: they need a C compiler (gcc, clang or cc, or $CC); see the warning above")


_chosen: list[Kind] = []  # empty: C where it can be had, else PyTorch


def _form(name: str, device: torch.device) -> Callable[..., Any]:
    plain: Callable[..., Any] = globals()[f"plain_{name}"]
    if _chosen == ["compile"]:
        return _inductor(plain)
    if device.type == "cuda" and not _chosen:
        return getattr(_triton(device), name, plain)
    return plain


@cache
def _triton(device: torch.device) -> ModuleType | None:
    """The cell in Triton, where it compiles for this GPU and computes what PyTorch does."""
    found = triton_module("model.training.cell_triton", device)
    if not isinstance(found, str):
        return found
    logger.warning("training goes on without Triton's kernels (slower): %s", found)
    return None


@cache
def _inductor(plain: Callable[..., Any]) -> Callable[..., Any]:
    compiled_form: Callable[..., Any] = torch.compile(plain, dynamic=False)
    return compiled_form


def _on_all_threads(work: Callable[[slice], Part], rows: int) -> list[Part]:
    """Work on equal parts of so many rows, one on each of PyTorch's threads; the C functions run without Python's lock."""
    threads = torch.get_num_threads()
    size = -(-rows // threads) or 1
    return list(_pool(threads).map(work, [slice(first, first + size) for first in range(0, rows, size)]))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="kernels")


def _addresses(*tensors: Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


def _library_for(tensor: Tensor) -> ctypes.CDLL | None:
    return _library() if tensor.dtype == torch.bfloat16 and tensor.device.type == "cpu" else None


def _library() -> ctypes.CDLL | None:
    return None if _chosen else _compiled_library()


@cache
def _compiled_library() -> ctypes.CDLL | None:
    compiler = next((found for name in (os.environ.get("CC", ""), "gcc", "clang", "cc") if (found := shutil.which(name))), None)
    if compiler is None or not SOURCE.exists():
        return None
    with ExitStack() as stack:
        folder = _own_folder(cache_folder() / "kernels")
        if folder is None:  # no place to keep it: compiled for this process alone
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="elmo-store-kernels-")))
        for flags in ((*FLAGS, *WIDE), FLAGS):
            try:
                return _load(_compile(compiler, flags, folder))
            except (OSError, subprocess.SubprocessError) as error:
                problem = str(getattr(error, "stderr", None) or error)
    logger.warning("training runs without C kernels: %s", problem.strip()[-500:])
    return None


def _own_folder(folder: Path) -> Path | None:
    """The folder, made where it is missing, if only this user can put files into it; else None."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return None
    ours = found.st_uid == os.getuid() and not found.st_mode & 0o022
    return folder if ours and os.access(folder, os.W_OK | os.X_OK) else None


def _compile(compiler: str, flags: tuple[str, ...], folder: Path) -> Path:
    """The library in the folder, compiled unless it is there. OSError or SubprocessError (its stderr says why)."""
    # -march=native makes code for this very processor: its name belongs to the key of the cache.
    key = hashlib.sha256(SOURCE.read_bytes() + " ".join((compiler, *flags, _processor())).encode()).hexdigest()[:16]
    path = folder / f"{key}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / "kernels.so"
            command = [compiler, *flags, "-shared", "-o", str(made), str(SOURCE), "-lm"]
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
            os.replace(made, path)
    return path


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for name, (pointers, integers, floats) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype = None
        function.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_int64] * integers + [ctypes.c_float] * floats
    return library


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("flags")), "")
