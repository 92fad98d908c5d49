"""Embed some sentences of a store again and compare: does its model give its vectors?

A sentence's states depend on the model, the start state, the precision and the sentence alone, so that a sample can be computed
without the rest. On the same hardware and library versions the bytes are the same; elsewhere last bits differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from elmo_store.format.layout import state_names
from elmo_store.format.numbers import Int8Rows, quantized
from elmo_store.reading.sentence import Batch
from elmo_store.store import Store
from model.engine.embedder import Embedder
from model.engine.products import int8_problem
from model.engine.settings import EngineSettings
from model.errors import ModelError
from model.files.registry import load_model, local_spec
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.jobs.model_loading import start_state_of

# Largest difference that other hardware explains, by the precision that the states were computed in. Wrong sentences, layers or
# weights differ by far more.
TOLERANCE = {"float32": 1e-4, "tf32": 2e-2, "bfloat16": 1e-1, "int8": 4e-1}
# What storing numbers so adds, relative to the largest of a vector: of int8 half a step, and what float32 adds to it.
ROUNDING = {"float32": 0.0, "float16": 2.0**-10, "int8": 0.501 / 127}


@dataclass(frozen=True)
class Recomputed:
    n_sentences: int  # that were computed again
    n_equal: int  # of them, those whose bytes are the same
    largest: float  # absolute difference of two numbers
    faults: Sequence[
        str
    ]  # a line for each sentence that differs by more than other hardware explains


def recompute(store: Store, n_sentences: int, *, model: str | None = None) -> Recomputed:
    """Compute ``n_sentences`` random sentences of ``store`` that have tokens again, the same ones every time.

    ``model``: where the model is, by default one of this machine that has the store's name for it. CommandError for
    a mixed store, or if the model is not the store's.
    """
    manifest = store.manifest
    if manifest.kind != "states":
        raise CommandError(
            Exit.BAD_USAGE,
            f"{store.url} is a mixed store: verify the store that it was mixed from with --recompute",
        )
    weights = _weights(store, model)
    first_store = store._view.opened_stores()[0].store
    start = start_state_of(first_store.root)
    precision = manifest.precision if manifest.precision in TOLERANCE else "float32"
    cell = (
        "torch" if first_store.manifest.job.get("cell") == "torch" else "auto"
    )  # the C one is not everywhere
    here = (
        "float32" if precision == "int8" and int8_problem() is not None else precision
    )  # not every CPU multiplies so
    settings = EngineSettings(precision=cast(Any, here), device="cpu", cell=cast(Any, cell))
    chosen = _sample(store, n_sentences)
    batch = store.read_sentences(chosen, raw=store._view.is_int8)
    sentences = [sentence.tokens for sentence in batch.sentences]
    dtype: Literal["float16", "float32"] = "float16" if manifest.dtype == "float16" else "float32"
    states = Embedder(weights, start, settings).embed(
        sentences, boundaries=manifest.boundaries, dtype=dtype
    )  # [rows, 2L+1, p]
    names = state_names(weights.options.n_layers)
    wanted = states[:, [names.index(name) for name in store.states]]
    return _compare(store, batch, wanted, TOLERANCE[precision])


def _weights(store: Store, model: str | None) -> Any:
    where = model or store.manifest.model.name
    try:
        _, weights = load_model(model or local_spec(where))
    except OSError as error:
        raise CommandError(Exit.BAD_LOCATION, str(error)) from error
    except ModelError as error:
        raise CommandError(
            Exit.BAD_USAGE,
            f"the model {where} can't be loaded ({error}): say where it is with --model",
        ) from error
    if weights.fingerprint != store.manifest.model.fingerprint:
        raise CommandError(
            Exit.BAD_USAGE,
            f"the model {where} has the fingerprint {weights.fingerprint}, the store's was {store.manifest.model.fingerprint}: "
            "say where the store's own model is with --model",
        )
    return weights


def _sample(store: Store, n_sentences: int) -> list[int]:
    """Numbers of random sentences that have rows, in order; fewer where the store has fewer."""
    random = np.random.default_rng(0)
    wanted = min(n_sentences, len(store))
    chosen = {int(n) for n in random.choice(len(store), wanted, replace=False)} if wanted else set()
    spans = store._view.spans(sorted(chosen))
    return [n for n, (first, stop) in zip(sorted(chosen), spans, strict=True) if stop > first]


def _numbers(batch: Batch, rows: slice, wanted: Any) -> tuple[Any, bool]:
    """What is stored, in float32, and whether those are the very bytes that ``wanted`` would be stored as."""
    if batch.scale is None:
        return batch.states[rows].astype(np.float32), np.array_equal(batch.states[rows], wanted)
    stored, computed = Int8Rows(batch.states[rows], batch.scale[rows]), quantized(wanted)
    return stored.floats(), np.array_equal(stored.values, computed.values) and np.array_equal(
        stored.scale, computed.scale
    )


def _compare(store: Store, batch: Batch, wanted: Any, tolerance: float) -> Recomputed:
    largest, n_equal = 0.0, 0
    faults = []
    stored = str(
        store.manifest.job.get("rounded") or store.manifest.dtype
    ).split()  # a converted store was rounded before
    rounding = sum(ROUNDING[dtype] for dtype in stored)
    for i, sentence in enumerate(batch.sentences):
        rows = slice(int(batch.offsets[i]), int(batch.offsets[i + 1]))
        computed = wanted[rows].astype(np.float32)  # [n, states, channels]
        numbers, same = _numbers(batch, rows, wanted[rows])
        if same:
            n_equal += 1
            continue
        difference = np.abs(numbers - computed)
        largest = max(largest, float(difference.max()))
        allowed = (
            tolerance + np.abs(computed).max(axis=-1, keepdims=True) * rounding
        )  # [n, states, 1]
        if not (difference <= allowed).all():
            worst = np.unravel_index(int(np.argmax(difference - allowed)), difference.shape)
            faults.append(
                f"{store.url}: sentence {sentence.index} differs by {difference[worst]:g} from what its model gives "
                f"(other hardware explains {np.broadcast_to(allowed, difference.shape)[worst]:g})"
            )
    return Recomputed(len(batch.sentences), n_equal, largest, faults)
