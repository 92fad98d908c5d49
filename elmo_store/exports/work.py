"""What the writer of a format is given: a token's vectors, and a store's sentences in order with them and their text.

Vectors are made row by row, so that they are the same however rows are cut into blocks. Reading, converting and writing overlap:
what is asked for next is made by a thread while the caller writes. Memory does not grow with the store.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa

from elmo_store.errors import StoreError
from elmo_store.exports.formats import POOLED, Settings
from elmo_store.format import layout
from elmo_store.format.numbers import Array
from elmo_store.mixing.scalar_mix import ScalarMix, layers_of_states
from elmo_store.mixing.weights import check_layers
from elmo_store.reading.runs import Int64
from elmo_store.reading.scan import read_ahead
from elmo_store.reading.sentence import Batch, read_batches
from elmo_store.reading.sentences import SentenceRecord
from elmo_store.reading.view import View

BLOCK_BYTES = (
    1 << 22
)  # of vectors that are made at a time: they should not leave the processor's caches twice
MOST_SENTENCES = 1024


@dataclass(frozen=True)
class Vectors:
    """K vectors a token."""

    names: tuple[str, ...]  # of the K
    width: int  # numbers of each
    reads: tuple[str, ...]  # names of the states that are read for them
    make: Callable[[Array], Array]  # from states [n, len(reads), channels] to vectors [n, K, width]

    @property
    def single(self) -> bool:
        """Whether there is one (a mix, one layer), so that a file's axis of layers falls away."""
        return len(self.names) == 1


def vectors_of(store: View, settings: Settings) -> Vectors:
    """The vectors that ``settings`` ask for. StoreError for those that store or format can't have."""
    mixed, form = store.manifest.kind == "mix", settings.form
    vectors = _of_mixes(store, settings) if mixed else _of_states(store, settings)
    if not vectors.single and (form.one_vector or (form.prefix and mixed)):
        raise StoreError(
            f"{settings.format} has one vector per token, {store.url} has {', '.join(vectors.names)}: "
            "take one of them with `elmo-store convert --states NAME`"
        )
    if settings.format == "datasets" and (
        clash := {"id", "tokens", *store.fields}.intersection(vectors.names)
    ):
        raise StoreError(
            f"{store.url}: the vectors {min(clash)!r} would have the name of another column of datasets: "
            "give the weight set, or the field when it is embedded, another name"
        )
    return vectors


def _of_mixes(store: View, settings: Settings) -> Vectors:
    if settings.format == "tfhub":
        raise StoreError(
            f"tfhub's names are of all layers, {store.url} holds mixes: export the store that it came from"
        )
    if settings.weights:
        raise StoreError(
            f"{store.url} is mixed already: leave `weights` out, or take the store that it came from"
        )
    return Vectors(store.states, store.channels, store.states, lambda states: states)


def _of_states(store: View, settings: Settings) -> Vectors:
    states, width = store.states, 2 * store.channels
    if settings.layers == "top":
        return _top_layer(store)
    try:
        n_layers = layout.n_layers(states)
    except ValueError as error:
        raise StoreError(str(error)) from error
    if settings.format == POOLED:
        sets = settings.weights
        if not sets or isinstance(sets, str):
            raise StoreError(
                f"{store.url} has layers: pass the `weights` of the mix that is to be pooled"
            )
        check_layers(sets, n_layers)
        mixes = [
            ScalarMix.of(weights, "token" if settings.layer_norm else "none") for weights in sets
        ]
        names = tuple(weights.name for weights in sets)
        return Vectors(
            names, width, states, lambda rows: np.stack([mix(states=rows) for mix in mixes], axis=1)
        )
    if settings.layers == "average":
        return Vectors(("average",), width, states, _average)
    return Vectors(
        tuple(f"layer_{layer}" for layer in range(n_layers + 1)), width, states, layers_of_states
    )


def _top_layer(store: View) -> Vectors:
    """Layer L of the model alone, which a store may have without the others (`embed --states`)."""
    last = store.manifest.model.options["lstm"]["n_layers"]
    reads = (f"fwd{last}", f"bwd{last}")
    missing = [name for name in reads if name not in store.states]
    if missing:
        raise StoreError(
            f"of the states {', '.join(store.states)} no top layer can be made: embed the states {','.join(reads)}, or all"
        )
    width = 2 * store.channels
    return Vectors(
        (f"layer_{last}",), width, reads, lambda states: states.reshape(len(states), 1, width)
    )


def _average(states: Array) -> Array:
    """The plain mean of the layers, [n, 1, width] in float32, as ``numpy.average(layers, axis=0)``."""
    mean: Array = layers_of_states(states).mean(axis=1, dtype=np.float32, keepdims=True)
    return mean


