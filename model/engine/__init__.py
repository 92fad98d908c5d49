"""The biLM of `model.bilm`, fast: the same function of a sentence, computed in constant shapes for a whole call at once.

To be read in this order:

    settings            how to compute
    embedder            the face: sentences in, states of the wanted rows out
    sequences           a call's text as numbers, and which token's state goes to which row
    planner             sequences → a grid of lanes × steps
    words               what is known of a word is not computed again: its x, its share of the first layer's gates
    word_vectors        x of new words, as three products
    device, backend     what a device must offer; a direction of the biLM, window by window
    onednn, cpu         the CPU: packed products, one direction's steps
    cuda, cuda_direction, cuda_cell, cuda_cell_triton    the GPU: graphs of constant shape, and what is no product

May import torch, NumPy and the rest of `model`, never `model.training`. Importing this package imports nothing.
"""
