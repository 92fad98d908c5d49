"""`python -m benchmarks.peers`: its comparison finds no difference of AllenNLP, simple_elmo and bilm-tf, and would find one."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import elmo_store
from benchmarks.peers import PROGRAMS, Result, difference, measure
from benchmarks.shared.texts import made_up_text, take


@pytest.mark.slow
def test_other_programs_give_what_the_store_holds(tmp_path: Path) -> None:
    wheel, environment = os.environ.get("ELMO_STORE_ALLENNLP"), os.environ.get("ELMO_STORE_PEERS", "")
    if not wheel:
        pytest.skip("no wheel: pip download --no-deps allennlp==0.9.0, and its path in ELMO_STORE_ALLENNLP")
    text = made_up_text()
    slices = [take(text, 300) for _ in range(2)]
    assert all(len(sentences) > 8 for sentences in slices)
    pythons = dict(zip(PROGRAMS, (sys.executable, sys.executable, environment, environment), strict=True))
    results = list(measure("tiny", slices, tmp_path, pythons, "1", str(Path(wheel).absolute())))
    missing = [] if environment else [Result(f"{name}: not run: see --help") for name in ("simple_elmo", "bilm-tf")]
    n_run = len(results) - len(missing)
    assert results[n_run:] == missing
    differences = {result.program.split()[0].rstrip(","): result.difference for result in results[:n_run]}
    assert list(differences) == (["elmo-store", "AllenNLP"] if missing else list(PROGRAMS))
    assert differences.pop("elmo-store") == 0
    for name, largest in differences.items():
        assert largest is not None, name
        assert 0 < largest < 5e-6, name  # computed by other products, in another order

    store, saved = elmo_store.open(tmp_path / "store"), tmp_path / "AllenNLP-1.npz"
    first = len(slices[0])
    with np.load(saved) as layers:
        theirs = list(layers.values())
    theirs[-1][1, -1, -1] += 0.01
    np.savez(saved, *theirs)
    assert difference(store, first, saved) == pytest.approx(0.01, rel=1e-3)
    np.savez(saved, *(one[:, :-1] for one in theirs))
    with pytest.raises(ValueError, match=rf"AllenNLP-1\.npz: sentence {first} is .*, in the store"):
        difference(store, first, saved)
