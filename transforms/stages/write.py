"""One shard to the store: encode, one put an object, then the marker.

The marker comes last: whatever happens before it, the shard counts as not done, and doing it again overwrites the same objects.
"""

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from elmo_store.format.int8 import Array, Int8Rows
from elmo_store.format.manifest import Manifest
from elmo_store.format.markers import STAMPS, ShardMarker, joined_stamps, put_marked, write_marker
from elmo_store.forms import shards as forms
from elmo_store.storage.root import Root
from transforms.runtime.job_root import run_of
from transforms.stages.shard_text import ShardText

# Of the numbers in a marker's stats, those that are no sum over shards.
NOT_SUMMED = frozenset({"finished", "call_began", "call_tokens"})


def write_shard(
    root: Root, manifest: Manifest, text: ShardText, states: Array | Int8Rows, plan: str, stats: Mapping[str, Any]
) -> ShardMarker:
    """Write ``states`` [n_rows, 2L+1, p] of one shard in every form of the store (see `forms.encode_shard`), and its marker.

    Idempotent: the same states give the same bytes under the same names. ``plan``: the id of the plan that the shard follows
    from. Seconds of encoding and putting, when it was done (Unix seconds), the worker process (host:pid), its run and the
    stamps of the objects are added to ``stats``.
    """
    began = time.perf_counter()
    task = text.task
    records, stamps = put_marked(root, forms.encode_shard(manifest, task.shard, states, text.tokens, text.sentence, text.index))
    timed: dict[str, float | str] = {
        "seconds_writing": time.perf_counter() - began,
        "finished": time.time(),
        "worker": f"{socket.gethostname()}:{os.getpid()}",
        "run": run_of(root),
        STAMPS: joined_stamps(stamps),
    }
    marker = ShardMarker(task.shard, task.first_row, task.n_rows, tuple(records), plan, {**stats, **timed})
    write_marker(root, marker)
    return marker
