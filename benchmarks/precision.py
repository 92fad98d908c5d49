"""`python -m benchmarks.precision`: how far bfloat16 (and tf32, on a GPU) is from float32, state by state.

Real text through the same engine in two precisions; float32 itself is tested to stay within 1e-5 of a float64 reference.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.engine import HELD_OUT, SHAPES, made_up_text, read_text, say, take
from model.engine.embedder import Embedder, EngineSettings, SentenceRows
from model.files.registry import load_model, random_weights
from model.start_state import StartState


def state_names(n_states: int) -> list[str]:
    """x, fwd1, bwd1, …"""
    return ["x", *(f"{direction}{j}" for j in range(1, (n_states + 1) // 2) for direction in ("fwd", "bwd"))]


def compare(exact: npt.NDArray[np.float64], rough: npt.NDArray[np.float64]) -> str:
    """One line of the table for one state [rows, p]."""
    error = np.abs(rough - exact)
    norms = np.linalg.norm(exact, axis=1) * np.linalg.norm(rough, axis=1)
    cosine = (exact * rough).sum(axis=1) / norms
    relative = np.linalg.norm(rough - exact) / np.linalg.norm(exact)
    return f"{error.max():10.2e} {error.mean():10.2e} {relative:10.2e} {cosine.mean():12.6f} {cosine.min():12.6f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--model", help="name, folder or URL of a model (default: random weights of --shape)")
    add("--shape", choices=SHAPES, default="full")
    add(
        "--text",
        type=Path,
        nargs="+",
        help="files of one tokenised sentence a line, plain or .xz (default: see docs/development/data.md)",
    )
    add("--tokens", type=int, default=4096)
    add("--precision", nargs="+", default=["bfloat16"])
    add("--device", choices=["auto", "cpu", "cuda"], default="auto")
    args = parser.parse_args()
    paths = args.text or ([HELD_OUT / "wikipedia.txt.xz"] if HELD_OUT.is_dir() else [])
    sentences = take(read_text(paths) if paths else made_up_text(), args.tokens)
    weights = load_model(args.model)[1] if args.model else random_weights(SHAPES[args.shape])
    start = StartState.zero(weights.options)
    requests = [SentenceRows(s, 0, len(s)) for s in sentences]

    def states(precision: str) -> npt.NDArray[np.float64]:
        settings = EngineSettings(precision=precision, device=args.device)  # type: ignore[arg-type]
        return Embedder(weights, start, settings).embed(requests, dtype="float32").astype(np.float64)

    exact = states("float32")
    say(f"{sum(map(len, sentences)):,} tokens of {args.model or 'random weights, shape ' + args.shape}")
    for precision in args.precision:
        rough = states(precision)
        say(f"{precision:8s} {'max error':>10s} {'mean error':>10s} {'relative':>10s} {'mean cosine':>12s} {'min cosine':>12s}")
        for k, name in enumerate(state_names(exact.shape[1])):
            say(f"{name:8s} {compare(exact[:, k], rough[:, k])}")


if __name__ == "__main__":
    main()
