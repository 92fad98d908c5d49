"""A reader written from docs/store-format.md alone, with json, NumPy and pyarrow, gets the same vectors as the package."""

import hashlib
import json
import re
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
import zarr

import elmo_store
from elmo_store.format.manifest import MixInfo, WeightSet
from tests.store.support import LENGTHS, make_manifest, make_store

# --- The independent reader: nothing of elmo_store below, until the line that ends it ---


NUMBERS = {"float16": "<f2", "float32": "<f4", "int8": "<i1"}


class TinyReader:
    """Reads a store on a local disk as docs/store-format.md describes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: dict[str, Any] = json.loads(
            (folder / "elmo_store.json").read_text(encoding="utf-8")
        )
        if self.manifest["format_version"] != 1:
            raise ValueError(
                f"format version {self.manifest['format_version']}, this reader knows 1"
            )
        if set(self.manifest["required_features"]) - {"int8-scale"}:
            raise ValueError(f"needs {self.manifest['required_features']}")
        if not self.manifest["complete"]:
            raise ValueError("not complete")

    def shards(self) -> list[tuple[int, int]]:
        rows, size = self.manifest["counts"]["rows"], self.manifest["shard_rows"]
        return [(k, min(size, rows - k * size)) for k in range(-(-rows // size))]

    def zarr_states(self) -> npt.NDArray[Any]:
        """All rows by hand from uncompressed shards: [rows, states, channels]."""
        assert self.manifest["compression"] == "none"
        n_states, channels = len(self.manifest["states"]), self.manifest["channels"]
        chunk_rows = self.manifest["chunk_rows"]
        n_chunks = self.manifest["shard_rows"] // chunk_rows
        found = []
        for shard, n_rows in self.shards():
            data = (self.folder / f"states.zarr/states/c/{shard}/0/0").read_bytes()
            index_bytes = 16 * n_chunks * n_states
            index, checksum = data[-index_bytes - 4 : -4], data[-4:]
            assert struct.unpack("<I", checksum)[0] == google_crc32c.value(index)
            entries = np.frombuffer(index, "<u8").reshape(n_chunks, n_states, 2)
            rows = np.zeros(
                (n_chunks * chunk_rows, n_states, channels), NUMBERS[self.manifest["dtype"]]
            )
            for i in range(n_chunks):
                for state in range(n_states):
                    offset, length = (int(number) for number in entries[i, state])
                    if offset == length == 2**64 - 1:
                        assert i * chunk_rows >= n_rows
                        continue
                    values = np.frombuffer(data[offset : offset + length], rows.dtype).reshape(
                        chunk_rows, channels
                    )
                    rows[i * chunk_rows : (i + 1) * chunk_rows, state] = values
            found.append(self.times_scale(shard, rows[:n_rows]))
        return np.concatenate(found)

    def times_scale(self, shard: int, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Rows of a shard times their scales, which stand one row after the other from byte 0 of the shard's object."""
        if self.manifest["dtype"] != "int8":
            return rows
        data = (self.folder / f"states.zarr/scale/c/{shard}/0").read_bytes()
        n_rows, n_states = rows.shape[:2]
        scale = np.array(
            [
                [struct.unpack_from("<f", data, (r * n_states + i) * 4)[0] for i in range(n_states)]
                for r in range(n_rows)
            ]
        )
        return rows.astype("<f4") * scale.astype("<f4")[..., None]

    def sentence_of_id(self, sentence_id: str) -> int | None:
        """Number of the first sentence with an id, by the id tables."""
        high, low = struct.unpack(">QQ", hashlib.sha256(sentence_id.encode()).digest()[:16])
        bits = 0
        while (1 << bits) * 16_384 < self.manifest["counts"]["sentences"]:
            bits += 1
        table = pq.read_table(
            self.folder / f"indexes/ids/{high >> (64 - bits) if bits else 0:05d}.parquet"
        ).to_pylist()
        return next(
            (
                row["sentence"]
                for row in table
                if (row["hash_high"], row["hash_low"]) == (high, low)
            ),
            None,
        )

    def content_hash(self) -> str:
        """checksums.shards, from the markers."""
        markers = [
            json.loads((self.folder / f"_shards/{k:05d}.json").read_text())
            for k, _ in self.shards()
        ]
        digests = []
        for first in range(0, len(markers), 1024):
            run = markers[first : first + 1024]
            lines = [
                f"{one['path']}\t{one['crc32c']}\n" for marker in run for one in marker["objects"]
            ]
            digests.append(hashlib.sha256("".join(lines).encode()).hexdigest() + "\n")
        return hashlib.sha256("".join(digests).encode()).hexdigest()

    def is_sealed(self, marker: Path) -> bool:
        """Whether a marker ends as its own hash says."""
        data = marker.read_bytes()
        tail = len(b',\n  "sha256": ""\n}\n') + 64
        digest = hashlib.sha256(data[:-tail]).hexdigest()
        return data[-tail:] == f',\n  "sha256": "{digest}"\n}}\n'.encode()

    def own_hash(self) -> str:
        """The manifest's sha256."""
        rest = {name: value for name, value in self.manifest.items() if name != "sha256"}
        return hashlib.sha256(
            json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()
        ).hexdigest()

    def part_of(self, sentence: int) -> int:
        """The part that holds a sentence, by the table of parts."""
        rows = pq.read_table(self.folder / "indexes/parts.parquet").to_pylist()
        return next(
            r["part"]
            for r in rows
            if r["first_sentence"] <= sentence < r["first_sentence"] + r["n_sentences"]
        )

    def parquet_states(self) -> npt.NDArray[Any]:
        channels = self.manifest["channels"]
        found = []
        for shard, n_rows in self.shards():
            table = pq.read_table(self.folder / f"states/part-{shard:05d}.parquet")
            columns = [
                table[name].combine_chunks().flatten().to_numpy()
                for name in self.manifest["states"]
            ]
            rows = np.stack([column.reshape(n_rows, channels) for column in columns], axis=1)
            if self.manifest["dtype"] == "int8":
                scales = [table[f"{name}_scale"].to_numpy() for name in self.manifest["states"]]
                rows = rows.astype("<f4") * np.stack(scales, axis=1)[..., None]
            found.append(rows)
        return np.concatenate(found)

    def sentences(self) -> list[dict[str, Any]]:
        parts = range(self.manifest["counts"]["parts"])
        return [
            row
            for k in parts
            for row in pq.read_table(self.folder / f"sentences/part-{k:05d}.parquet").to_pylist()
        ]

    def rows_of(self, sentence: dict[str, Any]) -> range:
        extra = 2 if self.manifest["boundaries"] and sentence["n_tokens"] > 0 else 0
        return range(sentence["first_row"], sentence["first_row"] + sentence["n_tokens"] + extra)


