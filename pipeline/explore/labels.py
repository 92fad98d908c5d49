"""Groups of a word's occurrences by their labels, which are the values of a field that the store keeps."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]
MOST_GROUPS = 9  # of labels: there is a colour for each; unlabelled occurrences are one more


@dataclass(frozen=True)
class Grouping:
    """Occurrences by their labels.

    Attributes:
        labels: [n] each one's, None without. names: of the groups, those of most occurrences first. group: [n] each one's.
        others: the group of all labels that have none of their own; unlabelled: that of occurrences without a label. None where
            there are none.
    """

    labels: Sequence[str | None]
    names: Sequence[str]
    group: Int
    others: int | None
    unlabelled: int | None

    def labelled(self) -> tuple[Int, Int]:
        """Which occurrences have a label [m], and a number for each one's [m]; all labels count, not the groups."""
        rows = np.array([i for i, label in enumerate(self.labels) if label is not None], np.int64)
        return rows, np.unique([str(self.labels[i]) for i in rows], return_inverse=True)[1].astype(np.int64)


def grouped(labels: Sequence[str | None], most: int = MOST_GROUPS) -> Grouping:
    """A group of each label, of at most ``most`` of them the last for all other labels; one more without a label."""
    commonest = [label for label, _ in Counter(sorted(label for label in labels if label is not None)).most_common()]
    rest = len(commonest) - most + 1 if len(commonest) > most else 0
    names = [*commonest[: most - 1], f"{rest} others"] if rest else commonest
    others = most - 1 if rest else None
    place: dict[str | None, int] = {label: min(i, most - 1) for i, label in enumerate(commonest)}
    place[None] = len(names)
    unlabelled = len(names) if None in labels else None
    names = names if unlabelled is None else [*names, "unlabelled"]
    return Grouping(labels, names, np.array([place[label] for label in labels], np.int64), others, unlabelled)
