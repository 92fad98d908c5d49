"""Pre-training of a biLM: the joint objective of Peters et al. 2018 (arXiv:1802.05365), section 3.1.

    corpus      text as numbers, batches
    network     parameters, word vectors, the recurrence with its gradient; cell and cell_triton: one step of it
    softmax     the sampled softmax and its optimiser
    steps       the two parts of a training step, on a GPU each a graph
    trainer     recipe, schedule, loop
    run         a folder with checkpoints
    evaluate    held-out perplexity
    memory      the allocator's habits

No file format is read here: sentences come as an iterator of token lists.
"""
