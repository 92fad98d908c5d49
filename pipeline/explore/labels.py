"""Groups of a word's occurrences by their labels, which are the values of a field that the store keeps."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]
Labels = Sequence[str | None]  # of occurrences, None without one
MOST_GROUPS = 9  # of labels: there is a colour for each; unlabelled occurrences are one more


def grouped(labels: Labels, most: int = MOST_GROUPS) -> dict[str, Any]:
    """A group of each label, of at most ``most`` of them the last for all other labels; one more without a label.

    ``groups`` are their names, those of most occurrences first, ``group`` has each occurrence's, ``others`` and ``unlabelled``
    are the groups of other labels and of none, None where there are none.
    """
    commonest = [label for label, _ in Counter(sorted(label for label in labels if label is not None)).most_common()]
    rest = len(commonest) - most + 1 if len(commonest) > most else 0
    names = [*commonest[: most - 1], f"{rest} others"] if rest else commonest
    unlabelled = len(names) if None in labels else None
    place: dict[str | None, int] = {label: min(i, most - 1) for i, label in enumerate(commonest)}
    return {
        "groups": names if unlabelled is None else [*names, "unlabelled"],
        "group": [place.get(label, len(names)) for label in labels],
        "others": most - 1 if rest else None,
        "unlabelled": unlabelled,
    }


def labelled(labels: Labels) -> tuple[Int, Int]:
    """Which occurrences have a label [m], and a number for each one's [m]; all labels count, not the groups."""
    rows = np.array([i for i, label in enumerate(labels) if label is not None], np.int64)
    return rows, np.unique([str(labels[i]) for i in rows], return_inverse=True)[1].astype(np.int64)
