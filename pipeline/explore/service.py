"""What the page asks for, as plain functions of a store: JSON in, JSON out."""

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from elmo_store.embedded import EmbeddedSentence
from elmo_store.errors import AmbiguousIdError, SentenceNotFoundError, StoreError
from elmo_store.figures.gather import BLOCK_ROWS, sample_vectors
from elmo_store.figures.groups import divided, grouped_fields, shown, values_at
from elmo_store.figures.vectors import Float, unit
from elmo_store.format import layout
from elmo_store.format.manifest import Manifest
from elmo_store.reading.rows import Sentence
from elmo_store.reading.store import Held, StoreReader
from elmo_store.store import Store
from pipeline.explore.neighbours import Index, Neighbour, Sample, layer_names, open_index, query_layers
from pipeline.explore.senses import senses, silhouette

SAMPLE_ROWS = 200_000
CONTEXT = 6  # tokens shown on each side of a neighbour
OCCURRENCES = 1500  # of a word, that its map shows
FIELD_GROUPS = 5  # that it has a colour for
HITS = 30
OWN_AT_HAND = 16
OWN_CHARACTERS = 2000
MOST_NEIGHBOURS = 50
MIX = "the mix"
Labels = tuple[list[str], npt.NDArray[np.int64]]


class BadRequestError(ValueError):
    """What was asked for makes no sense, or is not there; the message is for the page."""


class OwnSentenceError(BadRequestError):
    """A sentence of the user's can't be embedded as the store's were; says why."""


class TextSearch:
    """Sentences by their words: DuckDB over the parts, where they lie. For several threads, one after the other.

    What is looked for is always a bound parameter, never part of the statement; DuckDB may neither install nor load extensions,
    so that nothing is asked of the network: objects elsewhere are read through the store's own filesystem.
    """

    def __init__(self, store: StoreReader) -> None:
        self._lock = threading.Lock()
        self._connection = duckdb.connect(
            config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false", "threads": "2"}
        )
        self._held = store.held()
        if not store.root.is_local:
            self._connection.register_filesystem(store.root.filesystem)

    def find(self, words: str, offset: int, limit: int) -> list[dict[str, Any]]:
        """Sentences whose tokens, joined by spaces, hold ``words``, whatever the case: as whole words first; in order."""
        hits: list[dict[str, Any]] = []
        for whole in (True, False):
            for held in self._held:
                if len(hits) < offset + limit:
                    hits += self._find_in(held, words, whole, offset + limit - len(hits))
        return hits[offset : offset + limit]

    def _find_in(self, held: Held, words: str, whole: bool, most: int) -> list[dict[str, Any]]:
        if not held.store.manifest.sizes.parts:
            return []
        statement = (
            "SELECT sentence, id, tokens FROM (SELECT *, ' ' || lower(array_to_string(tokens, ' ')) || ' ' AS text "
            "FROM read_parquet($paths) WHERE n_tokens > 0) WHERE contains(text, lower($words)) "
            "AND contains(text, ' ' || lower($words) || ' ') = $whole ORDER BY sentence LIMIT $limit"
        )
        parameters = {"paths": _paths(held.store), "words": words, "whole": whole, "limit": most + held.n_removed}
        with self._lock:
            try:
                rows = self._connection.execute(statement, parameters).fetchall()
            finally:  # DuckDB opens the parts by itself
                held.store.root.confirm()
        own = held.numbers_of(np.array([row[0] for row in rows], np.int64)).tolist()
        return [_hit(number, *row[1:]) for number, row in zip(own, rows, strict=True) if number >= 0]


def _paths(store: StoreReader) -> list[str]:
    """The parts as DuckDB names them."""
    root = store.root
    paths = [root.path(layout.sentences_part(part)) for part in range(store.manifest.sizes.parts)]
    if root.is_local:
        return paths
    protocol = root.filesystem.protocol
    first = protocol if isinstance(protocol, str) else protocol[0]
    return [f"{first}://{path.removeprefix(f'{first}://')}" for path in paths]


def _hit(number: int, sentence_id: str, tokens: Sequence[str]) -> dict[str, Any]:
    return {"number": number, "id": sentence_id, "tokens": tokens}


