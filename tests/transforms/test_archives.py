"""Archives are never read as text; the files in them are read through ``zip://`` and ``tar://`` URLs."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest
import zstandard

from tests.transforms.reading import read_split, tokens, write
from tests.transforms.test_sources import QuietHandler
from transforms.inputs.archives import check_no_archive
from transforms.inputs.files import find_files, known_format
from transforms.inputs.records import DamagedInputError, InputError, ReadSettings, file_name
from transforms.stages.number import sentence_id
from transforms.stages.split import plan_splits

FILES = {"a.tok": b"one line\ntwo lines\n", "deep/b.tok": b"three lines\n", "c.md": b"# title\n"}
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def zipped(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return data.getvalue()


def tarred(files: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=form) as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return data.getvalue()


def read(*inputs: str, input_format: str = "auto") -> dict[str, list[list[str]]]:
    """The tokens of each file that ``inputs`` name, by its own name."""
    splits = plan_splits(inputs, input_format)
    return {
        file_name(split.url): tokens(list(read_split(split, ReadSettings()))) for split in splits
    }


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_tar_file_is_refused_with_the_url_of_a_file_in_it(
    tmp_path: Path, suffix: str, form: int
) -> None:
    path = write(tmp_path / f"x.tar{suffix}", COMPRESSORS[suffix](tarred(FILES, form)))
    for input_format in ("auto", "lines", "jsonl", "csv"):
        with pytest.raises(InputError) as caught:
            plan_splits([str(path)], input_format)
        assert f"tar://a.tok::{path} or 'tar://*.tok::{path}'" in caught.value.reason


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_file_is_refused_with_the_url_of_a_file_in_it(
    tmp_path: Path, compression: int
) -> None:
    path = write(tmp_path / "x.zip", zipped({"deep/b.tok": b"three lines\n"}, compression))
    with pytest.raises(InputError) as caught:
        plan_splits([str(path)])
    assert f"zip://deep/b.tok::{path} or 'zip://deep/*.tok::{path}'" in caught.value.reason


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.conllu", "a.json", "a.tok.gz"])
@pytest.mark.parametrize("data", [zipped(FILES), tarred(FILES)])
def test_an_archive_under_another_name_is_refused_by_the_reader(
    tmp_path: Path, name: str, data: bytes
) -> None:
    stored = gzip.compress(data) if name.endswith(".gz") else data
    path = write(tmp_path / name, stored)
    settings = ReadSettings(on_bad_file="reject")

    def read_all() -> None:
        for split in plan_splits([str(path)]):
            list(read_split(split, settings))

    with pytest.raises(InputError, match=r"it is a (zip|tar) archive, not text"):
        read_all()


@pytest.mark.parametrize(
    ("head", "remedy"),
    [
        (b"%PDF-1.7\n", "extract its text"),
        (b"7z\xbc\xaf\x27\x1c\0\4", "unpack it"),
        (b"Rar!\x1a\x07\1\0", "unpack it"),
        (b"PAR1\x15\x04\x15", "--input-format parquet"),
        (zipped({"[Content_Types].xml": b"<Types/>"}), "save it as plain text"),
    ],
)
def test_other_files_that_are_no_text_are_refused(tmp_path: Path, head: bytes, remedy: str) -> None:
    with pytest.raises(InputError, match=remedy):
        plan_splits([str(write(tmp_path / "a", head))])


@pytest.mark.parametrize("text", [b"", b"PK", b"PAR1 is a gene.\n", b"a" * 600, b"\0" * 1024])
def test_texts_are_no_archives(text: bytes) -> None:
    check_no_archive("a.txt", text)


@pytest.mark.parametrize("kind", ["zip", *(f"tar{suffix}" for suffix in COMPRESSORS)])
def test_files_in_an_archive_are_read_by_name_glob_and_folder(tmp_path: Path, kind: str) -> None:
    data = zipped(FILES) if kind == "zip" else COMPRESSORS[kind[3:]](tarred(FILES))
    path = write(tmp_path / f"x.{kind}", data)
    scheme = kind[:3]
    one = {"a.tok": [["one", "line"], ["two", "lines"]]}
    every = one | {"b.tok": [["three", "lines"]]}
    assert read(f"{scheme}://a.tok::{path}") == one
    assert read(f"{scheme}://*.tok::{path}") == one
    assert read(f"{scheme}://**/*.tok::{path}") == every
    assert read(f"{scheme}://deep::{path}") == {"b.tok": every["b.tok"]}
    assert read(f"{scheme}://::{path}") == every
    assert "c.md" in read(f"{scheme}://::{path}", input_format="lines")


def test_globs_of_archives_name_the_files_of_each(tmp_path: Path) -> None:
    for name in ("x.zip", "y.zip"):
        write(tmp_path / name, zipped({f"{name[0]}.tok": b"a\n"}))
    assert read(f"zip://*.tok::{tmp_path}/*.zip") == {"x.tok": [["a"]], "y.tok": [["a"]]}


def test_a_relative_archive_has_one_full_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x.zip", zipped(FILES))
    monkeypatch.chdir(tmp_path)
    assert list(find_files(["zip://a.tok::x.zip", f"zip:///a.tok::{path}"])) == [
        f"zip://a.tok::{path}"
    ]


def test_an_archive_within_an_archive_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zip", zipped({"y.tar": tarred(FILES)}))
    with pytest.raises(InputError, match=f"tar://a.tok::zip://y.tar::{path}"):
        plan_splits([f"zip://y.tar::{path}"])
    assert read(f"tar://deep/b.tok::zip://y.tar::{path}") == {"b.tok": [["three", "lines"]]}


def test_archives_of_other_storages_are_read(s3_url: str) -> None:
    memory = fsspec.filesystem("memory")
    s3 = fsspec.filesystem("s3")
    memory.pipe_file("/archives/x.zip", zipped(FILES))
    s3.pipe_file(f"{s3_url}/archives/x.tar", tarred(FILES))
    both = read("zip://*.tok::memory://archives/x.zip", f"tar://deep/*::{s3_url}/archives/x.tar")
    assert list(both) == ["b.tok", "a.tok"]
    assert both["b.tok"] == [["three", "lines"]]


def test_storage_options_reach_the_storage_of_the_archive(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.filesystem("s3").pipe_file(f"{s3_url}/archives/y.zip", zipped(FILES))
    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    url = f"zip://a.tok::{s3_url}/archives/y.zip"
    (split,) = plan_splits([url], storage_options=options)
    assert tokens(list(read_split(split, ReadSettings(), options))) == [
        ["one", "line"],
        ["two", "lines"],
    ]


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz"])
def test_an_archive_on_a_web_server_without_ranges_is_read(tmp_path: Path, name: str) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install '.[http]'")
    data = zipped(FILES) if name == "x.zip" else gzip.compress(tarred(FILES))
    write(tmp_path / name, data)
    handler = partial(QuietHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"{name[2:5]}://deep/*::http://127.0.0.1:{server.server_port}/{name}"
            assert read(url) == {"b.tok": [["three", "lines"]]}
        finally:
            server.shutdown()
            thread.join()


def test_what_tar_writes_of_a_folder_has_names_without_a_dot(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", tarred({"./a.tok": b"one\n", "/b.tok": b"two\n"}))
    assert read(f"tar://a.tok::{path}") == {"a.tok": [["one"]]}
    assert list(read(f"tar://*.tok::{path}")) == ["a.tok", "b.tok"]


def test_links_within_a_tar_file_are_files_and_devices_are_not(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        for name, kind, target in (
            ("d/hard.tok", tarfile.LNKTYPE, "d/a.tok"),
            ("d/soft.tok", tarfile.SYMTYPE, "a.tok"),
            ("d/out.tok", tarfile.SYMTYPE, "/etc/passwd"),
            ("d/pipe.tok", tarfile.FIFOTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
        member = tarfile.TarInfo("d/a.tok")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"one\n"))
    assert read(f"tar://::{path}") == {
        name: [["one"]] for name in ("a.tok", "hard.tok", "soft.tok")
    }


def test_the_ending_that_counts_is_that_of_the_file_in_the_archive() -> None:
    assert known_format("zip://a.csv.gz::https://host/x.json") == "csv"
    assert known_format("tar://a::x.jsonl.gz") == ""
    assert sentence_id("", "zip://deep/a.tok::/x.zip", 3, -1) == "a.tok:3"


def test_damage_within_an_archive_is_named(tmp_path: Path) -> None:
    data = zipped({"a.tok": b"word " * 50 + b"\n"}, zipfile.ZIP_STORED)
    path = write(tmp_path / "x.zip", data.replace(b"word word", b"word ward"))
    with pytest.raises(DamagedInputError, match="Bad CRC-32"):
        read(f"zip://a.tok::{path}")
    cut = write(tmp_path / "x.tar", tarred({"a.tok": b"word\n" * 1000})[:2000])
    with pytest.raises(InputError):
        read(f"tar://a.tok::{cut}")
    gz = write(tmp_path / "x.tar.gz", gzip.compress(tarred(FILES))[:-20])
    with pytest.raises(InputError, match="the gzip stream is damaged"):
        read(f"tar://a.tok::{gz}")


def test_an_archive_that_was_replaced_is_another_input(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", tarred({"a.tok": b"one\n"}))
    (split,) = plan_splits([f"tar://a.tok::{path}"])
    write(path, tarred({"a.tok": b"two\n", "b.tok": b"x" * 20_000}))
    with pytest.raises(InputError, match="the file changed after the job was planned"):
        list(read_split(split, ReadSettings()))


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_threads_read_files_of_one_archive_at_once(tmp_path: Path, kind: str) -> None:
    files = {f"{i}.tok": b"%d\n" % i * 6_000 for i in range(8)}
    path = write(tmp_path / f"x.{kind}", (zipped if kind == "zip" else tarred)(files))
    splits = plan_splits([f"{kind}://*.tok::{path}"])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda split: list(read_split(split, ReadSettings())), splits))
    assert [tokens(records) for records in found] == [[[str(i)]] * 6_000 for i in range(8)]
