"""The biLM of Peters et al. 2018 (arXiv:1802.05365) in PyTorch.

    bilm        the model itself, plain, in reading order: begin here
    engine/     the same function, fast
    files/      weights in and out, models by name
    training/   how weights come about
    options, characters, start_state, warm, threads, errors    what they share

The model does not know that there are jobs. Importing this package imports nothing heavy; ask the modules.
"""
