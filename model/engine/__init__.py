"""The biLM of `model.bilm`, fast: the same function of a sentence, computed in constant shapes for a whole call at once.

To be read in this order: `embedder` (prepare a call on the host, run it on the device), `planning` (the host's half), `device`
(one direction, window by window), `word_vectors` (what is known of a word is not computed again), `products`, `cell` (with
`cell_c`, _lstm.c and `cell_triton`), `cpu` and `cuda`.
"""