class TinyCollection:
    """Reads the newest version of a collection on a local disk."""

    def __init__(self, folder: Path) -> None:
        newest = max((folder / "versions").glob("*.json"), key=lambda path: int(path.stem))
        self.version = json.loads(newest.read_text(encoding="utf-8"))
        self.folder = folder
        assert self.version["format_version"] == 1
        assert int(newest.stem) == self.version["version"]

    def kept(self) -> tuple[list[str], npt.NDArray[Any]]:
        """Ids of the sentences, and all rows [rows, states, channels]."""
        ids, rows = [], []
        for member in self.version["members"]:
            store = TinyReader(self.folder / "members" / member["name"])
            assert store.manifest["sha256"] == member["sha256"]
            assert store.manifest["counts"] == member["counts"]
            inside = member["inside"] or {
                name: self.version["store"][name] for name in ("shard_rows", "chunk_rows")
            }
            assert inside.items() & {"shard_rows": store.manifest["shard_rows"]}.items()
            states = store.zarr_states()
            for sentence in store.sentences():
                number = sentence["sentence"]
                runs = ((run["first_sentence"], run["n_sentences"]) for run in member["removed"])
                if not any(first <= number < first + n for first, n in runs):
                    ids.append(sentence["id"])
                    rows.append(states[store.rows_of(sentence)])
        return ids, np.concatenate(rows)


# --- Here the independent reader ends ---


def test_a_collection_read_by_its_page() -> None:
    folder = Path(__file__).with_name("golden-collection")
    collection, ours = TinyCollection(folder), elmo_store.open(folder)
    ids, rows = collection.kept()
    assert ids == [sentence.id for sentence in ours]
    np.testing.assert_array_equal(rows, ours.read())
    assert collection.version["store"]["counts"]["sentences"] == len(ids)
    assert collection.version["store"]["counts"]["rows"] == len(rows)


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float16"},
        {"dtype": "float32", "boundaries": True},
        {"dtype": "int8"},
        {
            "dtype": "int8",
            "shard_rows": 1024,
            "lengths": (700, 0, 900, 1500),
            "parts": (2, 2),
            "boundaries": True,
        },
        {"shard_rows": 1024, "lengths": (700, 0, 900, 1500), "parts": (2, 2)},
    ],
)
def test_the_reader_of_the_documentation_gets_the_same(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    written = make_store(str(tmp_path / "store"), **settings)
    tiny = TinyReader(tmp_path / "store")
    store = elmo_store.open(tmp_path / "store")
    for states in (tiny.zarr_states(), tiny.parquet_states()):
        np.testing.assert_array_equal(states, written.states)
        np.testing.assert_array_equal(states, store.read())
    group = zarr.open_group(tmp_path / "store" / "states.zarr", mode="r")
    starts = group["sentence_start"]
    assert isinstance(starts, zarr.Array)
    for sentence, row in zip(store, tiny.sentences(), strict=True):
        assert (sentence.index, sentence.id, list(sentence.tokens)) == (
            row["sentence"],
            row["id"],
            row["tokens"],
        )
        rows = tiny.rows_of(row)
        assert (sentence.first_row, sentence.n_rows) == (rows.start, len(rows))
        assert np.asarray(starts[row["sentence"] : row["sentence"] + 2]).tolist() == [
            rows.start,
            rows.stop,
        ]
        np.testing.assert_array_equal(sentence.read(), tiny.zarr_states()[rows.start : rows.stop])


def test_hashes_and_look_ups_of_the_page(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "store"))
    tiny = TinyReader(tmp_path / "store")
    assert tiny.own_hash() == tiny.manifest["sha256"]
    assert tiny.content_hash() == tiny.manifest["checksums"]["shards"]
    for number in range(len(LENGTHS)):
        assert tiny.sentence_of_id(f"doc.txt:{number}") == number
        assert tiny.part_of(number) == (0 if number < 3 else 2)
    assert tiny.sentence_of_id("doc.txt:99") is None
    for one in tiny.manifest["objects"]:
        data = (tmp_path / "store" / one["path"]).read_bytes()
        assert (len(data), f"{google_crc32c.value(data):08x}") == (one["bytes"], one["crc32c"])
    folders = [tmp_path / "store" / name for name in ("_shards", "_parts", "_ids")]
    assert all(tiny.is_sealed(path) for folder in folders for path in folder.iterdir())
    marked = [json.loads(path.read_text()) for folder in folders for path in folder.iterdir()]
    named = {one["path"] for marker in marked for one in marker["objects"]} | {
        o["path"] for o in tiny.manifest["objects"]
    }
    unnamed = set(written.root.list()) - named
    assert {name.partition("/")[0] for name in unnamed} == {
        "elmo_store.json",
        "_shards",
        "_parts",
        "_ids",
    }


