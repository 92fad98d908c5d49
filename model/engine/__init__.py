"""The biLM of `model.bilm`, fast: the same function of a sentence, computed in constant shapes for a whole call at once.

To be read in this order:

    settings        how to compute
    text            a call's text as numbers, and which rows are wanted
    embedder        the face: prepare a call on the host, run it on the device
    host            the host's half: from text to plans
    sequences       which token's state goes to which row, for either direction
    planner         sequences → a grid of lanes × steps
    words           what is known of a word is not computed again: its number, its slot in the table of first-layer gates
    word_vectors    x of new words, as three products, kept by number
    device          one direction, window by window; what a device must offer around it
    onednn, int8    products with weights that are packed once; the same in 8 bits
    cell            what a step does beside its products; cell_c (and _cell.c) and cell_triton: the same in one pass
    cpu, cuda       the two devices
    stats           what is counted meanwhile

Importing this package imports nothing.
"""
