"""Where everything of a store stands, and which rows a shard holds: pure names and numbers.

See docs/store-format.md for the words: row, shard, part, state, layer.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

FORMAT_VERSION: Final = 1
INT8 = "int8-scale"  # the feature of stores whose vectors are int8 times a scale
FEATURES = (INT8,)  # `required_features` that this package reads
MANIFEST = "elmo_store.json"
INPUTS = "inputs.parquet"
START_STATE = "start_state.safetensors"
SENTENCES = "sentences"
INDEXES = "indexes"  # look-ups, none of them among what they lead to: every file of sentences/ has the same schema
SENTENCE_INDEX = f"{INDEXES}/parts.parquet"
SENTENCE_IDS = f"{INDEXES}/ids"
SENTENCE_TEXTS = f"{INDEXES}/text"  # from a sentence's tokens to its number
REJECTS = "rejects"
STATES = "states"
ZARR = "states.zarr"
SHARDS = "_shards"  # markers of shards
PART_GROUPS = "_parts"  # markers of stretches of parts
IDS = "_ids"  # markers of the id tables
WORK = "_work"  # scratch of a running job; gone when the store is complete
ENDED = f"{WORK}/ended"  # by what watches a worker: a file for each worker that died, where and how

VERSIONS = "versions"  # of a collection: what its members are, one object a version
MEMBERS = "members"  # of a collection: stores, each in a folder of its own

FOLDERS = (
    SENTENCES,
    INDEXES,
    REJECTS,
    STATES,
    ZARR,
    SHARDS,
    PART_GROUPS,
    IDS,
    WORK,
)  # of a store and of its job

BOS_TOKEN, EOS_TOKEN = "<S>", "</S>"  # in `token`, for the rows that --boundaries adds
# What this version writes. A reader takes these sizes from the store.
CHUNK_ROWS = 128  # rows of an inner chunk: the least that a Zarr library reads of a state
SENTENCE_CHUNK = 1024  # entries of a chunk of sentence_start
ROW_GROUP_ROWS = 256  # rows of a row group of the Parquet form: with 128 a footer outgrows the 64 KB fetched at once
ROW_GROUP_SENTENCES = 1024  # sentences of a row group of a part
# A manifest of more is refused, so that it can't ask for any amount of memory.
MOST_CHANNELS = 1 << 20  # of a state
MOST_CHUNK_BYTES = 1 << 30  # of an inner chunk of a shard
MOST_CHUNKS = 1 << 22  # inner chunks of a shard
MOST_SENTENCE_CHUNK = 1 << 24  # entries of a chunk of sentence_start
IDS_OF_TABLE = 16_384  # ids that an id table has at most, on average
NUMBER_BYTES = {"float16": 2, "float32": 4, "int8": 1}
DTYPES = tuple(NUMBER_BYTES)
SCALE_BYTES = 4  # of a state of a row in an int8 store
FORMS = ("zarr", "parquet")
ROW_COLUMNS = (
    "row",
    "token",
    "sentence",
    "index_in_sentence",
)  # of the Parquet form, before the states
COMPRESSIONS = ("none", "zstd", "blosc")
CHECKSUMS = ("none", "crc32c")


def schema(columns: Mapping[str, pa.DataType]) -> pa.Schema:
    """A schema of columns without nulls."""
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


STRINGS = pa.list_(pa.field("element", pa.string()))
_TOKENS = pa.list_(pa.field("element", pa.string(), nullable=False))
SENTENCES_SCHEMA = schema(
    {
        "sentence": pa.int64(),
        "id": pa.string(),
        "source": pa.string(),
        "position": pa.int64(),
        "first_row": pa.int64(),
    }
    | {"n_tokens": pa.int32(), "tokens": _TOKENS}
)
# Of sentences too: in stores of this version, and where it was asked for.
DOCUMENT_SCHEMA = schema({"document": pa.string(), "document_sentence": pa.int64()})
TEXT = pa.field("text", pa.string(), nullable=False)
# One row a part; `bytes` and `rejects_bytes` are sizes of its files, 0 where it has no rejects.
_INDEX_COLUMNS = (
    "part",
    "first_sentence",
    "n_sentences",
    "first_row",
    "n_rows",
    "bytes",
    "rejects_bytes",
)
INDEX_SCHEMA = schema(dict.fromkeys(_INDEX_COLUMNS, pa.int64()))
INPUTS_SCHEMA = schema(
    {"url": pa.string(), "format": pa.string(), "guessed": pa.bool_()}
    | {"bytes": pa.int64(), "version": pa.string(), "pieces": pa.int64()}
)
IDS_SCHEMA = schema({"hash_high": pa.uint64(), "hash_low": pa.uint64(), "sentence": pa.int64()})


def state_names(n_layers: int) -> tuple[str, ...]:
    """``x, fwd1, bwd1, … fwdL, bwdL``: the 2L+1 states of a biLM of L layers, in the order they are stored."""
    if n_layers < 1:
        raise ValueError(f"a biLM of {n_layers} layers has no states: n_layers must be 1 or more")
    return (
        "x",
        *(
            f"{direction}{layer}"
            for layer in range(1, n_layers + 1)
            for direction in ("fwd", "bwd")
        ),
    )


def row_bytes(dtype: str, n_states: int, channels: int) -> int:
    """Bytes of all vectors of a row as one form stores them, without compression; of int8 with their scales."""
    return n_states * (channels * NUMBER_BYTES[dtype] + (SCALE_BYTES if dtype == "int8" else 0))


def n_layers(states: Sequence[str]) -> int:
    """L of a full set of 2L+1 states; ValueError if ``states`` are not exactly those of `state_names`."""
    if not have_layers(states):
        raise ValueError(
            f"of the states {', '.join(states)} alone no layers can be made: embed all states"
        )
    return len(states) // 2


def have_layers(states: Sequence[str]) -> bool:
    """Whether ``states`` are all 2L+1 of a biLM, so that layers can be made of them."""
    return (
        len(states) > 1 and len(states) % 2 == 1 and tuple(states) == state_names(len(states) // 2)
    )


def check_states(states: Sequence[str]) -> None:
    """ValueError unless ``states`` are one or more of `state_names`, in that order: a store may hold a subset."""
    order = []
    for name in states:
        match = re.fullmatch(r"(fwd|bwd)([1-9][0-9]{0,5})", name)
        if name != "x" and match is None:
            raise ValueError(f"{name!r} is not a state: known are x, fwd1, bwd1, fwd2, …")
        order.append(0 if match is None else 2 * int(match[2]) - (match[1] == "fwd"))
    if not order or order != sorted(set(order)):
        raise ValueError(
            f"states {', '.join(states) or '(none)'} are not some of x, fwd1, bwd1, fwd2, … in this order"
        )


_SET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")


def check_set_names(names: Sequence[str]) -> None:
    """ValueError unless each can be the name of a weight set, and so of a column, a file and an entry of an archive."""
    for name in names:
        if not _SET_NAME.fullmatch(name) or name in ROW_COLUMNS:
            raise ValueError(
                f"a weight set can't be called {name[:250]!r}: take up to 200 letters, digits, _ . + -, "
                f"no . + - first, and none of {', '.join(ROW_COLUMNS)}"
            )


_OURS = re.compile(
    rf"{MANIFEST}|{INPUTS}|{START_STATE}|report\.html"
    rf"|{SENTENCES}/part-\d+\.parquet|{REJECTS}/part-\d+\.jsonl|{STATES}/part-\d+\.parquet"
    rf"|{SENTENCE_INDEX}|({SENTENCE_IDS}|{SENTENCE_TEXTS})/\d+\.parquet"
    rf"|{ZARR}/zarr\.json|{ZARR}/\w+/(zarr\.json|c/[\d/]+)|({SHARDS}|{PART_GROUPS}|{IDS})/\d+\.json"
    rf"|{WORK}/.+"
)


def is_ours(rel: str) -> bool:
    """Whether an object of this name is a store's, or left by one of its commands; any other is its user's."""
    return _OURS.fullmatch(rel) is not None


# Paths with a number in them; names sort in number order up to 99,999 only, so readers must go by number.
sentences_part = (SENTENCES + "/part-{:05d}.parquet").format  # the sentences of a part
rejects_part = (
    REJECTS + "/part-{:05d}.jsonl"
).format  # the records of a part that were refused; absent where none were
states_part = (STATES + "/part-{:05d}.parquet").format  # a shard in the Parquet form
zarr_states_shard = (ZARR + "/states/c/{}/0/0").format  # a shard of the array `states`
zarr_scale_shard = (ZARR + "/scale/c/{}/0").format  # a shard of the array `scale` of an int8 store
zarr_token_chunk = (ZARR + "/token/c/{}").format  # the tokens of a shard
zarr_sentence_chunk = (
    ZARR + "/sentence_start/c/{}"
).format  # a chunk of the array `sentence_start`
id_table = (SENTENCE_IDS + "/{:05d}.parquet").format  # ids whose hashes begin with the table's bits
text_table = (
    SENTENCE_TEXTS + "/{:05d}.parquet"
).format  # sentences whose tokens' hashes begin with the table's bits
shard_marker = (SHARDS + "/{:05d}.json").format  # says that a shard is written
part_group_marker = (
    PART_GROUPS + "/{:05d}.json"
).format  # says that the parts of a group are written
ids_marker = (IDS + "/{:05d}.json").format  # says that a run of id tables is written
version = (VERSIONS + "/{:08d}.json").format  # a version of a collection
member = (MEMBERS + "/{}").format  # the folder of a collection's member
scale_column = (
    "{}_scale".format
)  # of the Parquet form of an int8 store: what the vectors of a state are multiplied by


def check_scale_columns(states: Sequence[str]) -> None:
    """ValueError if a vector of an int8 store is called as the scale of another one."""
    clash = set(states) & set(map(scale_column, states))
    if clash:
        raise ValueError(
            f"{min(clash)!r} would be the name of a scale too: in an int8 store no vector can be called so"
        )


def id_bits(sentences: int) -> int:
    """Leading bits of an id's hash that name its table: 0 for one table, at most 30."""
    return min(30, (max(1, -(-sentences // IDS_OF_TABLE)) - 1).bit_length())


def n_shards(rows: int, shard_rows: int) -> int:
    """Shards that ``rows`` rows take; 0 for none."""
    if rows < 0 or shard_rows < 1:
        raise ValueError(
            f"{rows} rows in shards of {shard_rows}: rows must be 0 or more, shard_rows 1 or more"
        )
    return -(-rows // shard_rows)


def shard_range(shard: int, rows: int, shard_rows: int) -> tuple[int, int]:
    """First row and the row after the last of shard ``shard``. IndexError if there is no such shard."""
    if not 0 <= shard < n_shards(rows, shard_rows):
        raise IndexError(
            f"no shard {shard}: {rows} rows in shards of {shard_rows} are {n_shards(rows, shard_rows)}"
        )
    first = shard * shard_rows
    return first, min(first + shard_rows, rows)


def chunk_rows(shard_rows: int) -> int:
    """Rows of an inner chunk of a shard, as this version writes it. ValueError for a shard that such chunks don't divide."""
    if shard_rows < 1 or (shard_rows > CHUNK_ROWS and shard_rows % CHUNK_ROWS):
        raise ValueError(
            f"shards of {shard_rows} rows: give a multiple of {CHUNK_ROWS}, or a number from 1 to {CHUNK_ROWS}"
        )
    return min(shard_rows, CHUNK_ROWS)
