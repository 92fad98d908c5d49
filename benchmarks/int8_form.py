"""What states lose in 8 bits, by how they are scaled: error, cosine, bytes a token, and what taggers see of it.

    python -m benchmarks.int8_form [--model NAME|FOLDER] [--eval-dir FOLDER] [--seeds 3] [--work out/int8]
    python -m benchmarks.int8_form --precisions float32 bfloat16 int8 [...]

"int8, row and state" is what a store of `--dtype int8` holds (docs/store-format.md, Eight bits); the others are what it was
chosen from: states in float32 of UD-EWT's development and test set and of CoNLL-2000's test set, rounded by each scheme,
compared with themselves, and probed for parts of speech (trained on the development set) and chunks (trained on the first half
of the test set). With ``--precisions`` states are kept as they are, in float32: taggers see what the engine's precision costs.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import elmo_store
from benchmarks.data import data_folder
from benchmarks.probe import embedding_input
from elmo_store.format import layout
from elmo_store.format.int8 import quantized
from elmo_store.mixing.scalar_mix import ScalarMix
from pipeline.main import main as elmo_store_command
from pipeline.probing.features import features
from pipeline.probing.labels import LabelledSentence, read_token_labels
from pipeline.probing.tagger import TaggerSettings, probe_tagging
from pipeline.probing.vectors import TokenStates, load_states

Array = npt.NDArray[Any]
LEVELS = 127
FULL = 512  # projection of the published models, for bytes a token
SHARD_ROWS = 16_384


def rounded(states: Array, axes: tuple[int, ...], *, half: bool = False) -> Array:
    """``states`` [rows, states, channels] as int8 times a scale that is shared along ``axes``; ``half``: the scale is float16."""
    scale = np.abs(states).max(axis=axes, keepdims=True) / LEVELS
    scale = scale.astype(np.float16 if half else np.float32).astype(np.float32)
    if half:  # a scale that was rounded down must still reach the largest value
        scale = np.where(scale * LEVELS < np.abs(states).max(axis=axes, keepdims=True), np.nextafter(scale, np.inf), scale)
    scale = np.where(scale == 0, 1, scale)
    found: Array = np.clip(np.rint(states / scale), -LEVELS, LEVELS) * scale
    return found.astype(np.float32)


def by_shard(states: Array, axes: tuple[int, ...]) -> Array:
    """`rounded`, with scales of their own for each shard."""
    return np.concatenate([rounded(states[i : i + SHARD_ROWS], axes) for i in range(0, len(states), SHARD_ROWS)])


# name: (what it makes of states, bytes of a token at full size, of S states)
SCHEMES: dict[str, tuple[Callable[[Array], Array], Callable[[int], float]]] = {
    "float16": (lambda x: x.astype(np.float16).astype(np.float32), lambda s: 2 * s * FULL),
    "int8, row and state": (lambda x: quantized(x).floats(), lambda s: layout.row_bytes("int8", s, FULL)),
    "int8, row and state, float16": (lambda x: rounded(x, (2,), half=True), lambda s: s * (FULL + 2)),
    "int8, row": (lambda x: rounded(x, (1, 2)), lambda s: s * FULL + 4),
    "int8, state and channel": (lambda x: by_shard(x, (0,)), lambda s: s * FULL + 4 * s * FULL / SHARD_ROWS),
    "int8, state": (lambda x: by_shard(x, (0, 2)), lambda s: s * FULL + 4 * s / SHARD_ROWS),
}


def cosines(a: Array, b: Array) -> Array:
    """Of the last axis, in float64."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    found: Array = (x * y).sum(-1) / np.where(lengths == 0, 1, lengths)
    return found


