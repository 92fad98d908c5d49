"""Inputs to splits: files, folders, globs, other filesystems, formats by name, and every location that can't be read."""

import gzip
import logging
import pickle
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import fsspec
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from elmo_store.storage.location import Location
from tests.transforms.reading import read_split, records, tokens, write
from transforms.inputs.files import find_files, known_format
from transforms.inputs.records import (
    FileIdentity,
    InputError,
    ReadSettings,
    Split,
    describe_files,
    input_fingerprint,
)
from transforms.stages.split import plan_splits


def names(splits: list[Split], base: Path) -> list[str]:
    return [str(Path(split.url).relative_to(base)) for split in splits]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "b.txt",
        "a/z.txt",
        "a/B.tok",
        "a.txt",
        "a/.hidden.txt",
        "_logs/x.txt",
        "a/_SUCCESS",
        "README.md",
        "é.jsonl",
    ):
        write(tmp_path / name, b"")
    return tmp_path


def test_folders_in_order_of_full_names_each_file_once(tree: Path) -> None:
    splits = plan_splits([str(tree / "b.txt"), str(tree), str(tree / "a"), f"{tree}/*.txt"])
    assert names(splits, tree) == ["a.txt", "a/B.tok", "a/z.txt", "b.txt", "é.jsonl"]
    assert [split.format for split in splits] == ["text", "lines", "text", "text", "jsonl"]
    assert [split.index for split in splits] == list(range(5))
    assert all(split.guessed for split in splits)


def test_auto_leaves_unknown_endings_of_a_folder_out_and_says_so(
    tree: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        plan_splits([str(tree)])
    assert f"{tree}: left out 1 file whose ending says no format, such as README.md" in caplog.text
    everything = plan_splits([str(tree)], "lines")
    assert "README.md" in names(everything, tree)
    assert {split.format for split in everything} == {"lines"}
    assert not any(split.guessed for split in everything)
    (named,) = plan_splits([str(tree / "README.md")])
    assert named.format == "text"


def test_excluded_folders_are_left_out(tree: Path) -> None:
    assert names(plan_splits([str(tree)], exclude=[Location("output", str(tree / "a"))]), tree) == [
        "a.txt",
        "b.txt",
        "é.jsonl",
    ]


def test_relative_names_become_absolute(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert list(find_files(["b.txt", "./a/../a.txt"])) == [str(tree / "a.txt"), str(tree / "b.txt")]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.jsonl", "jsonl"), ("a.NDJSON.gz", "jsonl"), ("a.json.zst", "json"), ("a.conllu.xz", "conllu"), ("a.conll", "conll"),
        ("a.parquet", "parquet"), ("x/a.pq", "parquet"), ("a.txt.bz2", "text"), ("a.tok", "lines"), ("a.lines.gz", "lines"),
        ("s3://b/a.snt", "lines"), ("a.tokens", "lines"), ("a", ""), ("txt", ""), ("a.txt/b", ""), ("a.md", ""),
        ("a.csv.gz", "csv"), ("a.tsv", "tsv"), ("a.iob2", "conll"),
    ],
)  # fmt: skip
def test_formats_by_name(name: str, kind: str) -> None:
    assert known_format(name) == kind


def test_names_with_signs_of_globs_and_spaces_are_names_first(tmp_path: Path) -> None:
    for name in ("a[1].tok", "a1.tok", "what? no.tok", "100%20.tok"):
        path = write(tmp_path / name, f"{name}\n".encode())
        assert tokens(records(path)) == [name.split(" ")]


