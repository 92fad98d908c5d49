"""A word's occurrences: which group each is of, and where they lie by a layer or a mix."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store.figures.gather import VectorSample
from elmo_store.figures.groups import divided, grouped_fields, values_at
from elmo_store.figures.vectors import Float, unit
from elmo_store.store import Store
from pipeline.explore.errors import BadRequestError
from pipeline.explore.labels import Labels
from pipeline.explore.senses import senses, silhouette

MOST_GROUPS = 5  # there is a colour for each
Groups = tuple[list[str], npt.NDArray[np.int64]]  # names, and the group of each occurrence


class Groupings:
    """What occurrences are grouped by, beside the clusters found: the fields that the store keeps, and labels from a file.

    Attributes:
        names: of them.
    """

    def __init__(self, store: Store, labels: Labels | None) -> None:
        self._store, self._labels = store, labels
        self.names = [field.name for field in grouped_fields(store)] + list(labels.values if labels else ())
        self._last: tuple[tuple[str, str], Groups] = (("", ""), ([], np.empty(0, np.int64)))

    def of(self, name: str, word: str, text: VectorSample, indices: npt.NDArray[np.int64]) -> Groups:
        """The groups of a word's occurrences, which are these rows of the sample; those asked for last are kept."""
        if self._last[0] != (word, name):
            if name not in self.names:
                raise BadRequestError(f"no groups can be made by {name!r}")
            sentence, position = text.sentence[indices].tolist(), text.position[indices].tolist()
            self._last = ((word, name), divided(self._values(name, sentence, position), MOST_GROUPS))
        return self._last[1]

    def _values(self, name: str, sentence: Sequence[int], position: Sequence[int]) -> list[str]:
        if self._labels is not None and name in self._labels.values:
            edge = int(self._store.boundaries)
            return self._labels.at(name, sentence, [at - edge for at in position])
        return values_at(self._store, name, sentence, position)


def word_map(vectors: Float, groups: Groups | None) -> dict[str, Any]:
    """A map of occurrences in the clusters found, or in these groups: then with the silhouette of them, too."""
    found = senses(vectors)
    clusters = int(found.group.max()) + 1
    names, group = groups or ([f"cluster {k + 1}" for k in range(clusters)], found.group)
    of_groups = silhouette(unit(vectors), group) if groups and len(np.unique(group)) > 1 else None
    return {
        **coordinates(found.points),
        "explained": found.explained,
        "clusters": clusters,
        "silhouette": found.silhouette,
        "of_labels": of_groups,
        "groups": names,
        "group": group.tolist(),
    }


def coordinates(plane: npt.NDArray[Any]) -> dict[str, list[float]]:
    """[n, 2] as the page takes it."""
    rounded = np.round(plane.astype(np.float64), 4)
    return {"x": rounded[:, 0].tolist(), "y": rounded[:, 1].tolist()}
