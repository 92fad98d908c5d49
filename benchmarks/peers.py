"""AllenNLP's biLM beside this engine: ``python -m benchmarks.peers [small full] [--allennlp WHEEL]``.

For each shape: random weights, and a store of one text (float32, every sentence from zeros). Each program computes the text
slice by slice in this process. Printed: the largest difference of its layers from the store's; tokens a second and a second of
CPU (medians of slices, the first not counted); the latter's share of ours. Both have the same number of threads.

elmo-store   the engine in float32, a slice a call
AllenNLP     the `_ElmoBiLm` of its wheel (pip download --no-deps allennlp==0.9.0), named by --allennlp or ELMO_STORE_ALLENNLP. It
             is given batches of sentences in the text's order, and its state, which it carries on, is set to zero before each
"""

import os
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import elmo_store
from benchmarks.shared.support import Table, machine, options_of, run_measured, working_folder
from benchmarks.shared.texts import SHAPES, Sentences, running_text, take, write_lines
from elmo_store.mixing.scalar_mix import layers_of_states
from model.engine.loaded import LoadedModel
from model.files.registry import random_weights
from tests.store.allennlp_elmo import original

SLICES, TOKENS, BATCH = (
    4,
    1500,
    32,
)  # of the text; of a slice; sentences that AllenNLP is given at once
Layers = npt.NDArray[np.float32]  # [L+1, n, 2p] of a sentence of n tokens; layer 0 is [x; x]
Embed = Callable[[Sentences], list[Layers]]  # of a slice of sentences, each from zeros


def engine(model: Path) -> Embed:
    """This engine, without a job."""
    loaded = LoadedModel(str(model), "zero", device="cpu", threads=torch.get_num_threads())
    return lambda sentences: [
        layers_of_states(rows).transpose(1, 0, 2) for rows in loaded.embed(sentences, "float32")
    ]


def allennlp(model: Path, wheel: Path) -> Embed:
    """AllenNLP's biLM."""
    module: Any = original(wheel)
    bilm = module._ElmoBiLm(str(model / "options.json"), str(model / "weights.hdf5")).eval()
    word_ids = module.ELMoCharacterMapper().convert_word_to_char_ids

    @torch.no_grad()
    def batch(sentences: Sentences) -> list[Layers]:
        ids = torch.zeros(len(sentences), max(map(len, sentences)), 50, dtype=torch.long)
        for i, tokens in enumerate(sentences):
            ids[i, : len(tokens)] = torch.tensor([word_ids(word) for word in tokens])
        bilm._elmo_lstm.reset_states()
        layers = torch.stack(bilm(ids)["activations"]).numpy()  # [L+1, B, longest + 2, 2p]
        return [layers[:, i, 1 : 1 + len(tokens)] for i, tokens in enumerate(sentences)]

    return lambda sentences: [
        one for i in range(0, len(sentences), BATCH) for one in batch(sentences[i : i + BATCH])
    ]


def difference(store: elmo_store.Store, first: int, layers: list[Layers]) -> float:
    """The largest difference of a slice's layers from the store's, where it begins at ``first``. ValueError: other shapes."""
    largest = 0.0
    for i, theirs in enumerate(layers, first):
        ours = store.sentence(i).layers().transpose(1, 0, 2)  # [L+1, n, 2p]
        if ours.shape != theirs.shape:
            raise ValueError(f"sentence {i} is {theirs.shape}, in the store {ours.shape}")
        largest = max(largest, float(np.abs(ours - theirs).max()))
    return largest


def measure(
    shape: str, slices: list[Sentences], folder: Path, wheel: Path | None
) -> Iterator[tuple[str, float, float, float]]:
    """Make model and store, have each program compute the slices; without a wheel ours alone.

    Of each its name, its largest difference from the store, and its tokens a second and a second of CPU.
    """
    n_tokens, first = (
        [sum(map(len, part)) for part in slices],
        np.cumsum([0, *map(len, slices)]).tolist(),
    )
    model = folder / "model"
    random_weights(SHAPES[shape]).save_hdf5(model)
    text = write_lines(folder / "text.txt", chain.from_iterable(slices), sum(n_tokens))
    embed = (
        "embed",
        str(text),
        "--input-format",
        "lines",
        "--output",
        str(folder / "store"),
        "--quiet",
        "--dtype",
        "float32",
    )
    run_measured(*embed, "--model", str(model), "--start-state", "zero")
    store = elmo_store.open(folder / "store")
    programs = {"elmo-store": engine(model)} | (
        {"AllenNLP 0.9.0": allennlp(model, wheel)} if wheel else {}
    )
    for name, program in programs.items():
        rates, largest = [], 0.0
        for start, n, sentences in zip(first, n_tokens, slices, strict=False):
            began = np.array([time.perf_counter(), time.process_time()])
            layers = program(sentences)
            rates.append(n / (np.array([time.perf_counter(), time.process_time()]) - began))
            largest = max(largest, difference(store, start, layers))
        wall, cpu = np.median(rates[1:], axis=0).tolist()
        yield name, largest, wall, cpu


def main() -> None:
    """Print a table for each shape."""
    parser = options_of(__doc__, ("small", "full"))
    parser.add_argument(
        "--allennlp", metavar="WHEEL", default=os.environ.get("ELMO_STORE_ALLENNLP", "")
    )
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: the cores"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(machine())
    print(
        f"{SLICES} slices of {TOKENS:,} tokens; threads: {options.threads}; AllenNLP in batches of {BATCH} sentences"
    )
    slices = [take(text, TOKENS) for text in repeat(running_text(), SLICES)]
    for shape in options.tables:
        table = Table(shape, "random weights", "difference", "tokens/s", "tokens/CPU s", "of ours")
        with working_folder() as folder:
            results = list(
                measure(shape, slices, folder, Path(options.allennlp) if options.allennlp else None)
            )
        for name, largest, wall, cpu in results:
            table.row(name, f"{largest:.1e}", wall, cpu, f"{cpu / results[0][-1]:.0%}")


if __name__ == "__main__":
    main()