class Service:
    """One store being looked at. The sample is read in the background: until it is there, questions about it say so."""

    def __init__(self, store: Store, sample_rows: int = SAMPLE_ROWS, model: str | None = None) -> None:
        self._store, self._model = store, model
        self._kind = store.manifest.kind
        self._text = TextSearch(store)
        self._sample: Sample | None = None
        self._index: Index | None = None
        self._problem = self._index_problem = ""
        self._own: OrderedDict[str, EmbeddedSentence] = OrderedDict()  # those asked about last
        self._lock = threading.Lock()
        self._labelled: tuple[tuple[str, str], Labels] = (("", ""), ([], np.empty(0, np.int64)))
        self._threads = ThreadpoolController()
        self._names = layer_names(store.states, self._kind)
        self._n_blocks = max(1, sample_rows // BLOCK_ROWS)
        self._loading = threading.Thread(target=self._load, name="sample", daemon=True)
        self._loading.start()

    def _load(self) -> None:
        try:
            self._sample = Sample(sample_vectors(self._store, self._n_blocks), self._kind)
        except Exception as error:  # shown on the page, which goes on without neighbours
            self._problem = f"the sample can't be read: {_told(error)}"
        try:
            self._index = open_index(self._store)
        except Exception as error:  # shown too
            self._index_problem = f"the index can't be used: {_told(error)}"
        self._threads = ThreadpoolController()  # those of the libraries that came with it, too

    def wait(self) -> None:
        """Until the sample is read, or could not be."""
        self._loading.join()

    def about(self) -> dict[str, Any]:
        """What the page's head says."""
        counts, manifest = self._store.manifest.sizes, self._store.manifest
        mix = manifest.mix
        return {
            "url": self._store.url,
            "kind": self._kind,
            "model": manifest.model.name,
            "sentences": counts.sentences,
            "tokens": counts.tokens,
            "rows": self._store.n_rows,
            "states": list(self._store.states),
            "layers": self._names,
            "fields": [field.name for field in grouped_fields(self._store)],
            "sample": None if self._sample is None else len(self._sample),
            "index": None if self._index is None else len(self._index),
            "reading": self._loading.is_alive(),
            "problem": "; ".join(filter(None, (self._problem, self._index_problem))),
            "sets": [{"name": w.name, "s": list(w.s), "gamma": w.gamma} for w in mix.weight_sets] if mix else [],
        }

    def search(self, asked: str, offset: int = 0) -> dict[str, Any]:
        """Sentences by number (``#12``), by id (``id:NAME``), by words, or without any all in order, but for blank ones."""
        asked = asked.strip()
        total = self._store.manifest.sizes.sentences
        try:
            if not asked:
                sentences = [self._store.sentence(number) for number in range(max(0, offset), min(offset + HITS, total))]
            elif re.fullmatch("#[0-9][0-9,]*", asked):
                sentences = [self._store.sentence(int(asked[1:].replace(",", "")))]
            elif asked.startswith("id:"):
                sentences = [self._store.sentence(id=asked[3:])]
            else:
                hits = self._text.find(" ".join(asked.split()), max(0, offset), HITS + 1)
                return {"hits": hits[:HITS], "more": len(hits) > HITS}
        except (SentenceNotFoundError, AmbiguousIdError, ValueError, IndexError) as error:
            raise BadRequestError(str(error)) from error
        hits = [_hit(s.index, s.id, s.tokens) for s in sentences if s.tokens or asked]
        return {"hits": hits, "more": not asked and offset + HITS < total}

    def sentence(self, number: int) -> dict[str, Any]:
        """A sentence: tokens, where it came from, the norm of each token in each layer, and the code that reads it."""
        try:
            sentence = self._store.sentence(number)
        except (SentenceNotFoundError, IndexError) as error:
            raise BadRequestError(str(error)) from error
        return {
            "number": sentence.index,
            "id": sentence.id,
            "source": sentence.source,
            "position": sentence.position,
            "tokens": sentence.tokens,
            "fields": {name: shown(value) for name, value in sentence.fields.items() if value is not None},
            "first_row": self._store.without_boundaries(sentence.span)[0],
            "norms": self._norms(sentence.read(boundaries=False)),
            "code": self._code(sentence),
        }

    def embed(self, text: str) -> dict[str, Any]:
        """A sentence of the user's: as `sentence`, with a key by which its tokens can be asked about."""
        own = embed_own(text, self._store.manifest, self._model)
        with self._lock:
            key = f"own{len(self._own)}-{abs(hash(own.tokens)):x}"
            self._own[key] = own
            if len(self._own) > OWN_AT_HAND:
                self._own.popitem(last=False)
        model = self._model or self._store.manifest.model.name
        code = f"import elmo_store\n[sentence] = elmo_store.embed([{list(own.tokens)!r}], {model!r})"
        return {"own": key, "tokens": own.tokens, "norms": self._norms(own.rows), "code": f"{code}\nstates = sentence.read()"}

    def neighbours(
        self, token: str, s: Sequence[float] | None, n: int = 8, *, layers: bool = True, approximate: bool = False
    ) -> dict[str, Any]:
        """The nearest occurrences to a token: of each layer by itself, and of the mix with these weights.

        ``token``: a row's number, or KEY:POSITION in an own sentence. Of layer 0, where a word is one vector, the nearest words.
        """
        row, query = self._query(token)
        searcher = self._searcher(approximate)
        n = max(1, min(n, MOST_NEIGHBOURS))
        answer: dict[str, Any] = {"layers": [], "mix": None, "of": len(searcher), "norm": None}
        with self._threads.limit(limits=1):
            if layers:
                for layer, name in enumerate(self._names):
                    types = layer == 0 and self._kind == "states"
                    found = searcher.nearest(query, self._alone(layer), n, row, types=types)
                    answer["layers"].append({"name": name, "found": self._shown(found)})
            if s is not None and self._kind == "states":
                weights = self._weights(s)
                answer["mix"] = self._shown(searcher.nearest(query, weights, n, row))
                answer["norm"] = float(np.linalg.norm(np.asarray(weights, np.float32) @ query))
        return answer

    def word(self, word: str, s: Sequence[float], field: str = "", *, layers: bool = True) -> dict[str, Any]:
        """A word's occurrences in the sample: a map of them by the mix with these weights, and one by each layer.

        At most `OCCURRENCES` of them, drawn at random, in clusters or by a ``field``. Without ``layers`` the mix's map alone,
        without the occurrences' text.
        """
        sample = self._ready()
        indices, found = sample.occurrences(word, OCCURRENCES)
        if not found:
            raise BadRequestError(f"{word!r} does not occur in the sample of {len(sample):,} tokens")
        wanted = {name: self._alone(layer) for layer, name in enumerate(self._names)} if layers else {}
        if self._kind == "states":
            wanted = {MIX: self._weights(s), **wanted}
        labels = self._labels(word, field, indices) if field else None
        with self._threads.limit(limits=1):
            maps = [{"name": name, **_map(sample.mixed(indices, weights), labels)} for name, weights in wanted.items()]
        points = [{"row": int(sample.text.row[i]), **self._context(int(i))} for i in indices] if layers else []
        return {"word": word, "found": found, "of": len(sample), "points": points, "maps": maps}

    def _labels(self, word: str, field: str, indices: npt.NDArray[np.int64]) -> Labels:
        """Names of a field's groups and the group of each of a word's occurrences; those asked for last are kept."""
        if self._labelled[0] != (word, field):
            if field not in {one.name for one in grouped_fields(self._store)}:
                raise BadRequestError(f"no groups can be made by {field!r}")
            text = self._ready().text
            places = text.sentence[indices].tolist(), text.position[indices].tolist()
            self._labelled = ((word, field), divided(values_at(self._store, field, *places), FIELD_GROUPS))
        return self._labelled[1]

    def _alone(self, layer: int) -> list[float]:
        return [float(k == layer) for k in range(len(self._names))]

    def _ready(self) -> Sample:
        if self._sample is None:
            raise BadRequestError(self._problem or "the sample is still being read; in a moment")
        return self._sample

    def _searcher(self, approximate: bool) -> Sample | Index:
        if not approximate:
            return self._ready()
        if self._index is None:
            raise BadRequestError(self._index_problem or f"there is no index: elmo-store index {self._store.url} makes one")
        return self._index

    def _query(self, token: str) -> tuple[int | None, Float]:
        key, colon, position = token.partition(":")
        try:
            if colon:
                with self._lock:
                    self._own.move_to_end(key)
                    own = self._own[key]
                return None, query_layers(own.rows[int(position)], self._kind)
            row = int(key)
            if self._sample is not None and (index := self._sample.index_of(row)) is not None:
                return row, self._sample.layers_at(index)
            return row, query_layers(self._store.read(rows=slice(row, row + 1))[0], self._kind)
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            raise BadRequestError(f"there is no token {token[:40]}") from error

    def _weights(self, s: Sequence[float]) -> list[float]:
        if len(s) != len(self._names) or not all(np.isfinite(share) and share >= 0 for share in s) or sum(s) <= 0:
            raise BadRequestError(f"s needs {len(self._names)} numbers of 0 or more, not all of them 0")
        return [float(share) / float(sum(s)) for share in s]

    def _shown(self, neighbours: Sequence[Neighbour]) -> list[dict[str, Any]]:
        return [{"row": n.row, "cosine": round(n.cosine, 4), **self._context(n.index, n.row)} for n in neighbours]

    def _context(self, index: int, row: int = -1) -> dict[str, Any]:
        """A token among its neighbours in its sentence, and the sentence's number."""
        if index >= 0 and self._sample is not None:
            before, word, after = self._sample.text.context(index, CONTEXT)
            return {"sentence": int(self._sample.text.sentence[index]), "before": before, "word": word, "after": after}
        sentence = self._store.sentence_at(row)
        at = row - self._store.without_boundaries(sentence.span)[0]
        if not 0 <= at < len(sentence.tokens):
            return {"sentence": sentence.index, "before": "", "word": "(boundary)", "after": ""}
        words = sentence.tokens
        before, after = " ".join(words[max(0, at - CONTEXT) : at]), " ".join(words[at + 1 : at + 1 + CONTEXT])
        return {"sentence": sentence.index, "before": before, "word": words[at], "after": after}

    def _norms(self, states: Any) -> list[list[float]]:
        """[tokens][layers]."""
        return [[round(float(norm), 3) for norm in np.linalg.norm(query_layers(row, self._kind), axis=1)] for row in states]

    def _code(self, sentence: Sentence) -> str:
        lines = ["import elmo_store", f"store = elmo_store.open({self._store.url!r})"]
        if self._kind == "mix":
            return "\n".join([*lines, f"vectors = store.sentence({sentence.index})[{self._store.states[0]!r}]"])
        lines += [
            f"states = store.sentence({sentence.index}).read()",
            "vectors = elmo_store.ScalarMix(s=S, gamma=GAMMA)(states=states)",
        ]
        return "\n".join(lines)


def _map(vectors: Float, labels: Labels | None) -> dict[str, Any]:
    """A map of occurrences in the clusters found, or by their labels: then with the silhouette of these, too."""
    found = senses(vectors)
    clusters = int(found.group.max()) + 1
    names, group = labels or ([f"cluster {k + 1}" for k in range(clusters)], found.group)
    of_labels = silhouette(unit(vectors), group) if labels and len(np.unique(group)) > 1 else None
    return {
        "x": np.round(found.points[:, 0], 4).tolist(),
        "y": np.round(found.points[:, 1], 4).tolist(),
        "explained": found.explained,
        "clusters": clusters,
        "silhouette": found.silhouette,
        "of_labels": of_labels,
        "groups": names,
        "group": group.tolist(),
    }


def _told(error: Exception) -> str:
    """An error of ours by what it says, any other with its kind."""
    return str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"


def embed_own(text: str, manifest: Manifest, model: str | None = None) -> EmbeddedSentence:
    """The states of ``text``, by the store's own model. OwnSentenceError if it is too long, or the model is not to be had here.

    ``model``: where the user says that the store's model is. What the store names is loaded only if it is on this machine.
    """
    if manifest.kind != "states":
        raise OwnSentenceError("a mixed store holds no states to compare with")
    if len(text) > OWN_CHARACTERS:
        raise OwnSentenceError(f"{len(text):,} characters are too many for this box: at most {OWN_CHARACTERS:,}")
    try:
        from model.files.registry import local_spec
        from pipeline.jobs import in_memory
    except ModuleNotFoundError as error:
        raise OwnSentenceError(f"this needs {error.name}: pip install '.[embed]' in elmo-store's checkout") from error
    try:
        where = model or local_spec(manifest.model.name)
        embedder = in_memory.embedder(where, manifest.precision, manifest.start_state.kind, "cpu")
    except Exception as error:  # not to be found, not readable: whatever it is, the rest of the page goes on
        raise OwnSentenceError(f"the store's model {manifest.model.name} can't be loaded here: {error}") from error
    if embedder.fingerprint != manifest.model.fingerprint:
        raise OwnSentenceError(f"the model {model or manifest.model.name} of this machine is not the one that made the store")
    tokens = in_memory.tokenised(text, "ptb")
    if not tokens:
        raise OwnSentenceError("there are no words in it")
    return embedder.embed([tokens], "float16" if manifest.dtype == "float16" else "float32")[0]
