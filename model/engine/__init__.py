"""The biLM of `model.bilm`, fast: the same function of a sentence, computed in constant shapes for a whole call at once.

To be read in this order:

    settings        how to compute
    embedder        the face: prepare a call on the host, run it on the device
    planning/       the host's half: text, sequences, a grid of lanes × steps
    device          one direction, window by window; what a device must offer around it
    gates           the table of first-layer gates: what is known of a word is not computed again
    word_vectors    x of new words, as three products, kept by number
    products        products with weights that are packed once; the same in 8 bits
    cell            what a step does beside its products; cell_c (and _lstm.c) and cell_triton: the same in one pass
    cpu, cuda       the two devices

Importing this package imports nothing.
"""
