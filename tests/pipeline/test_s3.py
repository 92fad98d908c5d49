"""Inputs and output on a real S3-compatible server: the same bytes as on a local disk, resumed and watched there too."""

import json
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any

import fsspec
import pytest

import elmo_store
from elmo_store.format.layout import SENTENCE_INDEX
from elmo_store.format.manifest import write_manifest
from elmo_store.format.markers import ShardMarker, read_marker
from elmo_store.storage.lease import LEASE, LEASES
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from pipeline.progress.snapshot import ProgressReader
from tests.job_stages import count_requests, manifest_of
from tests.pipeline.support import digests, remote_digests
from tests.pipeline.test_embed_job import broken_writer
from transforms.stages import embed as embed_stage

Command = Callable[..., int]


@pytest.fixture
def remote_corpus(s3_url: str, corpus: Path, tmp_path: Path) -> str:
    """The corpus of the other tests, on the server."""
    folder = f"{s3_url}/{tmp_path.name}/corpus"
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    for path in corpus.iterdir():
        files.pipe_file(f"{folder}/{path.name}", path.read_bytes())
    return folder


@pytest.mark.slow
def test_an_interrupted_job_on_s3_is_watched_continued_and_the_same_as_on_disk(
    embed: Command,
    corpus: Path,
    remote_corpus: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert embed(tmp_path / "local", "--store", "both") == Exit.COMPLETE
    url = remote_corpus.replace("/corpus", "/store")
    with monkeypatch.context() as patch:
        patch.setattr(embed_stage, "write_shard", broken_writer(1))
        assert embed(url, "--store", "both", inputs=[remote_corpus]) == Exit.INCOMPLETE
    capsys.readouterr()
    assert main(["watch", "--once", url]) == Exit.INCOMPLETE
    assert "1 of 6 shards are not in the store" in capsys.readouterr().out
    assert embed(url, "--store", "both", inputs=[remote_corpus]) == Exit.COMPLETE
    assert main(["watch", "--once", url]) == Exit.COMPLETE
    assert main(["info", url]) == Exit.COMPLETE
    root = Root(url)
    here, there = (
        {
            name: digest
            for name, digest in digests_of.items()
            if "sentences" not in name and name != SENTENCE_INDEX
        }
        for digests_of in (digests(tmp_path / "local"), remote_digests(root))
    )
    assert here == there  # all but what names the input's location, and the sizes of that
    store: Any = elmo_store.open(url)
    assert [s.id for s in store][:2] == ["a.txt:0", "a.txt:1"]
    assert store.sentence(0).source.startswith("s3://")


def test_a_bucket_that_is_not_there_is_a_bad_location(
    embed: Command,
    s3_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert embed("s3://no-such-bucket-here/store") == Exit.BAD_LOCATION
    assert "no-such-bucket-here" in capsys.readouterr().err


def test_an_object_is_one_request_and_a_look_at_a_job_at_most_ten(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from s3fs import S3FileSystem

    from elmo_store.storage.obstore_client import ObstoreFileSystem

    for library, name in ((S3FileSystem, "_call_s3"), (ObstoreFileSystem, "_call")):
        monkeypatch.setattr(
            library, name, getattr(library, name)
        )  # so that the counter is taken away again
    root = Root(f"{s3_url}/{tmp_path.name}/counted")
    write_manifest(root, manifest_of(root))
    root.put_json("_work/start.json", {"started": 0.0, "n_pieces": 100})
    for task in range(20):
        root.put_json(f"_work/read/{task:05d}-00000.json", {})
    n = count_requests()
    assert root.get_json("_work/start.json")["n_pieces"] == 100
    assert n[0] == 1
    assert len(root.get_many(["_work/start.json", "elmo_store.json"])) == 2
    assert n[0] == 3
    assert ProgressReader(root).look().pieces_done == 20
    assert n[0] - 3 <= 10


def test_a_shard_is_a_put_of_each_of_its_objects_and_of_its_marker(
    embed: Command, remote_corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="pip install '.[obstore]'")
    from elmo_store.storage.obstore_client import ObstoreFileSystem

    requests: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)  # of each thread
    shards: list[list[tuple[str, str]]] = []
    call, write = ObstoreFileSystem._call, embed_stage.write_shard

    def noted(self: Any, function: Any, path: str, *arguments: Any, **options: Any) -> Any:
        requests[get_ident()].append((function.__name__, path))
        return call(self, function, path, *arguments, **options)

    def watched(*arguments: Any, **options: Any) -> Any:
        own = requests[get_ident()]
        n_before = len(own)
        written = write(*arguments, **options)
        shards.append(own[n_before:])
        return written

    monkeypatch.setattr(ObstoreFileSystem, "_call", noted)
    monkeypatch.setattr(embed_stage, "write_shard", watched)
    assert (
        embed(remote_corpus.replace("/corpus", "/counted"), inputs=[remote_corpus]) == Exit.COMPLETE
    )
    assert len(shards) == 6
    for made in shards:
        beside_the_lease = [
            (kind, path.split("/counted/")[1]) for kind, path in made if f"/{LEASES}/" not in path
        ]
        names = ["states.zarr/states/c/", "states.zarr/token/c/", "_shards/"]
        assert len(beside_the_lease) == len(names), made
        for (kind, path), name in zip(beside_the_lease, names, strict=True):
            assert kind == "put"
            assert path.startswith(name)
        looks = [path for _, path in made if path.endswith(LEASE)]
        assert len(looks) <= 2


@pytest.mark.slow
def test_keys_in_the_options_reach_workers_that_have_none_and_stand_nowhere(
    embed: Command, remote_corpus: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    options = {"key": "a-key-of-ours", "secret": "a-secret-of-ours", "endpoint_url": endpoint}
    url = remote_corpus.replace("/corpus", "/keys")
    given = ["--storage-options", json.dumps(options), "--workers", "2"]
    assert embed(url, *given, inputs=[remote_corpus]) == Exit.COMPLETE
    root = Root(url, options)
    workers = {
        str(marker.stats["worker"])
        for k in range(6)
        if (marker := read_marker(root, ShardMarker, k))
    }
    assert not any(
        worker.endswith(f":{os.getpid()}") for worker in workers
    )  # other processes than this one
    assert not [name for name in root.list() if b"of-ours" in root.get(name)]
