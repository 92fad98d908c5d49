"""What the page asks for, as plain functions of a store: JSON in, JSON out."""

import re
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from elmo_store.embedded import ComputedSentences, loaded_model, tokenised
from elmo_store.figures.gather import BLOCK_ROWS, sample_vectors
from elmo_store.figures.vectors import Float, Int, layer_names, layers_of
from elmo_store.format.manifest import Manifest
from elmo_store.reading.sentence import Sentence
from elmo_store.store import Store
from pipeline.explore.labels import Labels, grouping_fields, labelled, values_at
from pipeline.explore.neighbours import RowSample
from pipeline.explore.scores import FOLDS, REPEATS, Suggestion, suggestion
from pipeline.explore.search import find
from pipeline.explore.senses import word_map

SAMPLE_ROWS = 200_000
CONTEXT = 6  # tokens shown on each side of a neighbour
OCCURRENCES = 1500  # of a word, that its map shows
HITS = 30
OWN_KEPT, OWN_CHARACTERS = 16, 2000
NEIGHBOURS = 8
MIX = "the mix"


class ExplorerService:
    """One store being looked at. What makes no sense is a ValueError, LookupError or StoreError, whose text is for the page.

    The sample is read in the background: until it is there, questions about it say so.
    `wait` at the end: an interpreter that ends under a thread that reads may abort.
    """

    def __init__(self, store: Store, model: str | None = None) -> None:
        self._store, self._model = store, model
        self._kind = store.manifest.kind
        self._sample: RowSample | None = None
        self._problem = ""
        self._own: dict[str, Sentence] = {}  # the newest last
        self._fields = grouping_fields(store)
        self._labels: tuple[tuple[str, str], Labels] = (
            ("", ""),
            (),
        )  # of the word and field asked for last
        self._names = layer_names(store.states, self._kind)
        self._loading = threading.Thread(target=self._load, name="sample", daemon=True)
        self._loading.start()

    def _load(self) -> None:
        try:
            self._sample = RowSample(
                sample_vectors(self._store._view, SAMPLE_ROWS // BLOCK_ROWS), self._kind
            )
        except Exception as error:  # shown on the page, which goes on without neighbours
            self._problem = f"the sample can't be read: {error}"

    def wait(self) -> None:
        """Until the sample is read, or could not be."""
        self._loading.join()

    def about(self) -> dict[str, Any]:
        manifest = self._store.manifest
        return {
            "url": self._store.url,
            "kind": self._kind,
            "model": manifest.model.name,
            "sentences": manifest.sizes.sentences,
            "tokens": manifest.sizes.tokens,
            "rows": self._store.n_rows,
            "layers": self._names,
            "fields": self._fields,
            "code": self._opening(),
            "sample": None if self._sample is None else len(self._sample),
            "reading": self._loading.is_alive(),
            "problem": self._problem,
        }

    def search(self, asked: str, offset: int = 0) -> dict[str, Any]:
        """Sentences by number (``#12``), by id (``id:NAME``), by words, or without any all in order, but for blank ones."""
        asked = asked.strip()
        total = self._store.manifest.sizes.sentences
        if not asked:
            sentences = [
                self._store.sentence(number)
                for number in range(max(0, offset), min(offset + HITS, total))
            ]
        elif re.fullmatch("#[0-9][0-9,]*", asked):
            sentences = [self._store.sentence(int(asked[1:].replace(",", "")))]
        elif asked.startswith("id:"):
            sentences = [self._store.sentence(id=asked[3:])]
        else:
            hits = find(self._store, " ".join(asked.split()), max(0, offset), HITS + 1)
            return {"hits": hits[:HITS], "more": len(hits) > HITS}
        hits = [
            {"number": s.index, "id": s.id, "tokens": s.tokens}
            for s in sentences
            if s.tokens or asked
        ]
        return {"hits": hits, "more": not asked and offset + HITS < total}

    def sentence(self, number: int) -> dict[str, Any]:
        """A sentence: tokens, where it came from, the norm of each token in each layer, and the code that reads it."""
        sentence = self._store.sentence(number)
        return {
            "number": sentence.index,
            "id": sentence.id,
            "source": sentence.source,
            "position": sentence.position,
            "tokens": sentence.tokens,
            "fields": {
                name: str(value) for name, value in sentence.fields.items() if value is not None
            },
            "first_row": self._store._view.inner_span(sentence.span)[0],
            "norms": self._norms(sentence.read(boundaries=False)),
            "code": self._code(sentence),
        }

    def embed(self, text: str) -> dict[str, Any]:
        """A sentence of the user's: as `sentence`, with a key by which its tokens can be asked about."""
        manifest = self._store.manifest
        own = embed_own(text, manifest, self._model)
        key = f"own-{abs(hash(own.tokens)):x}"
        self._own.pop(key, None)
        self._own[key] = own  # the newest last
        if len(self._own) > OWN_KEPT:
            del self._own[next(iter(self._own))]
        code = (
            "import elmo_store\n\n"
            f"[sentence] = elmo_store.embed([{list(own.tokens)!r}], {self._model or manifest.model.name!r}, "
            f"dtype={str(own.read().dtype)!r}, precision={manifest.precision!r}, start_state={manifest.start_state.kind!r})\n"
            "states = sentence.read()"
        )
        return {"own": key, "tokens": own.tokens, "norms": self._norms(own.read()), "code": code}

    def neighbours(
        self, token: str, s: Sequence[float], by: str = "", *, layers: bool = True
    ) -> dict[str, Any]:
        """The nearest occurrences to a token: of each layer by itself, and of the mix with these weights if there are any.

        ``token``: a row's number, or KEY:POSITION in an own sentence. Of layer 0, where a word is one vector, the nearest words.
        ``by``: a field whose value stands with each.
        """
        self._check_field(by)
        row, query = self._query(token)
        sample = self._ready()
        answer: dict[str, Any] = {"layers": [], "mix": None, "of": len(sample), "norm": None}
        if layers:
            for layer, name in enumerate(self._names):
                types = layer == 0 and self._kind == "states"
                found = sample.nearest(query, self._alone(layer), NEIGHBOURS, row, types=types)
                answer["layers"].append({"name": name, "found": self._shown(*found, by)})
        if s and self._kind == "states":
            weights = self._weights(s)
            answer["mix"] = self._shown(*sample.nearest(query, weights, NEIGHBOURS, row), by)
            answer["norm"] = float(np.linalg.norm(np.asarray(weights, np.float32) @ query))
        return answer

    def word(
        self, word: str, s: Sequence[float], by: str = "", *, layers: bool = True
    ) -> dict[str, Any]:
        """A word's occurrences in the sample: a map of them by the mix with these weights, and one by each layer.

        At most `OCCURRENCES` of them, drawn at random, in clusters or ``by`` a field. Without ``layers`` the mix's map
        alone, without the occurrences' text and labels.
        """
        sample, indices, found = self._occurrences(word)
        wanted = {MIX: self._weights(s)} if self._kind == "states" else {}
        if layers:
            wanted |= {name: self._alone(layer) for layer, name in enumerate(self._names)}
        labels = self._labels_of(word, by, sample, indices) if by else None
        maps = [
            {"name": name, "s": weights, **word_map(sample.mixed(indices, weights), labels)}
            for name, weights in wanted.items()
        ]
        points = self._points(indices, id="id") if layers else []
        shown = labels if layers else None
        return {
            "word": word,
            "found": found,
            "of": len(sample),
            "points": points,
            "labels": shown,
            "maps": maps,
        }

    def suggest(self, word: str, by: str) -> dict[str, Any]:
        """Return the weights that separate a word's occurrences by a field, and what can be said for them.

        The weights are those of one layer unless a mix is measurably better on held-out occurrences.

        Raises:
            ValueError: there are no weights to suggest, such as where the word has too few labels.
        """
        sample, indices, _ = self._occurrences(word)
        if self._kind != "states":
            raise ValueError("a mixed store can't be mixed again: explore the store of states")
        rows, label = labelled(self._labels_of(word, by, sample, indices))
        layers = [
            sample.mixed(indices[rows], self._alone(layer)) for layer in range(len(self._names))
        ]
        try:
            found = suggestion(layers, label)
        except ValueError as error:
            raise ValueError(f"no mix can be suggested for {word!r} by {by!r}: {error}") from error
        return {"s": found.s, "said": self._reasons(found, len(label))}

    def _reasons(self, found: Suggestion, n_labelled: int) -> str:
        """Return what a suggestion rests on, in one paragraph."""
        weights = " ".join(f"{share:.2f}" for share in found.s)
        layer = self._names[found.layer]
        if found.is_mix:
            verdict = (
                f"s {weights}: 1-NN accuracy {found.mix_accuracy:.3f} on held-out occurrences, "
                f"{found.gain:.3f} ± {found.error:.3f} more than the best layer alone ({found.layer_accuracy:.3f})."
            )
        else:
            verdict = (
                f"s {weights}: {layer} alone, 1-NN accuracy {found.layer_accuracy:.3f} on held-out occurrences. "
                f"No mix is measurably better: choosing one gains {found.gain:+.3f} ± {found.error:.3f}."
            )
        chance = f"Always answering the commonest label scores {found.majority:.3f}."
        method = (
            f"Measured on {n_labelled:,} labelled occurrences by {FOLDS}-fold cross-validation, repeated {REPEATS} times; "
            "± is one standard error."
        )
        return f"{verdict} {chance} {method}"

    def _occurrences(self, word: str) -> tuple[RowSample, Int, int]:
        """The sample, where a word stands in it, and how often it does."""
        sample = self._ready()
        indices, found = sample.occurrences(word, OCCURRENCES)
        if not found:
            raise ValueError(f"{word!r} does not occur in the sample of {len(sample):,} tokens")
        return sample, indices, found

    def _labels_of(self, word: str, by: str, sample: RowSample, indices: Int) -> Labels:
        self._check_field(by)
        known = self._labels
        if known[0] != (word, by):
            tokens = sample.text.position[indices] - int(self._store.boundaries)
            self._labels = known = (
                (word, by),
                values_at(self._store, by, sample.text.sentence[indices], tokens),
            )
        return known[1]

    def _check_field(self, by: str) -> None:
        if by and by not in self._fields:
            raise ValueError(
                f"no groups can be made by {by!r}: there is {', '.join(self._fields) or 'no field'}"
            )

    def _alone(self, layer: int) -> list[float]:
        return [float(k == layer) for k in range(len(self._names))]

    def _ready(self) -> RowSample:
        if self._sample is None:
            raise ValueError(self._problem or "the sample is still being read; in a moment")
        return self._sample

    def _query(self, token: str) -> tuple[int | None, Float]:
        key, colon, position = token.partition(":")
        try:
            if colon:
                return None, layers_of(self._own[key].read()[int(position)][None], self._kind)[0]
            row = int(key)
            if self._sample is not None and (index := self._sample.index_of.get(row)) is not None:
                return row, self._sample.layers[index]
            return row, layers_of(self._store.read(rows=slice(row, row + 1)), self._kind)[0]
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            raise ValueError(f"there is no token {token[:40]}") from error

    def _weights(self, s: Sequence[float]) -> list[float]:
        total = float(sum(s))  # infinite if two of them are near the greatest float
        is_share = all(np.isfinite(share) and share >= 0 for share in s)
        if len(s) != len(self._names) or not is_share or not 0 < total < np.inf:
            raise ValueError(
                f"s needs {len(self._names)} numbers of 0 or more, with a finite sum above 0"
            )
        return [float(share) / total for share in s]

    def _shown(self, indices: Int, cosines: Float, by: str) -> list[dict[str, Any]]:
        points = self._points(indices, **({"label": by} if by else {}))
        return [
            {"cosine": cosine, **point}
            for cosine, point in zip(cosines.tolist(), points, strict=True)
        ]

    def _points(self, indices: Int, **columns: str) -> list[dict[str, Any]]:
        """Tokens of the sample in their context; ``columns``: of the store, by the names that their values get."""
        text, points = self._ready().text, list[dict[str, Any]]()
        for index in indices.tolist():
            before, word, after = text.context(index, CONTEXT)
            row, number, position = (
                int(column[index]) for column in (text.row, text.sentence, text.position)
            )
            token = position - int(self._store.boundaries)
            points.append(
                {
                    "row": row,
                    "sentence": number,
                    "token": token,
                    "before": before,
                    "word": word,
                    "after": after,
                }
            )
        sentences, tokens = ([point[name] for point in points] for name in ("sentence", "token"))
        for name, column in columns.items():
            for point, value in zip(
                points, values_at(self._store, column, sentences, tokens), strict=True
            ):
                point[name] = value
        return points

    def _norms(self, states: Any) -> list[list[float]]:
        """[tokens][layers]."""
        norms: list[list[float]] = np.linalg.norm(layers_of(states, self._kind), axis=2).tolist()
        return norms

    def _opening(self) -> str:
        """Code that opens this store, from wherever it is run."""
        root, version = self._store._view.root, ""
        assert root is not None  # a store that was opened
        if self._store.version is not None:
            version = f", version={self._store.version.number}"
        where = root.path() if root.is_local else root.url()
        return f"import elmo_store\n\nstore = elmo_store.open({where!r}{version})"

    def _code(self, sentence: Sentence) -> str:
        if self._kind == "mix":
            return f"{self._opening()}\nvectors = store.sentence({sentence.index})[{self._store.states[0]!r}]"
        return (
            f"{self._opening()}\nstates = store.sentence({sentence.index}).read()\n"
            "vectors = elmo_store.ScalarMix(s=S, gamma=GAMMA)(states=states)"
        )


def embed_own(text: str, manifest: Manifest, model: str | None = None) -> Sentence:
    """The states of ``text``, by the store's own model. ValueError if it is too long, or the model is not to be had here.

    ``model``: where the user says that the store's model is. What the store names is loaded only if it is on this machine.
    """
    if manifest.kind != "states":
        raise ValueError("a mixed store holds no states to compare with")
    if len(text) > OWN_CHARACTERS:
        raise ValueError(
            f"{len(text):,} characters are too many for this box: at most {OWN_CHARACTERS:,}"
        )
    try:
        from model.files.registry import local_spec

        where = model or local_spec(manifest.model.name)
        embedder = loaded_model(
            where, precision=manifest.precision, start_state=manifest.start_state.kind, device="cpu"
        )
    except (
        Exception
    ) as error:  # not to be found, not readable: whatever it is, the rest of the page goes on
        raise ValueError(
            f"the store's model {manifest.model.name} can't be loaded here ({error}): "
            "start `elmo-store explore` with --model and the name, folder or URL of it"
        ) from error
    if embedder.fingerprint != manifest.model.fingerprint:
        raise ValueError(
            f"the model {model or manifest.model.name} of this machine is not the one that made the store"
        )
    tokens = tokenised(text, "ptb")
    if not tokens:
        raise ValueError("there are no words in it")
    [rows] = embedder.embed([tokens], "float16" if manifest.dtype == "float16" else "float32")
    [sentence] = ComputedSentences([tokens], embedder.states, [rows]).sentences()
    return sentence
