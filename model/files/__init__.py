"""A biLM's files: weights in and out (`hdf5`, `safetensors`), where they lie (`locate`), models by name (`registry`).

`weights.BiLMWeights` is what all of them lead to. May import torch, h5py, safetensors, fsspec and the model's options.
Importing this package imports nothing.
"""
