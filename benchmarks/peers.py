"""Other programs of the same model beside this one: ``python -m benchmarks.peers [small full] [--environment PYTHON]``.

For each shape: random weights, and a store of one text (float32, every sentence from zeros). Each program, in a process of its
own, computes the text slice by slice. Printed: the largest difference of its layers from the store's; tokens a second
and a second of CPU (medians of slices, the first not counted); the latter's share of ours. All have the same number of threads.

elmo-store   the engine in float32, a slice a call
AllenNLP     the `_ElmoBiLm` of its wheel (pip download --no-deps allennlp==0.9.0), named by --allennlp or ELMO_STORE_ALLENNLP
simple_elmo  in the environment whose Python --environment names: pip install tensorflow-cpu tf_keras h5py simple_elmo
bilm-tf      in the same environment, with `tensorflow` as `compat.v1`: pip install --no-deps bilm

The peers are given batches of sentences in the text's order. They carry state from batch to batch: it is set to zero before
each. Programs import what they need themselves: this file runs in their environment, too.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.shared.support import Table, machine, options_of, run_measured, working_folder

ROOT = str(Path(__file__).resolve().parents[1])
MODEL = ("model/options.json", "model/weights.hdf5")  # in the folder that programs run in
SLICES, TOKENS, BATCH = 4, 1500, 32  # of the text; of a slice; sentences that a peer is given at once
Sentences = list[list[str]]
Layers = npt.NDArray[np.float32]  # [L+1, n, 2p] of a sentence of n tokens; layer 0 is [x; x]
Embed = Callable[[Sentences], list[Layers]]  # of a batch of sentences, each from zeros


@dataclass(frozen=True)
class Result:
    """One program beside the store."""

    program: str  # with its version; or why it was not run
    difference: float | None = None  # the largest of any number of any layer; None: not run
    rates: tuple[float, float] = (0.0, 0.0)  # tokens a second, and a second of CPU


def engine(threads: int, _: str) -> tuple[str, Embed]:
    """This engine, without a job."""
    import torch

    from elmo_store.mixing.scalar_mix import layers_of_states
    from model.engine.embedder import Embedder, EngineSettings
    from model.files.weights import BiLMWeights
    from model.start_state import StartState

    torch.set_num_threads(threads)
    weights = BiLMWeights.load("model")
    embedder = Embedder(weights, StartState.zero(weights.options), EngineSettings(device="cpu", threads=threads))

    def embed(sentences: Sentences) -> list[Layers]:
        rows = embedder.embed(sentences, dtype="float32")
        return np.split(layers_of_states(rows).transpose(1, 0, 2), np.cumsum([len(s) for s in sentences])[:-1], axis=1)

    return f"elmo-store, PyTorch {torch.__version__}", embed


def allennlp(threads: int, wheel: str) -> tuple[str, Embed]:
    """AllenNLP's biLM on this Python's PyTorch."""
    import torch

    from tests.store.allennlp_elmo import original

    torch.set_num_threads(threads)
    module: Any = original(Path(wheel))
    bilm = module._ElmoBiLm(*MODEL).eval()
    word_ids = module.ELMoCharacterMapper().convert_word_to_char_ids

    @torch.no_grad()
    def embed(sentences: Sentences) -> list[Layers]:
        ids = torch.zeros(len(sentences), max(map(len, sentences)), 50, dtype=torch.long)
        for i, tokens in enumerate(sentences):
            ids[i, : len(tokens)] = torch.tensor([word_ids(word) for word in tokens])
        bilm._elmo_lstm.reset_states()
        layers = torch.stack(bilm(ids)["activations"]).numpy()  # [L+1, B, longest + 2, 2p]
        return [layers[:, i, 1 : 1 + len(tokens)] for i, tokens in enumerate(sentences)]

    return f"AllenNLP 0.9.0, PyTorch {torch.__version__}", embed


def simple_elmo(threads: int, _: str) -> tuple[str, Embed]:
    """Its `ElmoModel`, all layers."""
    import tensorflow as tf
    from simple_elmo import ElmoModel, elmo

    model = ElmoModel()
    model.load("model", max_batch_size=BATCH)
    model.elmo_sentence_input = elmo.weight_layers("input", model.sentence_embeddings_op, use_layers="all")
    session, from_zeros = _session(tf.compat.v1, threads)

    def embed(sentences: Sentences) -> list[Layers]:
        from_zeros()
        layers = model.get_elmo_vectors(sentences, warmup=False, layers="all", session=session)  # [B, L+1, longest, 2p]
        return [layers[i, :, : len(tokens)] for i, tokens in enumerate(sentences)]

    return f"simple_elmo {version('simple_elmo')}, TensorFlow {tf.__version__}", embed


def bilm_tf(threads: int, _: str) -> tuple[str, Embed]:
    """bilm-tf's `BidirectionalLanguageModel`; its `tensorflow` is version 1."""
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    sys.modules["tensorflow"] = tf
    import bilm

    Path("vocabulary.txt").write_text("<S>\n</S>\n<UNK>\n")  # its batcher wants one; words that are not in it are spelt, too
    batcher, ids = bilm.Batcher("vocabulary.txt", 50), tf.placeholder("int32", shape=(None, None, 50))
    wanted = bilm.BidirectionalLanguageModel(*MODEL, max_batch_size=BATCH)(ids)["lm_embeddings"]
    session, from_zeros = _session(tf, threads)

    def embed(sentences: Sentences) -> list[Layers]:
        from_zeros()
        layers = session.run(wanted, {ids: batcher.batch_sentences(sentences)})  # [B, L+1, longest, 2p]
        return [layers[i, :, : len(tokens)] for i, tokens in enumerate(sentences)]

    return f"bilm-tf {version('bilm')}, TensorFlow {tf.__version__}", embed