def test_only_large_plain_files_are_cut_into_ranges(tmp_path: Path) -> None:
    data = b"a b c\n" * 100
    write(tmp_path / "a.tok", data)
    write(tmp_path / "b.jsonl", data)
    write(tmp_path / "c.txt", data)
    write(tmp_path / "d.tok.gz", gzip.compress(data, 0))
    write(tmp_path / "e.tok", gzip.compress(data, 0))  # by its first bytes
    splits = plan_splits([str(tmp_path)], range_bytes=250)
    ranges = [split for split in splits if split.is_range]
    assert [(Path(split.url).name, split.start, split.stop) for split in ranges] == [
        ("a.tok", 0, 250), ("a.tok", 250, 500), ("a.tok", 500, 600),
        ("b.jsonl", 0, 250), ("b.jsonl", 250, 500), ("b.jsonl", 500, 600),
        ("c.txt", 0, 250), ("c.txt", 250, 500), ("c.txt", 500, 600),
    ]  # fmt: skip
    assert [(Path(split.url).name, split.is_range) for split in splits[9:]] == [
        ("d.tok.gz", False),
        ("e.tok", False),
    ]
    assert {split.line_ends for split in splits if split.format == "text"} == {"break"}
    files = describe_files(splits)
    assert [(Path(file["url"]).name, file["format"], file["guessed"], file["pieces"]) for file in files] == [
        ("a.tok", "lines", True, 3), ("b.jsonl", "jsonl", True, 3), ("c.txt", "text", True, 3), ("d.tok.gz", "lines", True, 1),
        ("e.tok", "lines", True, 1),
    ]  # fmt: skip


def test_the_fingerprint_tells_inputs_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tok", b"a\n")
    first = input_fingerprint(plan_splits([str(path)]))
    assert first == input_fingerprint(
        plan_splits([str(path)], "lines")
    )  # said or guessed: the same job
    assert first != input_fingerprint(plan_splits([str(path)], "text"))
    write(path, b"a\nb\n")
    assert first != input_fingerprint(plan_splits([str(path)]))


V1 = FileIdentity(30, "etag=v1")
EVERY_KIND: list[Split] = [
    Split(0, "/a.txt", "text", V1, True, "space", start=0, stop=10),
    Split(1, "/a.txt", "text", V1, True, "space", start=10, stop=30),
    Split(3, "/c.parquet", "parquet", V1, start=0, stop=2),
    Split(4, "stdin", "csv", V1, piped=True),
    Split(5, "/é.tok", "lines", V1),
]


def test_every_kind_of_split_is_json_and_a_pickle_and_back() -> None:
    for split in EVERY_KIND:
        assert msgspec.json.decode(msgspec.json.encode(split), type=Split) == split
        assert pickle.loads(pickle.dumps(split)) == split


def test_every_kind_of_split_has_a_fingerprint_of_its_own() -> None:
    assert len({input_fingerprint([split]) for split in EVERY_KIND}) == len(EVERY_KIND)