def test_the_models_fingerprint_is_that_of_the_page(tmp_path: Path) -> None:
    from model.files.registry import load_model

    _, weights = load_model(None)
    digest = hashlib.sha256(json.dumps(weights.options.to_dict(), sort_keys=True).encode())
    for name in sorted(weights.tensors):
        tensor = weights.tensors[name].numpy()
        digest.update(
            f"\n{name} {list(tensor.shape)}\n".encode()
            + np.ascontiguousarray(tensor, "<f4").tobytes()
        )
    assert weights.fingerprint == f"sha256:{digest.hexdigest()}"


def test_the_hash_of_the_start_state(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "store"))
    data = (tmp_path / "store" / "start_state.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    values = {
        name: data[8 + length + a : 8 + length + b]
        for name, (a, b) in ((n, header[n]["data_offsets"]) for n in "hc")
    }
    text = f'{{"c": {header["c"]["shape"]}, "h": {header["h"]["shape"]}, "kind": "{header["__metadata__"]["kind"]}"}}'
    found = hashlib.sha256(text.encode() + values["h"] + values["c"]).hexdigest()
    assert found == written.manifest.start_state.sha256


def test_rows_of_the_parquet_form(tmp_path: Path) -> None:
    make_store(str(tmp_path / "store"), boundaries=True)
    tiny = TinyReader(tmp_path / "store")
    tables = [
        pq.read_table(tmp_path / f"store/states/part-{k:05d}.parquet").to_pylist()
        for k, _ in tiny.shards()
    ]
    rows = [row for table in tables for row in table]
    assert [row["row"] for row in rows] == list(range(tiny.manifest["counts"]["rows"]))
    for sentence in tiny.sentences():
        own = [rows[i] for i in tiny.rows_of(sentence)]
        assert [row["token"] for row in own] == (
            ["<S>", *sentence["tokens"], "</S>"] if own else []
        )
        assert [row["sentence"] for row in own] == [sentence["sentence"]] * len(own)
        assert [row["index_in_sentence"] for row in own] == list(range(len(own)))
    assert len(tiny.sentences()) == len(LENGTHS)


def test_the_page_names_every_member_of_the_manifest(repo_dir: Path) -> None:
    page = (repo_dir / "docs" / "store-format.md").read_text()
    rows = re.findall(r"^- ((?:`[^`]+`(?:, )?)+)", page, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`([\w.\[\]]+)`", row)}
    sets = (WeightSet("a", (1.0,), 1.0, (0.0,)),)
    value = make_manifest(mix=MixInfo("a", "0" * 64, False, sets)).to_json()
    members = set()
    for name, one in value.items():
        inner = (
            one
            if isinstance(one, dict)
            and name in ("model", "start_state", "counts", "input", "checksums")
            else {name: None}
        )
        members |= {f"{name}.{key}" if inner is one else name for key in inner}
    mix = value["mix"]
    members |= set(mix) | {f"weight_sets[].{key}" for key in mix["weight_sets"][0]}
    assert members <= documented


def test_objects_and_columns_are_those_of_the_page(tmp_path: Path, repo_dir: Path) -> None:
    page = (repo_dir / "docs" / "store-format.md").read_text()
    written = make_store(str(tmp_path / "store"))
    heads = {name.split("/")[0] for name in written.root.list()}
    assert all(re.search(rf"^{re.escape(head)}", page, re.MULTILINE) for head in heads)
    for name in (
        "inputs",
        "sentences/part-00000",
        "indexes/parts",
        "indexes/ids/00000",
        "states/part-00000",
    ):
        names = pq.read_schema(tmp_path / "store" / f"{name}.parquet").names
        assert all(
            f"`{column}`" in page for column in names if column not in written.manifest.states
        )
