"""Read a store with the base install alone: no PyTorch, no Beam, none of our other packages is imported. Argument: the store.

Prints what reading cost; exits with an error where something is not as it must be.
"""

import resource
import sys
import time
from pathlib import Path

began = time.perf_counter()
import elmo_store  # noqa: E402  (what is timed)

store = elmo_store.open(str(Path(sys.argv[1]).resolve()))
sentence = store.sentence(0)
vectors = sentence.layers()
seconds = time.perf_counter() - began
if vectors.shape != (sentence.n_rows, (len(store.states) + 1) // 2, 2 * store.channels) or not sentence.tokens:
    raise SystemExit(f"sentence 0 reads as {vectors.shape} of {sentence.tokens}")
unwanted = {"torch", "apache_beam", "model", "transforms", "pipeline"} & set(sys.modules)
if unwanted:
    raise SystemExit(f"reading imported {', '.join(sorted(unwanted))}")
for name in ("torch", "apache_beam"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{name} is installed: this is not the base alone")
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"read {store.n_sentences} sentences' store: import, open and first sentence {seconds * 1000:.0f} ms, peak {peak:.0f} MB")
print("verify:", len(store.verify().faults), "faults")