def test_any_filesystem(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/reading/a.tok", b"a b\n" * 10)
    memory.pipe_file("/reading/deep/b.tok.gz", gzip.compress(b"c\n"))
    for place in ("memory://reading", "memory://reading/**/*.tok*", "memory:///reading/"):
        splits = plan_splits([place], range_bytes=30)
        assert [split.url for split in splits] == ["memory:///reading/a.tok"] * 2 + [
            "memory:///reading/deep/b.tok.gz"
        ]
        found = [record for split in splits for record in read_split(split, ReadSettings())]
        assert tokens(found) == [["a", "b"]] * 10 + [["c"]]


def test_a_web_server_without_ranges(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install '.[http]'")
    write(tmp_path / "a.tok", b"a b\n" * 100)
    handler = partial(QuietHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/a.tok"
            (split,) = plan_splits([url], range_bytes=30)
            assert split == Split(0, url, "lines", split.identity, guessed=True)
            assert tokens(list(read_split(split, ReadSettings()))) == [["a", "b"]] * 100
            with pytest.raises(InputError, match="no such file or folder"):
                plan_splits([url + "x"])
        finally:
            server.shutdown()
            thread.join()


def test_https_is_read_in_one_pass(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install '.[http]'")
    write(tmp_path / "a.tok", b"".join(b"a %d\n" % i for i in range(100)))
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(RangeHandler, directory=str(tmp_path))
    ) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate(tmp_path))
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url, options = (
                f"https://127.0.0.1:{server.server_port}/a.tok",
                {"ssl": False},
            )  # nobody signed the certificate
            splits = plan_splits([url], range_bytes=300, storage_options=options)
            assert [split.is_range for split in splits] == [
                False
            ]  # fsspec does not say whether this server has ranges
            assert splits[0].identity.version.startswith("Last-Modified=")
            found = [
                record for split in splits for record in read_split(split, ReadSettings(), options)
            ]
            assert tokens(found) == [["a", str(i)] for i in range(100)]
        finally:
            server.shutdown()
            thread.join()


def certificate(folder: Path) -> Path:
    """A certificate of a day's validity for 127.0.0.1, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1)
    )
    parts = [
        builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    ]
    return write(folder / "server.pem", b"".join(parts))


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        assert format


class RangeHandler(QuietHandler):
    """As most web servers: it says that it has ranges, and has them."""

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        if asked is None:
            super().do_GET()
            return
        data = Path(self.translate_path(self.path)).read_bytes()
        first, _, last = asked.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else len(data)]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


def test_an_object_store(s3_url: str) -> None:
    filesystem = fsspec.filesystem("s3")
    bucket = s3_url.removeprefix("s3://")
    filesystem.pipe_file(f"{bucket}/reading/a.tok", b"a b\n" * 10)
    filesystem.pipe_file(f"{bucket}/reading/deep/b.tok.gz", gzip.compress(b"c\n"))
    for place in (f"{s3_url}/reading", f"{s3_url}/reading/", f"{s3_url}/reading/**/*.tok*"):
        splits = plan_splits([place], range_bytes=30)
        assert [split.url for split in splits] == [f"{s3_url}/reading/a.tok"] * 2 + [
            f"{s3_url}/reading/deep/b.tok.gz"
        ]
        assert all(split.identity.version for split in splits)
        assert tokens([r for split in splits for r in read_split(split, ReadSettings())]) == [
            ["a", "b"]
        ] * 10 + [["c"]]
    with pytest.raises(InputError, match="no such file or folder"):
        plan_splits([f"{s3_url}/absent/a.tok"])
    with pytest.raises(InputError):
        plan_splits(["s3://no-such-bucket-anywhere/*.txt"])


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("{tmp}/absent.txt", "no such file or folder"),
        ("{tmp}/absent/*.txt", "no file to read is there"),
        ("{tmp}/empty", "no file to read is there"),
        (
            "{tmp}/unknown",
            "it holds nothing but 1 file whose ending says no format, such as a.dat: name what",
        ),
        (
            "unheardof://bucket/a.txt",
            "bad input location: ValueError: Protocol not known: unheardof",
        ),
        ("memory://absent", "no such file or folder"),
    ],
)
def test_locations_that_cannot_be_read(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "unknown/a.dat", b"")
    write(tmp_path / "good.txt", b"")
    place = place.format(tmp=tmp_path)
    with pytest.raises(InputError) as caught:
        plan_splits([str(tmp_path / "good.txt"), place])
    assert caught.value.url == place
    assert reason in caught.value.reason


def test_a_file_without_rights_is_an_input_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", b"PAR1")
    path.chmod(0)
    try:
        with pytest.raises(InputError) as caught:
            plan_splits([str(path)])
    finally:
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    assert caught.value.url == str(path)


def test_a_name_that_is_not_utf8_is_an_input_error(tmp_path: Path) -> None:
    name = str(tmp_path / "a\udcff.tok")
    write(Path(name), b"a\n")
    with pytest.raises(InputError, match="the name is not UTF-8"):
        plan_splits([str(tmp_path)])


@given(size=st.integers(1, 300), range_bytes=st.integers(1, 100))
def test_ranges_cover_every_byte_once(
    tmp_path_factory: pytest.TempPathFactory, size: int, range_bytes: int
) -> None:
    path = write(tmp_path_factory.mktemp("cover") / "a.tok", b"x" * size)
    splits = plan_splits([str(path)], range_bytes=range_bytes)
    ranges = [(split.start, split.stop) if split.is_range else (0, size) for split in splits]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == size
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    assert all(0 < stop - start <= range_bytes for start, stop in ranges)


def test_a_store_below_a_folder_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text\n")
    for name in (
        "out/elmo_store.json",
        "out/sentences/part-00000.parquet",
        "out/indexes/ids/00000.parquet",
        "outer.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert [Path(url).name for url in find_files([str(tmp_path)])] == ["a.txt", "outer.txt"]
    assert [
        Path(url).name
        for url in find_files([str(tmp_path / "out" / "sentences" / "part-*.parquet")])
    ] == [
        "part-00000.parquet"  # named by itself
    ]
