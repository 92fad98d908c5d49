"""Read a store with the base install alone: no PyTorch, no Beam, none of our other packages is imported. Argument: the store."""

import sys
from pathlib import Path

import elmo_store

store = elmo_store.open(str(Path(sys.argv[1]).resolve()))
sentence = store.sentence(0)
vectors = sentence.layers()
if (
    vectors.shape != (sentence.n_rows, (len(store.states) + 1) // 2, 2 * store.channels)
    or not sentence.tokens
):
    raise SystemExit(f"sentence 0 reads as {vectors.shape} of {sentence.tokens}")
unwanted = {"torch", "apache_beam", "model", "transforms", "pipeline"} & set(sys.modules)
if unwanted:
    raise SystemExit(f"reading imported {', '.join(sorted(unwanted))}")
print("verify:", len(store.verify().faults), "faults")
