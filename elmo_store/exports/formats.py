"""The formats of an export, each with the function that writes its files; and the settings of one export.

Functions are named, and imported when they are called: the command line lists formats before it needs NumPy or h5py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elmo_store.errors import StoreError

if TYPE_CHECKING:
    from elmo_store.format.manifest import WeightSet

LAYERS = ("all", "top", "average")
PER = ("sentence", "document")
POOLS = ("mean", "max", "first", "last")  # how several rows become one vector
FILE_BYTES = 1 << 29  # of vectors in each file of a folder, about


@dataclass(frozen=True)
class Format:
    """One format.

    ``writer``: MODULE.NAME in `elmo_store.exports` of the function that writes a file, or files; it takes the work
    (`elmo_store.exports.work.Work`), the files' paths and the range of their sentences.
    """

    what: str  # one line of help
    writer: str
    files: str = ""  # names of a folder's files, with places for their number and count; "" of a format that is one file
    tables: tuple[
        str, ...
    ] = ()  # names of the files of a folder that describe all others; they are written last
    one_vector: bool = False  # a token has one vector: a mix, or the top or average layer
    by_document: bool = False  # sentences are kept by document
    layers_last: bool = False  # a dataset's layers are its last axis
    prefix: bool = False  # the output is the beginning of several files' names

    @property
    def folder(self) -> bool:
        """Whether the output is a folder of files, whose numbers may be float16; others are float32, as their readers expect."""
        return bool(self.files)


POOLED = "pooled"  # what `elmo-store mix --pool` writes
KNOWN: Mapping[str, Format] = {
    "allennlp": Format("HDF5 of `allennlp elmo`: 0, 1, … and sentence_to_index", "hdf5.write_allennlp"),
    "bilm": Format("HDF5 of bilm-tf's dump_bilm_embeddings: 0, 1, … and nothing else", "hdf5.write_all_layers"),
    "e2e-coref": Format("HDF5, one group per document, layers last", "hdf5.write_all_layers", by_document=True, layers_last=True),
    "lsgn": Format("HDF5, one group per document, layers first", "hdf5.write_all_layers", by_document=True),
    "dygie": Format("HDF5, DOCUMENT_SENTENCE, layers last", "hdf5.write_all_layers", by_document=True, layers_last=True),
    "elmoformanylangs": Format("HDF5, one file per layer, keyed by the words", "hdf5.write_by_words", prefix=True),
    "tfhub": Format("HDF5, one group per sentence, with TensorFlow Hub's names", "hdf5.write_tfhub"),
    "npz": Format("arrays in order, one vector per token, as UDPipe-Future reads", "arrays.write_npz", one_vector=True),
    "safetensors": Format(
        "files of rows, and where sentences begin", "arrays.write_safetensors", "vectors-{:05d}-of-{:05d}.safetensors"
    ),
    "datasets": Format(
        "Arrow files that Hugging Face's load_from_disk opens", "arrays.write_arrow", "data-{:05d}-of-{:05d}.arrow",
        ("dataset_info.json", "state.json"),
    ),
    "webdataset": Format("tar files with one .npy and .json per sentence", "arrays.write_tar", "{:06d}.tar"),
    POOLED: Format(
        "Parquet, one row per sentence or document", "pooled.write_pooled", "vectors/part-{:05d}-of-{:05d}.parquet"
    ),
}  # fmt: skip
FORMATS: Mapping[str, Format] = {
    name: form for name, form in KNOWN.items() if name != POOLED
}  # of `elmo-store export`


@dataclass(frozen=True)
class Settings:
    """What of a store is exported, and how; the same settings of the same store give the same bytes.

    Attributes:
        format: a name of `FORMATS`.
        layers: "all" (default; npz: "average"), "top" or "average"; None of a store of mixes.
        dtype: "float16" or "float32"; by default the store's own in a folder's files, float32 in others.
        file_bytes: of vectors in each file of a folder, about.
        pool: of ``elmo-store mix --pool``, whose format is "pooled": "mean", "max", "first" or "last".
        per: of it: one row per "sentence" (default) or "document".
        weights: of it: a file with weight sets, or those of one, with which a store's layers are mixed.
        layer_norm: of it: normalise each layer of each token before it is mixed.
    """

    format: str
    layers: str | None = None
    dtype: str = ""
    file_bytes: int = FILE_BYTES
    pool: str | None = None
    per: str = "sentence"
    weights: "str | tuple[WeightSet, ...] | None" = None
    layer_norm: bool = False

    @property
    def form(self) -> Format:
        """The format."""
        return KNOWN[self.format]


def settled(settings: Settings, *, mixed: bool, dtype: str) -> Settings:
    """The settings with their defaults. StoreError for settings that are impossible.

    ``mixed``: of a store of mixes; ``dtype``: the store's.
    """
    if settings.format not in KNOWN:
        raise StoreError(f"`format={settings.format!r}`: known are {', '.join(FORMATS)}")
    name, form = settings.format, settings.form
    settings = replace(settings, dtype=settings.dtype or (dtype if form.folder else "float32"))
    known_values = {"layers": (*LAYERS, None), "per": PER, "dtype": ("float16", "float32")}
    for option, known in known_values.items():
        if (value := getattr(settings, option)) not in known:
            raise StoreError(
                f"`{option}={value!r}`: known are {', '.join(map(str, filter(None, known)))}"
            )
    if name == POOLED:
        if settings.pool not in POOLS:
            raise StoreError(f"`pool={settings.pool!r}`: known are {', '.join(POOLS)}")
        if settings.layer_norm and not settings.weights:
            raise StoreError("`layer_norm` applies only to mixes: add `weights`")
        return settings
    if settings.pool or settings.weights or settings.layer_norm:
        raise StoreError(
            f"`pool`, `weights` and `layer_norm` are not for {name}: mix the store first, then export the mix"
        )
    if settings.dtype != "float32" and not form.folder:
        others = ", ".join(other for other, its in FORMATS.items() if its.folder)
        raise StoreError(f"{name} is read as float32: leave `dtype` out, or take {others}")
    if mixed:
        if settings.layers is not None:
            raise StoreError(
                f"a mix defines the weight of each layer: leave `layers={settings.layers!r}` out"
            )
        return settings
    if name == "tfhub" and settings.layers is not None:
        raise StoreError("tfhub's names are of all layers: leave `layers` out")
    layers = settings.layers or ("average" if form.one_vector else "all")
    if form.one_vector and layers == "all":
        raise StoreError(
            f"{name} has one vector per token: pass `layers='top'` or `layers='average'`, or mix the store first"
        )
    return replace(settings, layers=layers)
