"""Pre-training of a biLM: the joint objective of Peters et al. 2018 (arXiv:1802.05365), section 3.1.

In reading order: corpus (text as numbers, batches), network, softmax, words and direction (the two parts of a step, on a GPU
each a graph), trainer (recipe, schedule, loop), run (a folder with checkpoints), evaluate (held-out perplexity); kernels holds
the element-wise half, cell_triton the cell of it on a GPU, memory the allocator's habits.
May import torch, NumPy and the rest of `model`. Reads no file formats: sentences come as an iterator of token lists.
"""
