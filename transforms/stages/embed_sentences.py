"""For a Beam pipeline of one's own: (id, tokens) → (id, states), without a store.

Vectors of a large corpus are better written by `pipeline.jobs.embed_job`, which sends pointers through the pipeline; here
every element carries its own (a token of the published model: 5 KB in float16).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

import apache_beam as beam
import numpy as np
import numpy.typing as npt
from apache_beam.pvalue import PCollection
from apache_beam.utils.shared import Shared

from model.engine.loaded import LoadedModel

BATCH_TOKENS = 16_384  # of one call of the engine: enough to fill its lanes
Element = tuple[Any, Sequence[str]]
Embedded = tuple[Any, npt.NDArray[np.floating[Any]]]


class EmbedSentences(beam.PTransform[PCollection[Element], PCollection[Embedded]]):
    """Pairs of any id and a sentence's tokens → pairs of the id and its states, [n_tokens, 2L+1, p].

    States are in the order x, fwd1, bwd1, … fwdL, bwdL, in ``dtype``; those of a sentence depend on the model, the start state,
    the engine's settings and the sentence alone, whatever else is in the pipeline. Windows and timestamps stay as they are.

    Args:
        model: what ``--model`` takes: a name, or a folder or URL that every worker reaches. None is the packaged model.
        start_state: "warm", one state frozen with the model, or "zero".
        dtype: "float16" or "float32".
        engine: fields of `EngineSettings`, such as ``{"device": "cuda", "precision": "bfloat16"}``.

    Raises:
        ValueError: a start state or dtype that is none. ModelError, in the workers: the model can't be used.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        start_state: str = "warm",
        dtype: str = "float16",
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if start_state not in ("warm", "zero"):
            raise ValueError(f"start_state={start_state!r} is neither 'warm' nor 'zero'")
        if dtype not in ("float16", "float32"):
            raise ValueError(f"dtype={dtype!r} is neither 'float16' nor 'float32'")
        self._load, self._dtype = partial(LoadedModel, model, start_state, **(engine or {})), dtype

    def expand(self, sentences: PCollection[Element]) -> PCollection[Embedded]:
        return (
            sentences
            | "Batch" >> beam.BatchElements(1, BATCH_TOKENS, element_size_fn=lambda sentence: max(1, len(sentence[1])))
            | "Embed" >> beam.ParDo(_Embed(Shared(), self._load, self._dtype))
        )


class _Embed(beam.DoFn):
    """One model a process, whichever thread asks."""

    def __init__(self, shared: Shared, load: Callable[[], LoadedModel], dtype: str) -> None:
        self._shared, self._load, self._dtype = shared, load, cast(Literal["float16", "float32"], dtype)

    def setup(self) -> None:
        self._model: LoadedModel = self._shared.acquire(self._load)

    def process(self, element: list[Element]) -> Iterator[Embedded]:
        sentences = [tokens for _, tokens in element]
        for (key, _), states in zip(element, self._model.embed(sentences, self._dtype), strict=True):
            yield key, states.copy()  # not a view: the batch would live as long as one of it
