"""The formats of an export, what each takes, and the settings of one."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from elmo_store.errors import StoreError
from elmo_store.mixing import POOLS

LAYERS = ("all", "top", "average")
DOCUMENTS = ("id", "source")
PER = ("sentence", "document")
LAYOUTS = ("documents", "conll05", "ontonotes5")
FILE_BYTES = 1 << 29  # of vectors in each file of a folder, about


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        name: as ``--format`` takes it.
        what: one line of help.
        module: that writes it, of `elmo_store.exports`.
        folder: whether the output is a folder of files, which an interrupted export continues; otherwise it is one file.
        one_vector: whether a token has one vector: a mix, or the top or average layer.
        any_dtype: whether its numbers may be float16; otherwise they are float32, as its readers expect.
        by_document: whether sentences are kept by document.
        prefix: whether the output is the beginning of several files' names.
        files: the name of a folder's files, before their number and how many there are stand in it.
        tables: names of the files of a folder that are about all others, and written last.
    """

    name: str
    what: str
    module: str
    folder: bool = False
    one_vector: bool = False
    any_dtype: bool = False
    by_document: bool = False
    prefix: bool = False
    files: str = ""
    tables: tuple[str, ...] = ()

    def names(self, rel: str, output: str) -> bool:
        """Whether an export as this has a file ``rel``; ``output``: its file's name, or how the names begin, "" of a folder."""
        if self.folder:
            pattern = re.sub(r"\{:0(\d)d\}", r"\\d{\1,}", self.files.replace(".", r"\."))
            return not output and (rel in self.tables or re.fullmatch(pattern, rel) is not None)
        if self.prefix:
            return bool(output) and rel.startswith(f"{output}.ly") and rel.endswith(".hdf5")
        return bool(output) and rel == output


def _folder(name: str, what: str, files: str, tables: tuple[str, ...] = ()) -> Format:
    return Format(name, what, "arrays", folder=True, any_dtype=True, files=files, tables=tables)


_ALL = (
    Format("allennlp", "HDF5 of `allennlp elmo`: 0, 1, … and sentence_to_index", "hdf5"),
    Format("bilm", "HDF5 of bilm-tf's dump_bilm_embeddings: 0, 1, … and nothing else", "hdf5"),
    Format("e2e-coref", "HDF5, one group per document, layers last", "hdf5", by_document=True),
    Format("lsgn", "HDF5, one group per document, layers first", "hdf5", by_document=True),
    Format("dygie", "HDF5, DOCUMENT_SENTENCE, layers last", "hdf5", by_document=True),
    Format("elmoformanylangs", "HDF5, one file per layer, keyed by the words", "hdf5", prefix=True),
    Format("tfhub", "HDF5, one group per sentence, with TensorFlow Hub's names", "hdf5"),
    Format("npz", "arrays in order, one vector per token, as UDPipe-Future reads", "arrays", one_vector=True),
    _folder("safetensors", "files of rows, and where sentences begin", "vectors-{:05d}-of-{:05d}.safetensors"),
    _folder(
        "datasets", "Arrow files that Hugging Face's load_from_disk opens", "data-{:05d}-of-{:05d}.arrow",
        ("dataset_info.json", "state.json"),
    ),
    _folder("webdataset", "tar files with one .npy and .json per sentence", "{:06d}.tar"),
)  # fmt: skip
FORMATS: Mapping[str, Format] = {form.name: form for form in _ALL}  # that `elmo-store export` offers
POOLED = "pooled"  # what `elmo-store mix --pool` writes, as exports are written
KNOWN: Mapping[str, Format] = {
    **FORMATS,
    POOLED: Format(
        POOLED, "Parquet, a row a sentence or document", "pooled", folder=True, any_dtype=True,
        files="vectors/part-{:05d}-of-{:05d}.parquet",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What an export was asked for; equal settings of one store give the same bytes."""

    format: str  # a name of `FORMATS`
    layers: str | None = None  # "all", "top", "average"; None where a mix says what a token's vectors are
    weights: Mapping[str, Any] | None = None  # of the mix, as JSON's numbers: s, gamma, layer_norm; None without one
    weight_set: str | None = None  # the one to take, of a store of mixes; all without it
    dtype: str = "float32"  # of the numbers
    documents: str = "id"  # "id" (a sentence's id without its last ``:NUMBER``) or "source" (the name of its file)
    layout: str = "documents"  # of `lsgn`: "documents", or as its readers ask of a file named "conll05" or "ontonotes5"
    id_prefix: str = ""  # where ids name documents: only sentences whose ids begin so, or with one of several, by commas
    sentence_index: bool = True  # whether `allennlp`'s sentence_to_index is written
    sentence_keys: bool = False  # whether `allennlp`'s keys are the sentences, not their numbers; then without the index
    file_bytes: int = FILE_BYTES  # of vectors in each file of a folder, about
    pool: str | None = None  # of `POOLED`: how a unit's rows become one
    per: str = "sentence"  # of `POOLED`: the unit, "sentence" or "document"

    @property
    def by_key(self) -> bool:
        """Whether datasets are named after documents or sentences (`elmo_store.exports.keys`), not numbered through."""
        return KNOWN[self.format].by_document or self.sentence_keys

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)


def settled(settings: Settings, *, mixed: bool) -> Settings:
    """The settings with their defaults; StoreError for what can't be. ``mixed``: of a store of mixes, or with weights."""
    form = KNOWN.get(settings.format)
    if form is None:
        raise StoreError(f"--format is {settings.format!r}: known are {', '.join(FORMATS)}")
    known_values = {"layers": (*LAYERS, None), "documents": DOCUMENTS, "layout": LAYOUTS, "per": PER}
    known_values["dtype"] = ("float16", "float32")
    for name, known in known_values.items():
        value = getattr(settings, name)
        if value not in known:
            raise StoreError(f"--{name} is {value!r}: known are {', '.join(map(str, filter(None, known)))}")
    if (form.name == POOLED) is not (settings.pool in POOLS):
        raise StoreError(f"pool is {settings.pool!r}: {POOLED} takes {', '.join(POOLS)}, every other format none")
    if settings.file_bytes < 1:
        raise StoreError(f"files of {settings.file_bytes} bytes: give 1 or more")
    if settings.id_prefix and (settings.documents != "id" or not form.by_document):
        raise StoreError("--id-prefix is for formats whose documents are named by ids: leave it out, or --documents")
    of_one = {"--layout": (settings.layout != "documents", "lsgn"), "--use-sentence-keys": (settings.sentence_keys, "allennlp")}
    for option, (given, user) in of_one.items():
        if given and form.name != user:
            raise StoreError(f"{option} is for {user}: leave it out of {form.name}")
    if settings.dtype != "float32" and not form.any_dtype:
        others = ", ".join(other.name for other in _ALL if other.any_dtype)
        raise StoreError(f"{form.name} is read as float32: leave --dtype out, or take {others}")
    if mixed or form.name == POOLED:
        if settings.layers is not None:
            raise StoreError(f"a mix says itself how much of each layer a vector has: leave --layers {settings.layers} out")
        return settings
    if settings.format == "tfhub" and settings.layers is not None:
        raise StoreError("tfhub's names are of all layers: leave --layers out")
    layers = settings.layers or ("average" if form.one_vector else "all")
    if form.one_vector and layers == "all":
        raise StoreError(f"{form.name} has one vector a token: give --layers top or average, or the --weights of a mix")
    return replace(settings, layers=layers)
