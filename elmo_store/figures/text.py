"""Figures of a corpus's text: pure functions over the tables of its parts."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from elmo_store.format.words import WordLimit

LENGTH_EDGES = (
    0,
    1,
    2,
    4,
    8,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    256,
    1024,
)  # lower edges; the last bin is open
WORDS_KEPT = (
    200_000  # distinct words that are counted; of more, the rarest are forgotten now and then
)


@dataclass(frozen=True)
class TextFigures:
    """Figures of the sentences that were looked at."""

    n_sentences: int
    n_tokens: int
    n_blank: int  # sentences of no tokens
    n_distinct: int  # words, at least
    lengths: npt.NDArray[np.int64]  # sentences in each bin of `LENGTH_EDGES`
    commonest: tuple[tuple[str, int], ...]  # words with their counts, commonest first
    n_cut: int  # tokens longer than the model reads
    n_repeated: int  # sentences that stood before
    n_strange: int  # tokens with U+FFFD, control, private or unassigned characters


def text_figures(
    tables: Iterable[pa.Table], limit: WordLimit, n_commonest: int = 25
) -> TextFigures:
    """The figures of tables with a column ``tokens`` (list of string), one after the other in bounded memory.

    ``limit``: how much of a word the model reads.
    """
    words: Counter[str] = Counter()
    lengths = np.zeros(len(LENGTH_EDGES), np.int64)
    hashes: list[npt.NDArray[np.int64]] = []
    n_sentences = n_tokens = n_blank = n_cut = 0
    for table in tables:
        tokens = table["tokens"].combine_chunks()
        sizes = pc.list_value_length(tokens).to_numpy(zero_copy_only=False).astype(np.int64)
        flat = pc.list_flatten(tokens)
        n_sentences, n_tokens, n_blank = (
            n_sentences + len(sizes),
            n_tokens + len(flat),
            n_blank + int((sizes == 0).sum()),
        )
        lengths += np.bincount(
            np.searchsorted(LENGTH_EDGES, sizes, side="right") - 1, minlength=len(LENGTH_EDGES)
        )
        values, counts = pc.value_counts(flat).flatten()
        counted = dict(zip(values.to_pylist(), counts.to_pylist(), strict=True))
        n_cut += sum(count for word, count in counted.items() if limit.truncates(word))
        words.update(counted)
        if len(words) > 2 * WORDS_KEPT:
            words = Counter(dict(words.most_common(WORDS_KEPT)))
        sentences = pc.cast(tokens.filter(pa.array(sizes > 0)), pa.list_(pa.string()))
        joined = pc.binary_join(sentences, "\x1f").to_pylist()
        hashes.append(np.fromiter(map(hash, joined), np.int64, len(joined)))
    each = np.concatenate(hashes) if hashes else np.zeros(0, np.int64)
    return TextFigures(
        n_sentences=n_sentences,
        n_tokens=n_tokens,
        n_blank=n_blank,
        n_distinct=len(words),
        lengths=lengths,
        commonest=tuple(sorted(words.items(), key=lambda item: (-item[1], item[0]))[:n_commonest]),
        n_cut=n_cut,
        n_repeated=len(each) - len(np.unique(each)),
        n_strange=sum(count for word, count in words.items() if is_strange(word)),
    )


def is_strange(word: str) -> bool:
    """Whether a character of ``word`` is a replacement character, a control, private or unassigned: text that was broken."""
    return any(
        character == "\ufffd" or unicodedata.category(character) in ("Cc", "Co", "Cn", "Cs")
        for character in word
    )
