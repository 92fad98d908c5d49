"""Sentences by their text, against the sentences themselves."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elmo_store
from elmo_store.errors import SentenceNotFoundError, ShardCorruptError, ShardMissingError
from elmo_store.format import ids, layout
from elmo_store.format.manifest import ModelInfo
from elmo_store.format.texts import hash_texts, hash_tokens
from elmo_store.storage.parquet_files import GroupsOf, read_footers, read_table, read_tables
from elmo_store.storage.root import Root
from tests.store.support import make_store

OPTIONS = {"lstm": {"n_layers": 2}, "char_cnn": {"max_characters_per_token": 50}}


def test_every_text_finds_its_first_sentence(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "s"))
    store = elmo_store.open(tmp_path / "s")
    first: dict[tuple[str, ...], int] = {}
    for number, tokens in enumerate(written.tokens):
        first.setdefault(tuple(tokens), number)
    assert len(first) < len(store)  # two sentences without tokens
    assert store.find_text(written.tokens) == [first[tuple(tokens)] for tokens in written.tokens]
    assert store.find_text([["no", "such"], [], [""], written.tokens[1][:-1]]) == [
        None,
        2,
        None,
        None,
    ]
    assert store.find_text([]) == []
    sentence = store.sentence(text=written.tokens[3])
    assert (sentence.read() == written.states[written.rows(3)]).all()


def test_a_string_is_tokens_between_spaces(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "s"))
    store = elmo_store.open(tmp_path / "s")
    assert store.sentence(text=" ".join(written.tokens[7])).index == 7
    assert store.find_text([""]) == [2]
    with pytest.raises(SentenceNotFoundError, match="has the tokens 'not there'"):
        store.sentence(text="not there")
    with pytest.raises(TypeError, match="one of them only"):
        store.sentence(3, text="not there")
    with pytest.raises(TypeError, match="116 is not a token"):
        store.find_text([b"the"])  # type: ignore[list-item]


def test_words_are_compared_as_the_model_reads_them(tmp_path: Path) -> None:
    model = ModelInfo("tiny", "sha256:" + "1" * 64, OPTIONS)
    written = make_store(str(tmp_path / "s"), model=model)
    store = elmo_store.open(tmp_path / "s")
    long = [i for i, tokens in enumerate(written.tokens) if any(len(t) > 48 for t in tokens)]
    assert long
    for number in long:
        cut = [
            token.encode()[:48] for token in written.tokens[number]
        ]  # what character ids hold of them
        assert store.find_text([cut, [t + b"!" for t in cut]]) == [number, None]
    uncut = elmo_store.open(
        make_store(str(tmp_path / "t")).root.url()
    )  # options that don't say what is read
    assert uncut.find_text([[token.encode()[:48] for token in written.tokens[long[0]]]]) == [None]


def test_selections_and_concatenations(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "s"))
    store = elmo_store.open(tmp_path / "s")
    picked = store.select([7, 5, 1])
    assert picked.find_text([written.tokens[1], written.tokens[0], [], written.tokens[7]]) == [
        2,
        None,
        1,
        0,
    ]
    both = elmo_store.concat([store, store])
    assert both.find_text([written.tokens[7], ["none"]]) == [7, None]
    other = elmo_store.open(make_store(str(tmp_path / "t"), lengths=(4,), parts=(1,)).root.url())
    joined = elmo_store.concat([other, store])
    assert joined.find_text([written.tokens[7], written.tokens[0], ["none"]]) == [8, 1, None]


texts = st.lists(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=4), max_size=6
)


@given(texts, st.sampled_from([None, 1, 3]))
def test_hashes_are_of_the_tokens_and_nothing_else(lists: list[list[str]], cut: int | None) -> None:
    found = [tuple(pair) for pair in hash_texts(lists, cut).tolist()]
    assert found == [
        tuple(pair) for pair in hash_tokens(pa.array(lists, pa.list_(pa.string())), cut).tolist()
    ]
    for a, left in enumerate(lists):
        for b, right in enumerate(lists):
            same = [token.encode()[:cut] for token in left] == [
                token.encode()[:cut] for token in right
            ]
            assert (found[a] == found[b]) == same


def test_many_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "IDS_OF_TABLE", 8)
    lengths = [1 + i % 3 for i in range(200)]
    written = make_store(str(tmp_path / "s"), lengths=lengths, parts=(100, 0, 100))
    assert len(list((tmp_path / "s/indexes/text").glob("*.parquet"))) == 32
    store = elmo_store.open(tmp_path / "s")
    assert store.find_text(written.tokens) == list(range(200))
    assert ids.tables_of(hash_texts(written.tokens, None)[:, 0], 5).max() > 16


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "s"))
    table = tmp_path / "s" / layout.text_table(0)
    whole = table.read_bytes()
    for data in (whole[:-1], whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]):
        table.write_bytes(data)
        with pytest.raises(ShardCorruptError, match=layout.text_table(0)):
            elmo_store.open(tmp_path / "s").find_text(written.tokens)
    table.unlink()
    with pytest.raises(ShardMissingError, match=layout.text_table(0)):
        elmo_store.open(tmp_path / "s").find_text(written.tokens)


def test_tokens_of_several_row_groups_are_read_together(tmp_path: Path) -> None:
    """Each row group has its own dictionary of words."""
    table = pa.table({"tokens": [["the", "cat"], ["the", "dog"], ["a", "mat"], ["a", "cat"]]})
    pq.write_table(table, tmp_path / "part.parquet", row_group_size=2)
    root = Root(tmp_path)
    footer = read_footers(root, ["part.parquet"])[0]
    assert footer.num_row_groups == 2
    assert read_tables(root, [GroupsOf("part.parquet", footer, (0, 1), ("tokens",))])[0].equals(
        table
    )
    assert read_table(root, "part.parquet", table.schema).equals(table)