def losses(states: Array, names: Sequence[str]) -> None:
    """Print what each scheme does to each state, and to the even mix."""
    mix = ScalarMix(n_layers=(len(names) + 1) // 2)
    print(f"\n{len(states):,} tokens: RMS of the error / RMS of the state, mean cosine, least cosine of all tokens\n")
    print("| scheme | bytes a token, full size | " + " | ".join(names) + " | even mix |")
    print("|---|---|" + "---|" * (len(names) + 1))
    for scheme, (apply, n_bytes) in SCHEMES.items():
        found = apply(states)
        cells = []
        pairs = [(found[:, i], states[:, i]) for i in range(len(names))] + [(mix(states=found), mix(states=states))]
        for made, wanted in pairs:
            error = np.sqrt(np.square(made - wanted).mean() / np.square(wanted).mean())
            cosine = cosines(made, wanted)
            cells.append(f"{100 * error:.2f}%, {cosine.mean():.6f}, {cosine.min():.5f}")
        print(f"| {scheme} | {n_bytes(len(names)):,.0f} | " + " | ".join(cells) + " |", flush=True)


Side = tuple[TokenStates, Sequence[LabelledSentence]]


def probes(name: str, metric: Any, train: Side, test: Side, seeds: int, schemes: Mapping[str, Callable[[Array], Array]]) -> None:
    """Print what a linear tagger scores on states of each scheme, in training and test; mean and range over seeds."""
    chosen = [feature for label, feature in features(train[0].n_layers).items() if label in ("layer 1", "mix")]
    settings = TaggerSettings(epochs=8, device="cpu")
    for scheme, apply in schemes.items():
        sides = [(replace(vectors, states=apply(vectors.states)), labels) for vectors, labels in (train, test)]
        runs = probe_tagging(sides[0], sides[1], metric=metric, seeds=range(seeds), settings=settings, features=chosen)
        cells = []
        for feature in chosen:
            scores = [100 * run.score for run in runs if run.feature == feature.name]
            cells.append(f"{np.mean(scores):.2f} ({min(scores):.2f} … {max(scores):.2f})")
        print(f"| {name} | {scheme} | " + " | ".join(cells) + " |", flush=True)


def side(file: Path, column: str, args: argparse.Namespace, precision: str = "float32") -> Side:
    """States in float32 and labels of an annotated file."""
    place = args.work / f"{file.parent.name}-{file.name.split('.')[0]}{'' if precision == 'float32' else '-' + precision}"
    command = ["embed", str(embedding_input(file, args.work)), "--output", str(place), "--dtype", "float32", "--quiet"]
    command += ["--precision", precision]
    command += ["--model", args.model] if args.model else []
    with redirect_stdout(sys.stderr):
        if code := elmo_store_command(command):
            raise SystemExit(code)
    return load_states(elmo_store.open(place)), read_token_labels(str(file), column)


def part(whole: Side, first: int, stop: int) -> Side:
    """Sentences ``first … stop`` of a side."""
    vectors, labels = whole
    lo, hi = int(vectors.offsets[first]), int(vectors.offsets[stop])
    cut = replace(
        vectors, states=vectors.states[lo:hi], offsets=vectors.offsets[first : stop + 1] - lo, names=vectors.names[first:stop]
    )
    return cut, labels[first:stop]


def main() -> None:
    """Embed, compare, probe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="as elmo-store embed (default: the packaged one)")
    parser.add_argument("--eval-dir", type=Path, default=data_folder() / "eval", help="annotated sets (docs/development/data.md)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each tagger")
    parser.add_argument("--precisions", nargs="+", help="engine's precisions to compare, instead of schemes of storing")
    parser.add_argument("--work", type=Path, default=Path("out/int8"), help="stores; complete ones are used again")
    args = parser.parse_args()
    torch.set_num_threads(1)
    ewt = args.eval_dir / "ud_english_ewt"
    for precision in args.precisions or ["float32"]:
        dev, test = (side(ewt / f"en_ewt-ud-{one}.conllu.xz", "upos", args, precision) for one in ("dev", "test"))
        chunks = side(args.eval_dir / "conll2000" / "test.tsv.xz", "3", args, precision)
        schemes = {scheme: apply for scheme, (apply, _) in SCHEMES.items()}
        if args.precisions:
            schemes = {f"computed in {precision}": lambda states: states}
        else:
            losses(test[0].states, elmo_store.open(args.work / "ud_english_ewt-en_ewt-ud-test").states)
        if precision == (args.precisions or ["float32"])[0]:
            print("\n| task | scheme | layer 1 | learned mix |\n|---|---|---|---|")
        probes("UPOS, accuracy", "accuracy", dev, test, args.seeds, schemes)
        half, n = len(chunks[1]) // 2, len(chunks[1])
        probes("chunks, F1", "span-f1", part(chunks, 0, half), part(chunks, half, n), args.seeds, schemes)


if __name__ == "__main__":
    main()
