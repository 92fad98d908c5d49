"""A word's occurrences in a plane, and in as many clusters as they show: one where they are one cloud.

Everything is of directions (vectors of length 1), whose squared distance is twice the cosine distance. The number of clusters is
the one of the best silhouette, if that is better than that of a normal cloud of the same variances, cut in the same way: k-means
finds "clusters" in any cloud.
"""

import warnings
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from elmo_store.figures.vectors import Float, Int, unit
from pipeline.explore.labels import Labels, grouped, labelled
from pipeline.explore.scores import accuracy

MOST_CLUSTERS = 5
CUT_AXES = 10  # principal axes that k-means looks at
ROUNDS, STARTS = 20, 2  # of k-means
CLOUDS = 3  # that the silhouette is compared with …
MARGIN = 1.15  # … and by how much it must be better
LEAST_SHARE, LEAST_MEMBERS = 0.02, 3  # of a cluster: a few outliers are none
SAME = 1e-5  # variance under which all are one vector


def word_map(vectors: Float, labels: Labels | None) -> dict[str, Any]:
    """A map of occurrences in the clusters found, or by their labels: then the scores are those of the labels, all of them.

    ``explained`` is None where all occurrences are one vector, and so is each score that has no meaning.
    """
    x = _along_principal_axes(unit(vectors))
    variances = (x * x).mean(axis=0)
    total = float(variances.sum())
    explained = [float(share) for share in variances[:2] / total] if total else None
    plane = np.round(x[:, :2].astype(np.float64), 4)
    drawn = {"x": plane[:, 0].tolist(), "y": plane[:, 1].tolist(), "explained": explained}
    if labels is None:
        group, worth = _clusters(x) if explained else (np.zeros(len(x), np.int64), None)
        names = [f"cluster {k + 1}" for k in range(int(group.max()) + 1)]
        found = {"silhouette": worth, "accuracy": None, "groups": names, "group": group.tolist()}
        return drawn | found | {"others": None, "unlabelled": None}
    rows, label = labelled(labels)
    told_apart = len(np.unique(label)) > 1 and explained is not None
    worth = share = None
    if told_apart:
        own = vectors[rows]
        worth, share = silhouette(unit(own), label), accuracy(own @ own.T, label)
    return drawn | grouped(labels) | {"silhouette": worth, "accuracy": share}


def silhouette(vectors: Float, group: Int) -> float:
    """Mean silhouette of two groups or more by squared distance: for rows of length 1 by cosine distance. [n, d], [n]."""
    member = (group[:, None] == np.unique(group)).astype(np.float32)  # [n, k]
    counts, squares = member.sum(axis=0), (vectors * vectors).sum(axis=1)
    sums = (
        squares[:, None] * counts - 2 * vectors @ (member.T @ vectors).T + squares @ member
    )  # of squared distances: [n, k]
    size = member @ counts
    own = (sums * member).sum(axis=1) / np.maximum(size - 1, 1)
    other = np.where(member > 0, np.inf, sums / counts).min(axis=1)
    larger = np.maximum(other, own)  # where it is nothing but rounding, all rows are one
    worth = np.divide(
        other - own, larger, out=np.zeros_like(larger), where=(size > 1) & (larger > SAME)
    )
    return float(worth.mean())


def _along_principal_axes(units: Float) -> Float:
    """The rows less their mean along their principal axes: [n, min(n, d)], at least 2 wide; zeros where all are one vector."""
    if units.var(axis=0).sum() <= SAME:
        return np.zeros((len(units), 2), np.float32)
    x = PCA(svd_solver="covariance_eigh").fit_transform(units)
    padded: Float = np.pad(x, ((0, 0), (0, max(0, 2 - x.shape[1]))))
    return padded


def _clusters(x: Float) -> tuple[Int, float | None]:
    """Each row's cluster [n], 0 the largest, and their silhouette, None for one cluster; the same every time."""
    random = np.random.default_rng(0)
    found = _best_cut(x)
    if found is not None:
        spread = np.sqrt((x * x).mean(axis=0))
        clouds = [
            _best_cut(random.standard_normal(x.shape, np.float32) * spread) for _ in range(CLOUDS)
        ]
        chance = max((cloud[1] for cloud in clouds if cloud is not None), default=0.0)
        if found[1] > MARGIN * chance:
            order = np.argsort(-np.bincount(found[0]), kind="stable")
            return np.argsort(order)[found[0]], found[1]
    return np.zeros(len(x), np.int64), None


def _best_cut(x: Float) -> tuple[Int, float] | None:
    """The cut into 2 … MOST_CLUSTERS with the best silhouette; None if none has clusters of enough members."""
    least = max(LEAST_MEMBERS, LEAST_SHARE * len(x))
    cuts = [_cut(x[:, :CUT_AXES], k) for k in range(2, min(MOST_CLUSTERS, len(x) - 1) + 1)]
    sizes = [np.unique(cut, return_counts=True)[1] for cut in cuts]
    worth = [
        (silhouette(x, cut), i)
        for i, cut in enumerate(cuts)
        if len(sizes[i]) > 1 and sizes[i].min() >= least
    ]
    if not worth:
        return None
    value, i = max(worth)
    return np.unique(cuts[i], return_inverse=True)[1], value


def _cut(x: Float, k: int) -> Int:
    """k-means: the cluster of each row."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer than k different points
        group: Int = KMeans(k, n_init=STARTS, max_iter=ROUNDS, random_state=0).fit_predict(x)
    return group
