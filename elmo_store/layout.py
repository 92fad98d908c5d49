"""Where everything of a store stands, and which rows a shard holds: pure names and numbers. Imports pyarrow for the schemas.

See docs/store-format.md for the words: row, shard, part, state, layer.
"""

from collections.abc import Sequence

import pyarrow as pa

FORMAT_VERSION = 1
MANIFEST = "elmo_store.json"
START_STATE = "start_state.safetensors"
SENTENCES = "sentences"
REJECTS = "rejects"
STATES = "states"
ZARR = "states.zarr"
SHARDS = "_shards"
WORK = "_work"  # scratch of a running job; gone when the store is complete

BOS_TOKEN, EOS_TOKEN = "<S>", "</S>"  # in `token`, for the rows that --boundaries adds
CHUNK_ROWS = 512  # rows of an inner chunk: the least that is read
SENTENCE_CHUNK = 1_048_576  # entries of a chunk of sentence_start
ROW_GROUP_ROWS = 2048  # rows of a row group of the Parquet form
DTYPES = ("float16", "float32")
FORMS = ("zarr", "parquet")
ROW_COLUMNS = ("row", "token", "sentence", "index_in_sentence")  # of the Parquet form, before the states
COMPRESSIONS = ("none", "zstd", "blosc")

SENTENCES_SCHEMA = pa.schema(
    [
        pa.field("sentence", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("first_row", pa.int64(), nullable=False),
        pa.field("n_tokens", pa.int32(), nullable=False),
        pa.field("tokens", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
    ]
)


def state_names(n_layers: int) -> tuple[str, ...]:
    """``x, fwd1, bwd1, … fwdL, bwdL``: the 2L+1 states of a biLM of L layers, in the order they are stored."""
    if n_layers < 1:
        raise ValueError(f"a biLM of {n_layers} layers has no states: n_layers must be 1 or more")
    return ("x", *(f"{direction}{layer}" for layer in range(1, n_layers + 1) for direction in ("fwd", "bwd")))


def n_layers(states: Sequence[str]) -> int:
    """L of a full set of 2L+1 states; ValueError if ``states`` are not exactly those of `state_names`."""
    count = (len(states) - 1) // 2
    if count < 1 or tuple(states) != state_names(count):
        raise ValueError(f"states {', '.join(states)} are not x, fwd1, bwd1, … of one biLM")
    return count


def sentences_part(part: int) -> str:
    """Parquet file of the sentences of part ``part``."""
    return f"{SENTENCES}/part-{_number(part)}.parquet"


def rejects_part(part: int) -> str:
    """JSON-lines file of the records of part ``part`` that were refused (absent where there were none)."""
    return f"{REJECTS}/part-{_number(part)}.jsonl"


def states_part(shard: int) -> str:
    """Parquet file of the states of shard ``shard``."""
    return f"{STATES}/part-{_number(shard)}.parquet"


def zarr_states_shard(shard: int) -> str:
    """Object of shard ``shard`` in the Zarr array ``states``."""
    return f"{ZARR}/states/c/{shard}/0/0"


def zarr_token_chunk(shard: int) -> str:
    """Object of the tokens of shard ``shard`` in the Zarr array ``token``."""
    return f"{ZARR}/token/c/{shard}"


def shard_marker(shard: int) -> str:
    """Marker that says shard ``shard`` is written."""
    return f"{SHARDS}/{_number(shard)}.json"


def n_shards(rows: int, shard_rows: int) -> int:
    """Shards that ``rows`` rows take; 0 for none."""
    if rows < 0 or shard_rows < 1:
        raise ValueError(f"{rows} rows in shards of {shard_rows}: rows must be 0 or more, shard_rows 1 or more")
    return -(-rows // shard_rows)


def shard_range(shard: int, rows: int, shard_rows: int) -> tuple[int, int]:
    """First row and the row after the last of shard ``shard``. IndexError if there is no such shard."""
    if not 0 <= shard < n_shards(rows, shard_rows):
        raise IndexError(f"no shard {shard}: {rows} rows in shards of {shard_rows} are {n_shards(rows, shard_rows)}")
    first = shard * shard_rows
    return first, min(first + shard_rows, rows)


def chunk_rows(shard_rows: int) -> int:
    """Rows of an inner chunk of a shard. ValueError for a shard size that inner chunks don't divide."""
    if shard_rows < 1 or (shard_rows > CHUNK_ROWS and shard_rows % CHUNK_ROWS):
        raise ValueError(f"shards of {shard_rows} rows: give a multiple of {CHUNK_ROWS}, or a number from 1 to {CHUNK_ROWS}")
    return min(shard_rows, CHUNK_ROWS)


def _number(number: int) -> str:
    """Five digits or as many as it takes; names sort in number order up to 99,999 only, so readers must go by number."""
    if number < 0:
        raise ValueError(f"part or shard number {number} is negative")
    return f"{number:05d}"