PROGRAMS = {"elmo-store": engine, "AllenNLP": allennlp, "simple_elmo": simple_elmo, "bilm-tf": bilm_tf}


def _session(tf: Any, threads: int) -> tuple[Any, Callable[[], object]]:
    """A session of the graph made so far, and what sets the LSTMs' states, its only variables without a name, to zero."""
    session = tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads))
    session.run(tf.global_variables_initializer())
    states = tf.variables_initializer([v for v in tf.global_variables() if "/Variable" in v.name])
    return session, lambda: session.run(states)


def serve(name: str, threads: str, wheel: str) -> None:
    """Be a program: save the layers of each slice; say its version, and each slice's seconds by the clock and of CPU, as JSON."""
    answers, sys.stdout = sys.stdout, sys.stderr  # bilm-tf prints
    described, embed = PROGRAMS[name](int(threads), wheel)
    taken = []
    for k, sentences in enumerate(json.loads(Path("slices.json").read_text("utf-8"))):
        size = len(sentences) if name == "elmo-store" else BATCH
        began = np.array([time.perf_counter(), time.process_time()])
        layers = list(chain.from_iterable(embed(sentences[i : i + size]) for i in range(0, len(sentences), size)))
        taken.append((np.array([time.perf_counter(), time.process_time()]) - began).tolist())
        np.savez(f"{name}-{k}.npz", *layers)
    json.dump([described, taken], answers)


def served(folder: Path, python: str, *arguments: str) -> tuple[str, list[list[float]]]:
    """What a process of `serve` says. OSError; RuntimeError with its last words if it fails."""
    environment = os.environ | {"TF_USE_LEGACY_KERAS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ROOT}
    command = [python, "-m", "benchmarks.peers", "serve", *arguments]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace")
    if ended.returncode:
        raise RuntimeError(f"ended with {ended.returncode}: {''.join(ended.stderr.splitlines()[-1:]).strip()}")
    described, taken = json.loads(ended.stdout)
    return described, taken


def difference(store: Any, first: int, layers: Path) -> float:
    """The largest difference of a slice's layers from the store's, where it begins at ``first``. ValueError: other shapes."""
    largest = 0.0
    with np.load(layers) as saved:
        for i, theirs in enumerate(saved.values(), first):
            ours = store.sentence(i).layers().transpose(1, 0, 2)  # [L+1, n, 2p]
            if ours.shape != theirs.shape:
                raise ValueError(f"{layers.name}: sentence {i} is {theirs.shape}, in the store {ours.shape}")
            largest = max(largest, float(np.abs(ours - theirs).max()))
    return largest


def measure(shape: str, slices: list[Sentences], folder: Path, pythons: Mapping[str, str], *settings: str) -> Iterator[Result]:
    """Make model and store, have each program compute the slices, by the Python named ("": not run); ``settings`` of `serve`."""
    import elmo_store
    from benchmarks.shared.texts import SHAPES, write_lines
    from model.files.registry import random_weights

    n_tokens, first = [sum(map(len, part)) for part in slices], np.cumsum([0, *map(len, slices)]).tolist()
    random_weights(SHAPES[shape]).save_hdf5(folder / "model")
    (folder / "slices.json").write_text(json.dumps(slices), "utf-8")
    text = write_lines(folder / "text.txt", chain.from_iterable(slices), sum(n_tokens))
    embed = ("embed", str(text), "--input-format", "lines", "--output", str(folder / "store"), "--quiet", "--dtype", "float32")
    run_measured(*embed, "--model", str(folder / "model"), "--start-state", "zero")
    store = elmo_store.open(folder / "store")
    for name, python in pythons.items():
        try:
            described, taken = served(folder, python, name, *settings)
        except (OSError, RuntimeError) as error:
            yield Result(f"{name}: not run: {error if python else 'see --help'}")
            continue
        wall, cpu = np.median((np.array(n_tokens)[:, None] / np.array(taken))[1:], axis=0).tolist()
        largest = max(difference(store, first[k], folder / f"{name}-{k}.npz") for k in range(len(slices)))
        yield Result(described, largest, (wall, cpu))


def main() -> None:
    """Print a table for each shape."""
    from benchmarks.shared.texts import running_text, take

    parser = options_of(__doc__, ("small", "full"))
    parser.add_argument("--environment", metavar="PYTHON", default="", help="of an environment with TensorFlow and the peers")
    parser.add_argument("--allennlp", metavar="WHEEL", default=os.environ.get("ELMO_STORE_ALLENNLP", ""))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: the cores")
    options = parser.parse_args()
    wheel, there = (path and os.path.abspath(path) for path in (options.allennlp, options.environment))
    pythons = dict(zip(PROGRAMS, (sys.executable, wheel and sys.executable, there, there), strict=True))
    print(machine())
    print(f"{SLICES} slices of {TOKENS:,} tokens; threads: {options.threads}; peers in batches of {BATCH} sentences")
    slices = [take(text, TOKENS) for text in repeat(running_text(), SLICES)]
    for shape in options.tables:
        with working_folder() as folder:
            results = list(measure(shape, slices, folder, pythons, str(options.threads), wheel))
        table = Table(shape, "random weights", "difference", "tokens/s", "tokens/CPU s", "of ours", label_width=45)
        ours = next(result.rates[1] for result in results if result.program.startswith("elmo-store"))
        for r in results:
            numbers = (f"{r.difference or 0:.1e}", *r.rates, f"{r.rates[1] / ours:.0%}")
            table.row(r.program, *([""] * 4 if r.difference is None else numbers))


if __name__ == "__main__":
    serve(*sys.argv[2:]) if sys.argv[1:2] == ["serve"] else main()
