"""The summary's numbers, ``info``, and sizes for people."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import elmo_store
from elmo_store.errors import AmbiguousIdError
from elmo_store.format.layout import SENTENCE_INDEX, shard_marker
from elmo_store.format.manifest import read_manifest
from elmo_store.format.markers import ObjectRecord, ShardMarker, read_marker
from elmo_store.storage.data import Data
from elmo_store.storage.local_disk import LocalDisk
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.cli.terminal import human_bytes
from pipeline.main import main
from pipeline.progress.summary import summary
from transforms.runtime.work import PLAN, TASK_LIST
from transforms.stages.finish import stat_sums

Command = Callable[..., int]


def marker(shard: int, tokens: int, **stats: float | int | str) -> ShardMarker:
    return ShardMarker(
        shard, 0, tokens, (ObjectRecord("x", 100, "0" * 8),), "p", {"tokens": tokens, **stats}
    )


def markers_of(root: Root) -> list[ShardMarker]:
    read = [
        read_marker(root, ShardMarker, shard) for shard in range(read_manifest(root).sizes.shards)
    ]
    return [marker for marker in read if marker is not None]


def total_bytes(markers: list[ShardMarker]) -> int:
    return sum(record.bytes for marker in markers for record in marker.objects)


def test_sums_are_over_shards() -> None:
    all_of_it = stat_sums(
        [
            marker(
                0,
                10,
                seconds_computing=1.5,
                engine_cells=100,
                engine_cells_used=90,
                finished=5.0,
                device="cpu",
            ),
            marker(
                1, 30, seconds_computing=0.5, engine_cells=100, engine_cells_used=50, finished=6.0
            ),
        ]
    )
    assert (all_of_it["tokens"], all_of_it["seconds_computing"]) == (40, 2.0)
    assert "device" not in all_of_it


def test_the_block_at_the_end_says_what_was_done_and_claims_nothing_of_the_words(
    embed: Command, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    assert embed(out) == Exit.COMPLETE
    root = Root(out)
    manifest = read_manifest(root)
    everything = stat_sums(markers_of(root))
    assert everything["tokens"] == manifest.sizes.tokens
    left = {
        "bytes": total_bytes(markers_of(root)),
        "everything": everything,
        "this_run": everything,
    }
    lines = summary(root, manifest, left, seconds=2.0)
    assert lines[0] == f"complete: {out}"
    assert [line[2:11].strip() for line in lines[1:]] == [
        "text",
        "problems",
        "states",
        "size",
        "this run",
    ]
    assert "known words" not in "".join(lines)
    later = summary(root, manifest, left | {"this_run": {}}, seconds=2.0)
    assert any("there already from an earlier run" in line for line in later)


def test_a_job_that_ends_reads_no_marker_for_its_summary(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the last stage left is all that the command reads, and takes away; a store that was complete says its sizes."""
    assert embed(tmp_path / "store") == Exit.COMPLETE
    said = capsys.readouterr().out
    markers = markers_of(Root(tmp_path / "store"))
    assert f"{total_bytes(markers) / 1000:,.1f} kB in {len(markers)} shards" in said
    assert f"this run  {int(stat_sums(markers)['tokens']):,} tokens in" in said
    assert "0 words truncated at 48 bytes" in said
    assert not (tmp_path / "store/_work").exists()
    assert embed(tmp_path / "store") == Exit.COMPLETE
    assert f"size      {len(markers)} shards" in capsys.readouterr().out


def test_ids_that_documents_repeat_are_told(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two documents of coreference with one key: the job goes on, and says that their sentences are read by number."""
    records = [
        {"doc_key": key, "sentences": [["a", "b"], [word]]}
        for key, word in (("d", "c"), ("e", "c"), ("d", "e"))
    ]
    (tmp_path / "in.jsonlines").write_text("".join(json.dumps(record) + "\n" for record in records))
    command = [
        "embed",
        str(tmp_path / "in.jsonlines"),
        "--output",
        str(tmp_path / "store"),
        "--model",
        str(tiny_model),
    ]
    assert main(command) == Exit.COMPLETE
    assert (
        "ids       2 sentences repeat the id of an earlier one: read those by number"
        in capsys.readouterr().out
    )
    store = elmo_store.open(tmp_path / "store")
    with pytest.raises(
        AmbiguousIdError, match=r"2 sentences of .* have the id 'd.1', 1, 5: read one of them by"
    ) as told:
        store.sentence(id=store[5].id)
    assert told.value.numbers == [1, 5]
    assert store.sentence(id=store[3].id).index == 3
    assert main(["verify", str(tmp_path / "store")]) == Exit.COMPLETE


@pytest.mark.parametrize(
    ("n", "text"), [(12, "12 bytes"), (12_345, "12.3 kB"), (3.2e15, "3,200.0 TB")]
)
def test_sizes_for_people(n: float, text: str) -> None:
    assert human_bytes(n) == text


def test_info_says_what_is_there_and_how_to_open_it(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "store"
    assert embed(out, "--store", "both") == Exit.COMPLETE
    capsys.readouterr()
    assert main(["info", str(out)]) == Exit.COMPLETE
    text = capsys.readouterr().out
    assert "60 sentences" in text
    assert "complete store of states" in text
    assert "import elmo_store" in text
    assert main(["info", "--json", str(out)]) == Exit.COMPLETE
    facts = json.loads(capsys.readouterr().out)
    assert facts["counts"]["sentences"] == 60
    assert facts["shards_done"] == facts["counts"]["shards"]
    assert set(facts["bytes"]) == {"zarr", "parquet", "sentences", "indexes"}


def test_info_of_what_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(tmp_path)]) == Exit.BAD_LOCATION
    (tmp_path / "elmo_store.json").write_text("{")
    assert main(["info", str(tmp_path)]) == Exit.BAD_LOCATION
    assert "elmo_store.json" in capsys.readouterr().err


def test_what_fails_in_passing_is_tried_again_in_every_stage(
    embed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound_put, sound_get = LocalDisk.put, LocalDisk.get
    failing = {
        "put": {PLAN, SENTENCE_INDEX, "states.zarr/states/c/1/0/0"},
        "get": {shard_marker(2), TASK_LIST},
    }

    def fails_once(kind: str, rel: str) -> None:
        if rel in failing[kind]:
            failing[kind].remove(rel)
            raise OSError("injected: passes")

    def put(
        self: LocalDisk, rel: str, data: Data, before: Callable[[], None], **options: bool
    ) -> str:
        fails_once("put", rel)
        return sound_put(self, rel, data, before)

    def get(self: LocalDisk, rel: str, most_bytes: int | None = None) -> bytes:
        fails_once("get", rel)
        return sound_get(self, rel, most_bytes)

    monkeypatch.setattr(LocalDisk, "put", put)
    monkeypatch.setattr(LocalDisk, "get", get)
    assert embed(tmp_path / "store") == Exit.COMPLETE
    assert failing == {"put": set(), "get": set()}
