"""`python -m benchmarks.peers`: its comparison finds no difference of AllenNLP, and would find one."""

import os
from pathlib import Path

import pytest

import elmo_store
from benchmarks.peers import allennlp, difference, measure
from benchmarks.shared.texts import made_up_text, take


@pytest.mark.slow
def test_allennlp_gives_what_the_store_holds(tmp_path: Path) -> None:
    wheel = Path(os.environ.get("ELMO_STORE_ALLENNLP", "nowhere"))
    if not wheel.is_file():
        pytest.skip(
            "no wheel: pip download --no-deps allennlp==0.9.0, and its path in ELMO_STORE_ALLENNLP"
        )
    text = made_up_text()
    slices = [take(text, 300) for _ in range(2)]
    assert all(len(sentences) > 8 for sentences in slices)
    ours, theirs = measure("tiny", slices, tmp_path, wheel)
    assert ours[:2] == ("elmo-store", 0)
    name, largest, *_ = theirs
    assert name == "AllenNLP 0.9.0"
    assert 0 < largest < 5e-6  # computed by other products, in another order

    store, first = elmo_store.open(tmp_path / "store"), len(slices[0])
    layers = [one.copy() for one in allennlp(tmp_path / "model", wheel)(slices[1])]
    layers[-1][1, -1, -1] += 0.01
    assert difference(store, first, layers) == pytest.approx(0.01, rel=1e-3)
    with pytest.raises(ValueError, match=rf"sentence {first} is .*, in the store"):
        difference(store, first, [one[:, :-1] for one in layers])
