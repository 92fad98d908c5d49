"""Which shards of a store are done. May import elmo_store and the standard library."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from elmo_store.errors import ShardCorruptError
from elmo_store.markers import ShardMarker, Verify, marked_shards, object_fault, read_marker
from elmo_store.storage import Root

IO_THREADS = 16


def done_shards(
    root: Root, plan: str, n_shards: int, sizes: Mapping[str, int], verify: Verify = "size"
) -> dict[int, ShardMarker]:
    """Markers of the shards that this very plan wrote and that are as their markers say.

    ``plan``: the id of the plan; a shard of another plan counts as not done. ``sizes``: bytes of the objects that are in the
    store, by one listing. A marker or an object that is missing, cut or changed means "do it again", never an error.
    ``verify``: as in ``elmo_store.markers``.
    """

    def check(shard: int) -> ShardMarker | None:
        try:
            marker = read_marker(root, shard)
        except ShardCorruptError:
            return None
        if marker is None or marker.stats.get("plan") != plan:
            return None
        if any(object_fault(root, record, verify, sizes.get(record.path)) for record in marker.objects):
            return None
        return marker

    shards = [shard for shard in marked_shards(root) if shard < n_shards]
    with ThreadPoolExecutor(IO_THREADS) as pool:
        return {shard: marker for shard, marker in zip(shards, pool.map(check, shards), strict=True) if marker}