@dataclass(frozen=True)
class Block:
    """Some sentences."""

    first: int  # number of the first
    offsets: Int64  # rows of sentence i are ``offsets[i] … offsets[i + 1]`` [n + 1]
    records: list[SentenceRecord]  # their text, ids and places; empty unless asked for
    values: Array  # their vectors [K, rows, width]
    fields: pa.Table | None = (
        None  # what the sentences keep of their records, where it was asked for
    )

    def __iter__(self) -> Iterator[tuple[int, Array]]:
        """Number of each sentence and its part of ``values``, a view."""
        for index, (a, b) in enumerate(pairwise(self.offsets.tolist())):
            yield self.first + index, self.values[:, a:b]


@dataclass(frozen=True)
class Work:
    """One export."""

    store: View  # what is exported
    vectors: Vectors  # of each token
    settings: Settings  # with their defaults
    output: str = ""  # name of the file, or how the files' names begin; of a folder without meaning
    on_progress: Callable[[int], None] = lambda tokens: (
        None
    )  # called with the tokens done since it was called last
    left_out: Counter[str] = field(
        default_factory=Counter
    )  # why a sentence is not in the output → how many

    @property
    def row_bytes(self) -> int:
        """Of a token's vectors."""
        return len(self.vectors.names) * self.vectors.width * np.dtype(self.settings.dtype).itemsize

    @cached_property
    def files(self) -> dict[str, range]:
        """Names of the files, in the order in which they are written, and the sentences of each.

        A file of a folder has whole sentences, about ``file_bytes`` of vectors; of an empty store there is one without any.
        """
        store, form = self.store, self.settings.form
        if (
            form.prefix
        ):  # a layer's number, or -1 (as ELMoForManyLangs) for one vector that is not a layer
            are_layers = self.settings.layers in ("all", "top")
            labels = (
                [name.removeprefix("layer_") for name in self.vectors.names]
                if are_layers
                else ["-1"]
            )
            return {f"{self.output}.ly{label}.hdf5": range(store.n_sentences) for label in labels}
        if not form.folder:
            return {self.output: range(store.n_sentences)}
        rows = max(1, self.settings.file_bytes // max(1, self.row_bytes))
        if self.settings.pool is not None:  # a row of the file is of many
            rows *= max(1, store.n_rows // max(1, store.n_sentences))
        edges = [0]
        while edges[-1] < store.n_sentences:
            row = store.span(edges[-1])[0] + rows
            edge = (
                store.n_sentences
                if row >= store.n_rows
                else max(edges[-1] + 1, store.sentence_at(row))
            )
            edges.append(self._next_document(edge) if self.settings.per == "document" else edge)
        ranges = [range(first, stop) for first, stop in pairwise(edges)] or [range(0)]
        files = {
            form.files.format(number, len(ranges)): sentences
            for number, sentences in enumerate(ranges)
        }
        return files | dict.fromkeys(form.tables, range(0))

    def _next_document(self, sentence: int) -> int:
        """Number of the first sentence from this one on that begins a document, or of all sentences."""
        of_last: tuple[str, str] | None = None
        for first in range(sentence - 1, self.store.n_sentences, MOST_SENTENCES):
            numbers = range(first, min(first + MOST_SENTENCES, self.store.n_sentences))
            table = self.store.table(numbers, ["source", "document"])
            for number, source, document in zip(
                numbers, *(table[name].to_pylist() for name in table.column_names), strict=True
            ):
                if of_last is not None and (source, document) != of_last:
                    return number
                of_last = source, document
        return self.store.n_sentences

    def blocks(
        self, sentences: range, *, text: bool = True, fields: bool = False
    ) -> Iterator[Block]:
        """The sentences in blocks; each is made by a thread while the one before is used."""
        # Converted by few large calls: a thread that makes many small ones waits for the interpreter before each.
        store, vectors = self.store, self.vectors
        dtype = (
            self.settings.dtype if self.settings.pool is None else "float32"
        )  # what is pooled is rounded once, at the end

        def block(batch: Batch) -> Block:
            exact = vectors.make(batch.states).transpose(1, 0, 2)
            with np.errstate(over="ignore"):
                values = exact.astype(dtype, "C")
            if dtype == "float16" and not np.isfinite(values).all() and np.isfinite(exact).all():
                raise StoreError(
                    f"numbers of {store.url} are too large for float16: export them with `dtype='float32'`"
                )
            numbers = range(batch.numbers[0], batch.numbers[-1] + 1)
            records = store.records(numbers) if text else []
            if not text:  # otherwise damage that gives a sentence other rows would go unnoticed
                store.table(numbers, ["n_tokens"])
            kept = store.table(numbers, list(store.fields)) if fields else None
            return Block(numbers.start, batch.offsets, records, values, kept)

        usual = max(1, store.n_rows // max(1, store.n_sentences))
        n = max(1, min(MOST_SENTENCES, BLOCK_BYTES // (self.row_bytes * usual)))
        batches = read_batches(store, sentences, n, vectors.reads, boundaries=False)
        for _, made in read_ahead(block, batches, 1):
            yield made
            self.on_progress(int(made.offsets[-1]))
