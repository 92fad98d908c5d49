"""What the shapes of words say is what every rule gives over the whole text, whatever the text."""

import lzma
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.examples import examples
from transforms.text import sentences
from transforms.text.ptb import sentence_tokens, tokens_by_rules

WORDS = r"""
word Word don't can't WON'T dogs' O'Neil 'tis 'Twas 'em 'quoted' ''twice'' ``tex'' cannot Cannot, gimme gımme wanna
gonna. more'n d'ye y'all it's Its' she'll they've I'm he'd U.S. U.S.A. Mr. Dr. etc. e.g., a.m. J. R. Ph.D. No.
İstanbul K ſ 'ſ 'ſay 'tıs 'S' 's 'll n't N'T a'n't s's's A'S, a's. x² ½ ½'s x²'s né Été's naïve, Straße ﬁne Москва
слово. 東京。 ไทย עברית… _ __ a_b
"""
MARKS = r"""
3.14 1,000 1,2,x 10:30 a:b a,b , : ; . .. ... .... … ? ! ?! !!! ." .) .' .” ' '' ''' " "" ``` ` “ ” ‘ ’ « » „ ‟ ″ (
) [ ] { } < > (a) [b]. {c}, <d> ("x") (word). word.) word." word.' word.”) word?" word,” "word 'word “word ‘word’ -
-- --- ---- — – ― a–b –a a– a—b a--b a--'b a---b $5 $5.00, 5% #tag @me & * a*b a/b and/or 12,345.67. a.b.c a/ /b a-
-b a,. a:. a.: a,, ,,a a;. a%. $ % $a$
"""
INVISIBLE = [
    "",
    "\u00a0",
    "a\u00a0b",
    ".\u00a0.",
    "\u2009",
    "a\u202f.",
    "\t",
    "a\tb",
    "\t–\t",
    "\x0b",
    "\x0c",
    "\x1c",
    "a\x1d",
    "\x85",
]
INVISIBLE += [
    "\u2028",
    "\u2029",
    "\u3000",
    "\n",
    "a\nb",
    ".\n",
    '"\n',
    "\r",
    "\ud800",
    "x\udfffy",
    "\0",
    "\ufeff",
]
INVISIBLE += ["a\u0301", "e\u0301's", "\u200b", "\u200bword\u200d", "a\u00adb"]
PIECES = [*WORDS.split(), *MARKS.split(), *INVISIBLE]
HOSTILE = st.lists(
    st.sampled_from(PIECES)
    | st.text(max_size=6)
    | st.text("aZ1.,:;'\"`-–—“”‘’()[]$% …", max_size=9),
    max_size=12,
)


@pytest.mark.slow
@examples(600)
@given(pieces=HOSTILE)
@example(pieces=["word", "—–—", "word"])
@example(pieces=["–", "word."])
@example(pieces=["word", ".", ".", ".", "word", "and.", ".", "."])
@example(pieces=['""s', "word"])
@example(pieces=["a" * 100_000 + ".", "(" * 5000 + "x", "b" + ")" * 5000 + "-."])
def test_a_sentence_has_the_tokens_of_every_rule(pieces: list[str]) -> None:
    text = " ".join(pieces)
    assert sentence_tokens(text) == tokens_by_rules(text)


@pytest.mark.parametrize("before", [[], ["word"], ['"'], ["–"]])
@pytest.mark.parametrize("after", [[], ["word"], ["."], ['."'], ["'", ")"]])
def test_every_piece_between_all_neighbours(before: list[str], after: list[str]) -> None:
    for piece in PIECES:
        text = " ".join((*before, piece, *after))
        assert sentence_tokens(text) == tokens_by_rules(text), text


@pytest.mark.slow
def test_the_corpus_has_the_tokens_of_every_rule(shared_dir: Path) -> None:
    paths = sorted((shared_dir / "corpus/raw/heldout").glob("*.xz"))
    if not paths:
        pytest.skip(f"no corpus in {shared_dir} (docs/development/data.md)")
    for path in paths:
        for line in lzma.decompress(path.read_bytes()).decode().splitlines():
            for start, stop in sentences.sentence_spans(line):
                assert sentence_tokens(line[start:stop]) == tokens_by_rules(line[start:stop]), line[
                    start:stop
                ]
